"""The Estimator for PyTorch, bound to BigDL 2.x."""

from bigdl.orca.common import OrcaContext
from orca.generations import BIGDL
from orca.learn.pytorch.estimator import bind

__all__ = ["Estimator"]

Estimator = bind(BIGDL, OrcaContext)
