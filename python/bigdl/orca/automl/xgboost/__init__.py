"""Searches for the best trees of XGBoost, bound to BigDL 2.x."""

from bigdl.orca.automl.xgboost.auto_xgb import AutoXGBClassifier, AutoXGBRegressor
from orca.roots.modules import submodules

__getattr__ = submodules(__name__)

__all__ = ["AutoXGBClassifier", "AutoXGBRegressor"]
