"""The Estimator for PyTorch, bound to Analytics Zoo."""

from orca.generations import ZOO
from orca.learn.pytorch.estimator import bind
from zoo.orca.common import OrcaContext

__all__ = ["Estimator"]

Estimator = bind(ZOO, OrcaContext)
