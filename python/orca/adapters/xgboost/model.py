"""Trees of XGBoost that are fitted and measured in one call: what a trial does."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orca.automl.metrics import Evaluator
from orca.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from orca.files import read_sealed, sealed, write_whole

try:
    import xgboost
except ModuleNotFoundError as missing:
    raise ImportError(
        "XGBoost is not installed; run 'pip install xgboost' (or xgboost-cpu, which is smaller)"
    ) from missing

__all__ = [
    "XGBoost",
    "XGBoostModelBuilder",
    "metric_mode",
    "parameters",
    "typos",
    "unknown_names",
]

_KINDS = {"regressor": xgboost.XGBRegressor, "classifier": xgboost.XGBClassifier}
_METRICS = {"regressor": "rmse", "classifier": "logloss"}
_DEFAULTS = {
    "n_estimators": 1000,
    "max_depth": 5,
    "tree_method": "hist",
    "learning_rate": 0.1,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "random_state": 2,
    "verbosity": 0,
}
# XGBoost's own names, and those of the original's examples.
_OTHER_NAMES = {
    "lr": "learning_rate",
    "eta": "learning_rate",
    "alpha": "reg_alpha",
    "lambda": "reg_lambda",
    "min_split_loss": "gamma",
    "seed": "random_state",
}
# Of two classes, and of more.
_OF_CLASSES = dict.fromkeys(("error", "merror"), ("error", "merror"))
_OF_CLASSES |= dict.fromkeys(("logloss", "mlogloss"), ("logloss", "mlogloss"))
_LARGER_IS_BETTER = ("auc", "aucpr", "pre", "ndcg", "map", "interval-regression-accuracy")
_SMALLER_IS_BETTER = (
    "rmse",
    "rmsle",
    "mae",
    "mape",
    "mphe",
    "logloss",
    "error",
    "merror",
    "mlogloss",
    "quantile",
    "expectile",
    "poisson-nloglik",
    "gamma-nloglik",
    "gamma-deviance",
    "tweedie-nloglik",
    "cox-nloglik",
    "aft-nloglik",
)


def metric_mode(metric: str) -> str | None:
    """``"min"`` or ``"max"`` for a metric that XGBoost measures itself, such as ``"error@0.7"``; else None."""
    name = metric.partition("@")[0]
    if name in _LARGER_IS_BETTER:
        return "max"
    return "min" if name in _SMALLER_IS_BETTER else None


def parameters(kind: str) -> frozenset[str]:
    """The names that a configuration may have for XGBoost; others are the data creator's."""
    return frozenset(_KINDS[_known(kind)]().get_params()) | _OTHER_NAMES.keys() | {"metric"}


_NEAR = (
    0.8  # How alike a typo and a name are; creators' own names, such as "features", are less so.
)


def unknown_names(kind: str, names: Iterable[str]) -> dict[str, list[str]]:
    """Those that a configuration has not for XGBoost, each with the parameters that it is near to."""
    known = parameters(kind)
    return {
        name: difflib.get_close_matches(name, known, cutoff=_NEAR)
        for name in names
        if name not in known
    }


def typos(unknown: Mapping[str, Sequence[str]]) -> str:
    """Says what is likely meant by names that are near to parameters; empty when there are none."""
    return "; ".join(
        f"{name!r} is no parameter of XGBoost, did you mean {' or '.join(map(repr, near))}?"
        for name, near in unknown.items()
        if near
    )


def _known(kind: str) -> str:
    if kind not in _KINDS:
        raise InvalidArgumentError(
            f'model_type can only be "regressor" or "classifier", not {kind!r}'
        )
    return kind


