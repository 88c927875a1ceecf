"""Names of Keras's metrics; imports no framework."""

from __future__ import annotations

from orca.automl.metrics import Evaluator

_SAME = (
    ("mse", "mean_squared_error"),
    ("mae", "mean_absolute_error"),
    ("mape", "mean_absolute_percentage_error"),
    ("msle", "mean_squared_logarithmic_error"),
    ("rmse", "root_mean_squared_error"),
    ("r2", "r2_score"),
    (
        "accuracy",
        "acc",
        "binary_accuracy",
        "categorical_accuracy",
        "sparse_categorical_accuracy",
    ),
)
_LARGE_IS_GOOD = {
    "auc",
    "cosine_similarity",
    "f1_score",
    "fbeta_score",
    "precision",
    "r2_score",
    "recall",
    "sparse_top_k_categorical_accuracy",
    "top_k_categorical_accuracy",
}
_SMALL_IS_GOOD = {
    "binary_crossentropy",
    "categorical_crossentropy",
    "categorical_hinge",
    "hinge",
    "kl_divergence",
    "poisson",
    "sparse_categorical_crossentropy",
    "squared_hinge",
}


def same_metrics(name: str) -> tuple[str, ...]:
    """All names of a metric, its own included; what Keras calls ``accuracy`` depends on the labels.

    Example:
        >>> same_metrics("MSE")
        ('mse', 'mean_squared_error')
    """
    own = name.lower()
    return next((names for names in _SAME if own in names), (own,))


def mode_of(name: str) -> str | None:
    """``"min"`` or ``"max"``; None for names that are not known.

    Example:
        >>> mode_of("sparse_categorical_accuracy"), mode_of("mean_squared_error"), mode_of("mine")
        ('max', 'min', None)
    """
    for each in same_metrics(name):
        if each in Evaluator.metrics_func:
            return Evaluator.get_metric_mode(each)
        if each in _LARGE_IS_GOOD:
            return "max"
        if each in _SMALL_IS_GOOD:
            return "min"
    return None
