"""The Estimator for PyTorch, bound to BigDL 2.x."""

from orca.learn.pytorch.estimator import bind

from orca.generations import BIGDL

__all__ = ["Estimator"]

Estimator = bind(BIGDL)
