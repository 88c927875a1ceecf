"""Training loops of the user's own."""

from orca.adapters.torch.training_operator import TrainingOperator

__all__ = ["TrainingOperator"]
