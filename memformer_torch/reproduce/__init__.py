"""The paper's quality tables, row by row: what is run, what is found, what is said of it."""
