"""Searches for the best trees of XGBoost, bound to Analytics Zoo."""

from orca.roots.modules import submodules
from zoo.orca.automl.xgboost.auto_xgb import AutoXGBClassifier, AutoXGBRegressor

__getattr__ = submodules(__name__)

__all__ = ["AutoXGBClassifier", "AutoXGBRegressor"]
