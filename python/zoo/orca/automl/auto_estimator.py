"""AutoEstimator, bound to Analytics Zoo."""

from orca.automl import auto_estimator
from orca.generations import ZOO

__all__ = ["AutoEstimator"]


class AutoEstimator(auto_estimator.AutoEstimator):
    """Made by ``from_torch`` or ``from_keras``."""

    _generation = ZOO
