"""The Estimator for PyTorch, as Analytics Zoo had it."""

from orca.learn.pytorch.training_operator import TrainingOperator
from orca.roots.modules import submodules
from zoo.orca.learn.pytorch.estimator import Estimator

__getattr__ = submodules(__name__)

__all__ = ["Estimator", "TrainingOperator"]
