"""Arrays to pictures; pictures never touch a model."""
