"""Metrics of predictions by their names: what ``AutoEstimator.fit(metric=...)`` takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from orca.errors import InvalidArgumentError

__all__ = [
    "MAE",
    "MAPE",
    "MDAPE",
    "ME",
    "MPE",
    "MSE",
    "MSLE",
    "MSPE",
    "R2",
    "RMSE",
    "Accuracy",
    "Evaluator",
    "sMAPE",
    "sMDAPE",
]

_EPSILON = 1e-10
Array = np.ndarray[Any, Any]


def _rows(y_true: Any, y_pred: Any) -> tuple[Array, Array, tuple[int, ...]]:
    """Both as tables of floats, and the shape of one row."""
    truth, found = np.asarray(y_true, dtype=np.float64), np.asarray(y_pred, dtype=np.float64)
    if _narrow(truth).shape != _narrow(found).shape:
        raise InvalidArgumentError(
            f"y_true has the shape {truth.shape}, y_pred {found.shape}; they must be the same"
        )
    _check_rows(truth, found)
    return truth.reshape(len(truth), -1), found.reshape(len(truth), -1), truth.shape[1:]


def _narrow(array: Array) -> Array:
    """Without the axes of length 1 that a row has: a column is the same as its numbers."""
    return array.reshape(array.shape[:1] + tuple(size for size in array.shape[1:] if size != 1))


def first_not_finite(values: Any) -> int | None:
    """The first row of an array that has a number that is NaN or infinite."""
    array = np.asarray(values)
    if array.ndim == 0 or array.dtype.kind not in "fc":
        return None
    good = np.isfinite(array)
    if good.all():
        return None
    return int(np.argmin(good.reshape(len(array), -1).all(axis=1)))


def _check_rows(truth: Array, found: Array) -> None:
    if truth.ndim == 0 or len(truth) == 0:
        raise InvalidArgumentError("there is no row to compare")
    for name, values in (("y_true", truth), ("y_pred", found)):
        if (row := first_not_finite(values)) is not None:
            raise InvalidArgumentError(
                f"row {row} of {name} is not finite: {values[row]}; a metric is of numbers"
            )


def _joined(values: Array, shape: tuple[int, ...], multioutput: str) -> Any:
    if multioutput == "uniform_average":
        return float(np.mean(values))
    if multioutput == "raw_values":
        return values.reshape(shape)
    raise InvalidArgumentError(
        f"multioutput {multioutput!r} is not known; give 'raw_values' or 'uniform_average'"
    )


def _metric(
    name: str,
    of: Callable[[Array, Array], Array],
    what: str,
    default: str,
    then: Callable[[Any], Any] = lambda value: value,
) -> Any:
    def metric(y_true: Any, y_pred: Any, multioutput: str = default) -> Any:
        truth, found, shape = _rows(y_true, y_pred)
        return then(_joined(of(truth, found), shape, multioutput))

    metric.__name__ = metric.__qualname__ = name
    metric.__doc__ = (
        f"{what}; of each output, or with ``multioutput='uniform_average'`` their mean."
    )
    return metric


def _msle(truth: Array, found: Array) -> Array:
    if (truth < 0).any() or (found < 0).any():
        raise InvalidArgumentError("MSLE is of numbers that are not negative")
    return np.mean((np.log1p(truth) - np.log1p(found)) ** 2, axis=0)


def _relative(truth: Array, found: Array) -> Array:
    return (truth - found) / (truth + _EPSILON)


def _symmetric(truth: Array, found: Array) -> Array:
    return np.abs(truth - found) / (np.abs(truth) + np.abs(found) + _EPSILON)


def _root(value: Any) -> Any:
    """Of the mean over all outputs, as BigDL's, not the mean of their roots."""
    return np.asarray(np.sqrt(value)) if isinstance(value, np.ndarray) else math.sqrt(value)


