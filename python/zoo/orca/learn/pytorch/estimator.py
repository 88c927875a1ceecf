"""The Estimator for PyTorch, bound to Analytics Zoo."""

from orca.learn.pytorch.estimator import bind

from orca.generations import ZOO

__all__ = ["Estimator"]

Estimator = bind(ZOO)
