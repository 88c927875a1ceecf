"""The Estimator for PyTorch, as Analytics Zoo had it."""

from orca.learn.pytorch.training_operator import TrainingOperator
from zoo.orca.learn.pytorch.estimator import Estimator

__all__ = ["Estimator", "TrainingOperator"]
