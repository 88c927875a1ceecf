"""The Estimator for PyTorch, as BigDL 2.x had it."""

from bigdl.orca.learn.pytorch.estimator import Estimator
from orca.learn.pytorch.training_operator import TrainingOperator
from orca.roots.modules import submodules

__getattr__ = submodules(__name__)

__all__ = ["Estimator", "TrainingOperator"]
