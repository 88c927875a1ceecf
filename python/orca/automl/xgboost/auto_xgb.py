"""AutoEstimators of XGBoost's regressors and classifiers."""

from __future__ import annotations

from typing import Any

from orca.automl.auto_estimator import AutoEstimator
from orca.generations import translated
from orca.tune.arguments import count

__all__ = ["AutoXGBClassifier", "AutoXGBRegressor"]


class _AutoXGB(AutoEstimator):
    kind = ""

    @translated
    def __init__(
        self,
        logs_dir: str | None,
        cpus_per_trial: int = 1,
        name: str | None = None,
        remote_dir: str | None = None,
        **xgb_configs: Any,
    ) -> None:
        from orca.adapters.xgboost.model import XGBoostModelBuilder

        cpus_per_trial = count("cpus_per_trial", cpus_per_trial, 1)
        builder = XGBoostModelBuilder(self.kind, cpus_per_trial, **xgb_configs)
        resources = {"cpu": cpus_per_trial}
        super().__init__(
            builder.spec, logs_dir, resources, name or f"auto_xgb_{self.kind}", remote_dir
        )

    def _metric(
        self, metric: Any, metric_mode: str | None, mode: str | None
    ) -> tuple[str, Any, str]:
        given = self._spec.default_metric if metric is None else metric
        return super()._metric(given, metric_mode, mode)


class AutoXGBClassifier(_AutoXGB):
    """Searches for the best ``xgboost.XGBClassifier``; ``fit`` and the rest as those of ``AutoEstimator``.

    One report is one fit of all rounds; ``get_best_model()`` is a fitted ``XGBClassifier``. ``data`` is ``(x, y)``, a creator
    ``f(config)`` of it, shards, or a data frame with ``feature_cols`` and ``label_cols``. ``metric`` is a name of XGBoost (``"error"``,
    ``"logloss"``, ``"auc"`` ...), one of ``Evaluator``, or ``f(y_true, y_pred)``.

    Args:
        logs_dir: Where the folders of trials are; None: ``auto_xgb_classifier_logs`` (of the regressor
            ``auto_xgb_regressor_logs``) in ``$ORCA_HOME`` (``~/.orca``).
        cpus_per_trial: Cores of a trial, and its ``n_jobs``.
        name: Of the folder in ``logs_dir``.
        remote_dir: Where the folders of trials are copied to while they grow.
        **xgb_configs: Parameters of ``XGBClassifier`` that all trials have.

    Example:
        >>> from orca.automl.xgboost import AutoXGBClassifier
        >>> AutoXGBClassifier(cpus_per_trial=2, n_estimators=50).name  # doctest: +SKIP
        'auto_xgb_classifier'
    """

    kind = "classifier"
    _default_logs = "auto_xgb_classifier_logs"

    def __init__(
        self,
        logs_dir: str | None = None,
        cpus_per_trial: int = 1,
        name: str | None = None,
        remote_dir: str | None = None,
        **xgb_configs: Any,
    ) -> None:
        super().__init__(logs_dir, cpus_per_trial, name, remote_dir, **xgb_configs)


class AutoXGBRegressor(_AutoXGB):
    """Searches for the best ``xgboost.XGBRegressor``; see ``AutoXGBClassifier``."""

    kind = "regressor"
    _default_logs = "auto_xgb_regressor_logs"

    def __init__(
        self,
        logs_dir: str | None = None,
        cpus_per_trial: int = 1,
        name: str | None = None,
        remote_dir: str | None = None,
        **xgb_configs: Any,
    ) -> None:
        super().__init__(logs_dir, cpus_per_trial, name, remote_dir, **xgb_configs)
