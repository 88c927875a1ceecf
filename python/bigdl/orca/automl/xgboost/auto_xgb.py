"""AutoEstimators of XGBoost's regressors and classifiers, bound to BigDL 2.x."""

from bigdl.orca.automl.auto_estimator import AutoEstimator
from orca.automl.xgboost import auto_xgb

__all__ = ["AutoXGBClassifier", "AutoXGBRegressor"]


class AutoXGBClassifier(auto_xgb.AutoXGBClassifier, AutoEstimator):
    """Searches for the best ``xgboost.XGBClassifier``."""


class AutoXGBRegressor(auto_xgb.AutoXGBRegressor, AutoEstimator):
    """Searches for the best ``xgboost.XGBRegressor``."""
