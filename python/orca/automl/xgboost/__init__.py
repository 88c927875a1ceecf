"""Searches for the best trees of XGBoost."""

from orca.automl.xgboost.auto_xgb import AutoXGBClassifier, AutoXGBRegressor

__all__ = ["AutoXGBClassifier", "AutoXGBRegressor"]
