"""The search engine, bound to BigDL 2.x."""

from bigdl.orca.automl.auto_estimator import AutoEstimator
from orca.automl.search import ray_tune
from orca.automl.search.ray_tune import Analysis, TrialOutput, TrialResult

__all__ = ["Analysis", "RayTuneSearchEngine", "TrialOutput", "TrialResult"]


class RayTuneSearchEngine(ray_tune.RayTuneSearchEngine):
    """Searches in two steps: ``compile`` takes what to do, ``run`` does it."""

    _estimators = AutoEstimator
