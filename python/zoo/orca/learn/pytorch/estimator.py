"""The Estimator for PyTorch, bound to Analytics Zoo."""

from orca.generations import ZOO
from orca.learn.pytorch.estimator import bind

__all__ = ["Estimator"]

Estimator = bind(ZOO)
