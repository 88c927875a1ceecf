"""Names that configurations of PyTorch models have."""

LR_NAME = "lr"
"""Of the rate, for optimizers that are given by name."""
DEFAULT_LR = 1e-3
"""Without it."""
