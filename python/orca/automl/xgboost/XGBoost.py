"""Trees of XGBoost that are fitted and measured in one call, by their old names."""

from orca.adapters.xgboost.model import XGBoost, XGBoostModelBuilder

__all__ = ["XGBoost", "XGBoostModelBuilder"]
