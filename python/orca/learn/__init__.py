"""Training and measuring models on the workers of a context."""
