"""First looks: short runs that show what the model does."""
