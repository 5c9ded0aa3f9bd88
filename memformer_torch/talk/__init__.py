"""The commands that use a trained model."""
