"""The search engine, bound to Analytics Zoo."""

from orca.automl.search import ray_tune
from orca.automl.search.ray_tune import Analysis, TrialOutput, TrialResult
from zoo.orca.automl.auto_estimator import AutoEstimator

__all__ = ["Analysis", "RayTuneSearchEngine", "TrialOutput", "TrialResult"]


class RayTuneSearchEngine(ray_tune.RayTuneSearchEngine):
    """Searches in two steps: ``compile`` takes what to do, ``run`` does it."""

    _estimators = AutoEstimator
