"""AutoEstimator, bound to BigDL 2.x."""

from orca.automl import auto_estimator
from orca.generations import BIGDL

__all__ = ["AutoEstimator"]


class AutoEstimator(auto_estimator.AutoEstimator):
    """Made by ``from_torch`` or ``from_keras``."""

    _generation = BIGDL