class XGBoost:
    """A regressor or a classifier of XGBoost.

    Args:
        model_type: ``"regressor"`` or ``"classifier"``.
        config: Parameters of ``xgboost.XGBRegressor`` or ``XGBClassifier``, and ``"metric"``. What is not theirs is left alone.

    Attributes:
        model: The fitted ``XGBRegressor`` or ``XGBClassifier``, None before.

    Example:
        >>> import numpy as np
        >>> from orca.automl.xgboost.XGBoost import XGBoost  # doctest: +SKIP
        >>> x = np.arange(20.0).reshape(20, 1)
        >>> model = XGBoost(config={"n_estimators": 5})  # doctest: +SKIP
        >>> sorted(model.fit_eval((x, x[:, 0]), (x, x[:, 0]), metric="mae"))  # doctest: +SKIP
        ['mae']
    """

    def __init__(self, model_type: str = "regressor", config: dict[str, Any] | None = None) -> None:
        self.model_type = _known(model_type)
        self.config = dict(config or {})
        self.model: Any = None

    def _new(self) -> Any:
        known = _KINDS[self.model_type]
        names = known().get_params()
        given = {_OTHER_NAMES.get(name, name): value for name, value in self.config.items()}
        return known(**_DEFAULTS | {name: given[name] for name in given if name in names})

    def fit_eval(
        self,
        data: Any,
        validation_data: Any = None,
        metric: str | Callable[[Any, Any], Any] | None = None,
        metric_func: Callable[[Any, Any], Any] | None = None,
        **config: Any,
    ) -> dict[str, float]:
        """Fits on all rows, from the beginning, and measures.

        Args:
            data: ``(x, y)``, or a creator ``f(config)`` of it.
            validation_data: As ``data``, or a list with one such; required.
            metric: A name of XGBoost, of ``Evaluator``, or that of ``metric_func``; or a function such as that.
            metric_func: ``f(y_true, y_pred)``.
            **config: More parameters.

        Returns:
            The metric, by its name. Where training stops early (``early_stopping_rounds``), of the best round.
        """
        self.config |= config
        if isinstance(validation_data, list) and len(validation_data) == 1:
            validation_data = validation_data[0]
        if validation_data is None:
            raise InvalidArgumentError("You must input validation data!")
        if callable(metric):
            metric, metric_func = None, metric
        default = self.config.get("metric", _METRICS[self.model_type])
        if metric_func is not None:
            default = getattr(metric_func, "__name__", "metric")
        name: str = default if metric is None else metric
        is_own = metric_func is None and metric_mode(name) is not None
        if metric_func is None and not is_own:
            Evaluator.check_metric(name)
            metric_func = Evaluator.metrics_func[name.lower()]
        x, y = self._rows(data)
        held_x, held_y = self._rows(validation_data)
        model = self._new()
        if is_own:
            model.set_params(eval_metric=self._own_name(name, y))
        model.fit(x, y, eval_set=[(held_x, held_y)], verbose=False)
        self.model = model
        if metric_func is not None:
            return {name: float(np.mean(metric_func(held_y, model.predict(held_x))))}
        (values,) = model.evals_result()["validation_0"].values()
        stops_early = model.get_params()["early_stopping_rounds"] is not None
        return {name: float(values[model.best_iteration if stops_early else -1])}

    def _own_name(self, name: str, y: Any) -> str:
        """What XGBoost calls a metric: those of classes have other names where there are more than two."""
        base, at, _ = name.partition("@")
        if self.model_type != "classifier" or base not in _OF_CLASSES:
            return name
        classes = len(np.unique(y))
        if classes > 2 and at:
            raise InvalidArgumentError(
                f"metric {name!r} is of two classes, and y has {classes}; give 'error'"
            )
        return name if at else _OF_CLASSES[base][classes > 2]

    def _rows(self, data: Any) -> tuple[Any, Any]:
        found = data(dict(self.config)) if callable(data) else data
        if not isinstance(found, tuple | list) or len(found) != 2:
            who, do = (
                ("the data creator returned", "return") if callable(data) else ("data is", "give")
            )
            raise InvalidArgumentError(f"{who} a {type(found).__name__}; {do} (x, y)")
        x, y = found
        return x, np.ravel(y) if np.ndim(y) == 2 and np.shape(y)[1] == 1 else y

    def _fitted(self) -> Any:
        if self.model is None:
            raise FailedPreconditionError(
                "Needs to call fit_eval or restore first before calling predict, evaluate or save"
            )
        return self.model

    def predict(self, x: Any) -> Any:
        """What the trees say of rows."""
        return self._fitted().predict(x)

    def evaluate(self, x: Any, y: Any, metrics: Any = ("mse",)) -> list[Any]:
        """Metrics in turn: names of ``Evaluator`` and functions ``f(y_true, y_pred)``, several or one."""
        found = self.predict(x)
        truth = np.asarray(y).reshape(np.shape(found))
        wanted = [metrics] if isinstance(metrics, str) or callable(metrics) else metrics
        return [Evaluator.evaluate(metric, truth, found) for metric in wanted]

    def to_bytes(self) -> bytes:
        """The trees in XGBoost's own binary format."""
        return bytes(self._fitted().get_booster().save_raw("ubj"))

    def from_bytes(self, trees: bytes) -> None:
        """Takes trees of ``to_bytes``."""
        model = self._new()
        model.load_model(bytearray(trees))
        self.model = model

    def save(self, model_file: str | os.PathLike[str]) -> None:
        """Writes the trees, completely or not at all."""
        trees = sealed(self.to_bytes())
        write_whole(Path(model_file), lambda file: file.write(trees), is_private=False)

    def restore(self, model_file: str | os.PathLike[str]) -> None:
        """Reads them."""
        trees = read_sealed(Path(model_file))
        try:
            if not trees:  # XGBoost would end the process.
                raise ValueError("it is empty")
            self.from_bytes(trees)
        except ValueError as error:
            why = (str(error).splitlines() or [""])[0]
            raise UnavailableError(
                f"{model_file} is damaged, or not a model of XGBoost: {why}; use another copy of it, "
                "or write it again"
            ) from error


class XGBoostModelBuilder:
    """Makes an ``XGBoost`` of a configuration.

    Args:
        model_type: ``"regressor"`` or ``"classifier"``.
        cpus_per_trial: Threads of XGBoost.
        **xgb_configs: Parameters that all have; a configuration's come before them.
    """

    def __init__(
        self, model_type: str = "regressor", cpus_per_trial: int = 1, **xgb_configs: Any
    ) -> None:
        self.model_type = _known(model_type)
        if wrong := typos(unknown_names(model_type, xgb_configs)):
            raise InvalidArgumentError(wrong)
        self.model_config = xgb_configs | {"n_jobs": cpus_per_trial}

    def build(self, config: dict[str, Any]) -> XGBoost:
        """Its model, not fitted."""
        own = self.model_config | config | {"n_jobs": self.model_config["n_jobs"]}
        return XGBoost(self.model_type, own)

    def build_from_ckpt(self, checkpoint_filename: str) -> XGBoost:
        """The model of a file that ``XGBoost.save`` wrote."""
        model = self.build({})
        model.restore(checkpoint_filename)
        return model

    @property
    def spec(self) -> Any:
        """What trials of a search have in common."""
        from orca.adapters.xgboost.tuning import XGBoostSpec

        return XGBoostSpec(self)
