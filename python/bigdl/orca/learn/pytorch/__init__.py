"""The Estimator for PyTorch, as BigDL 2.x had it."""

from orca.learn.pytorch.training_operator import TrainingOperator

from bigdl.orca.learn.pytorch.estimator import Estimator

__all__ = ["Estimator", "TrainingOperator"]