_RAW, _MEAN = "raw_values", "uniform_average"
ME = _metric("ME", lambda t, p: np.mean(t - p, axis=0), "Mean error", _RAW)
MAE = _metric("MAE", lambda t, p: np.mean(np.abs(t - p), axis=0), "Mean absolute error", _RAW)
MSE = _metric("MSE", lambda t, p: np.mean((t - p) ** 2, axis=0), "Mean squared error", _MEAN)
RMSE = _metric(
    "RMSE",
    lambda t, p: np.mean((t - p) ** 2, axis=0),
    "Root of the mean squared error",
    _RAW,
    _root,
)
MSLE = _metric("MSLE", _msle, "Mean squared error of the logarithms", _RAW)
MPE = _metric(
    "MPE", lambda t, p: 100 * np.mean(_relative(t, p), axis=0), "Mean error in per cent", _RAW
)
MAPE = _metric(
    "MAPE",
    lambda t, p: 100 * np.mean(np.abs(_relative(t, p)), axis=0),
    "Mean absolute error in per cent",
    _RAW,
)
MSPE = _metric(
    "MSPE",
    lambda t, p: 100 * np.mean(_relative(t, p) ** 2, axis=0),
    "Mean squared error in per cent",
    _RAW,
)
sMAPE = _metric(  # noqa: N816  # Its name in the old API.
    "sMAPE",
    lambda t, p: 100 * np.mean(_symmetric(t, p), axis=0),
    "Mean absolute error in per cent of the sum of both sizes",
    _RAW,
)
MDAPE = _metric(
    "MDAPE",
    lambda t, p: 100 * np.median(np.abs(_relative(t, p)), axis=0),
    "Median absolute error in per cent",
    _RAW,
)
sMDAPE = _metric(  # noqa: N816  # Its name in the old API.
    "sMDAPE",
    lambda t, p: 100 * np.median(_symmetric(t, p), axis=0),
    "Median absolute error in per cent of the sum of both sizes",
    _RAW,
)


def R2(y_true: Any, y_pred: Any, multioutput: str = _RAW) -> Any:  # noqa: N802
    """The part of the variance that is explained; of each output, or joined.

    Args:
        y_true: What is true.
        y_pred: What was predicted.
        multioutput: Also ``"variance_weighted"``.
    """
    truth, found, shape = _rows(y_true, y_pred)
    residual = ((truth - found) ** 2).sum(axis=0)
    total = ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
    scores = np.where(residual == 0, 1.0, 0.0)
    np.divide(residual, total, out=residual, where=total > 0)
    scores = np.where(total > 0, 1 - residual, scores)
    if multioutput == "variance_weighted":
        return float(np.average(scores, weights=total)) if total.any() else float(scores.mean())
    return _joined(scores, shape, multioutput)


def Accuracy(y_true: Any, y_pred: Any, multioutput: str | None = None) -> float:  # noqa: N802
    """The part of the rows whose class is right.

    Args:
        y_true: Classes, or rows of labels.
        y_pred: Classes, probabilities of class 1, or a row of scores for each row. A row of labels is right as a whole.
        multioutput: Accepted.
    """
    truth, found = (_narrow(np.atleast_1d(np.asarray(side))) for side in (y_true, y_pred))
    _check_rows(truth, found)
    has_parts = found.dtype.kind == "f" and bool((np.mod(found, 1) != 0).any())
    are_scores = found.ndim > truth.ndim or (has_parts and found.ndim > 1)
    if are_scores:
        found = np.argmax(found, axis=-1)
    elif has_parts:
        found = found > 0.5
    if truth.shape != found.shape:
        raise InvalidArgumentError(
            f"y_true has the shape {truth.shape}, the predicted classes {found.shape}; give a class for each row"
        )
    right = truth == found
    return float(np.mean(right if are_scores else right.reshape(len(right), -1).all(axis=1)))


_METRICS: dict[str, Callable[..., Any]] = {
    "me": ME,
    "mae": MAE,
    "mse": MSE,
    "rmse": RMSE,
    "msle": MSLE,
    "r2": R2,
    "mpe": MPE,
    "mape": MAPE,
    "mspe": MSPE,
    "smape": sMAPE,
    "mdape": MDAPE,
    "smdape": sMDAPE,
    "accuracy": Accuracy,
}


class Evaluator:
    """Metrics by name.

    Example:
        >>> from orca.automl.metrics import Evaluator
        >>> Evaluator.evaluate("mae", [1.0, 2.0], [1.5, 2.5], multioutput="uniform_average")
        0.5
    """

    max_mode_metrics = ("r2", "accuracy")
    metrics_func = _METRICS

    @staticmethod
    def evaluate(metric: Any, y_true: Any, y_pred: Any, multioutput: str = _RAW) -> Any:
        """The value of a metric: a name, or a function ``f(y_true, y_pred)``."""
        if callable(metric):
            return metric(y_true, y_pred)
        Evaluator.check_metric(metric)
        return _METRICS[metric.lower()](y_true, y_pred, multioutput=multioutput)

    @staticmethod
    def check_metric(metric: str) -> None:
        """Raises when a name is not known, listing those that are."""
        if not isinstance(metric, str) or not metric:
            raise InvalidArgumentError(
                f"metric {metric!r} is no name; give one of {', '.join(_METRICS)}"
            )
        if metric.lower() not in _METRICS:
            raise InvalidArgumentError(
                f"metric {metric} is not supported; known: {', '.join(_METRICS)}"
            )

    @staticmethod
    def get_metric_mode(metric: str) -> str:
        """``"max"`` or ``"min"``."""
        Evaluator.check_metric(metric)
        return "max" if metric.lower() in Evaluator.max_mode_metrics else "min"
