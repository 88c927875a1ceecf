"""What Estimators of the originals' backend "ray" can do."""

from __future__ import annotations

from orca.learn.base_estimator import BaseEstimator

__all__ = ["Estimator"]


class Estimator(BaseEstimator):
    """The base of Estimators with workers of their own."""
