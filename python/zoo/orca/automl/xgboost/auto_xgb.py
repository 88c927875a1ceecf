"""AutoEstimators of XGBoost's regressors and classifiers, bound to Analytics Zoo."""

from __future__ import annotations

from typing import Any

from orca.automl.xgboost import auto_xgb
from zoo.orca.automl.auto_estimator import AutoEstimator

__all__ = ["AutoXGBClassifier", "AutoXGBRegressor"]


class AutoXGBClassifier(auto_xgb.AutoXGBClassifier, AutoEstimator):
    """Searches for the best ``xgboost.XGBClassifier``."""


class AutoXGBRegressor(auto_xgb.AutoXGBRegressor, AutoEstimator):
    """Searches for the best ``xgboost.XGBRegressor``."""

    def __init__(
        self,
        logs_dir: str = "~/auto_xgb_regressor_logs",
        cpus_per_trial: int = 1,
        name: str | None = None,
        remote_dir: str | None = None,
        **xgb_configs: Any,
    ) -> None:
        super().__init__(logs_dir, cpus_per_trial, name, remote_dir, **xgb_configs)
