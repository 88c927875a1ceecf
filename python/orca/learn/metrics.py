"""Metrics that estimators take: what to measure, for every backend.

The value does not depend on the number of workers: each of them adds its rows, the states are
merged, and empty parts change nothing. ``docs/metrics.md`` has the rule of each metric and what it
equals in scikit-learn.

Example:
    >>> import numpy as np
    >>> from orca.learn.metrics import Accuracy
    >>> metric = Accuracy().get_metric("bigdl")
    >>> metric(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    >>> metric.name, metric.compute()
    ('Top1Accuracy', 0.5)
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from orca.errors import InvalidArgumentError
from orca.learn.engine_metric import EngineMetric

if TYPE_CHECKING:
    from orca.adapters.torch.metrics import PytorchMetric

__all__ = [
    "AUC",
    "MAE",
    "MSE",
    "ROC",
    "Accuracy",
    "BinaryAccuracy",
    "BinaryCrossEntropy",
    "CategoricalAccuracy",
    "CategoricalCrossEntropy",
    "CustomizedMetric",
    "F1Score",
    "KLDivergence",
    "Metric",
    "Poisson",
    "Precision",
    "PrecisionRecallCurve",
    "Recall",
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossEntropy",
    "Top5Accuracy",
]

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class Metric(ABC):
    """What to measure. A subclass of a user's own overrides ``get_name`` and one of the backends."""

    def get_metric(self, backend: str = "bigdl") -> Any:
        """Return the object that measures for a backend.

        Args:
            backend: "bigdl", "pytorch", "tf" or "mxnet".

        Returns:
            A callable ``m(preds, targets)`` with ``compute()``, ``state()``, ``merge(bytes)`` and
            ``reset()``.

        Raises:
            InvalidArgumentError: The backend is unknown, or has no such metric.
        """
        known: dict[str, Callable[[], Any]] = {
            "bigdl": self.get_bigdl_metric,
            "pytorch": self.get_pytorch_metric,
            "tf": self.get_tf_metric,
            "mxnet": self.get_mxnet_metric,
        }
        if str(backend).lower() not in known:
            raise InvalidArgumentError(f"backend should be one of {list(known)}, but got {backend}")
        return known[str(backend).lower()]()

    def get_bigdl_metric(self) -> Any:
        """Return the metric of the backend "bigdl", which goes by the name of the BigDL engine."""
        raise self._not_implemented("bigdl")

    def get_pytorch_metric(self) -> PytorchMetric:
        """Return the metric of the backends of PyTorch."""
        raise self._not_implemented("pytorch")

    def get_tf_metric(self) -> Any:
        """Return the metric of the backend "tf"."""
        raise self._not_implemented("tf")

    def get_mxnet_metric(self) -> Any:
        """Return the metric of the backend "mxnet"."""
        raise self._not_implemented("mxnet")

    @abstractmethod
    def get_name(self) -> str:
        """Return the name in the results of the backends of PyTorch."""

    def _not_implemented(self, backend: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"not implemented: {self.get_name()} has no metric for the backend {backend!r}"
        )

    @staticmethod
    def convert_metrics_list(metrics: Any, backend: str = "bigdl") -> list[Any] | None:
        """Return what measures for a backend, for one metric or function or a list of them.

        Raises:
            InvalidArgumentError: One is neither a metric nor a function.
        """
        if metrics is None:
            return None
        return [metric.get_metric(backend) for metric in _each(metrics)]

    @staticmethod
    def convert_metrics_dict(metrics: Any, backend: str = "bigdl") -> dict[str, Any]:
        """As ``convert_metrics_list``, by name.

        Raises:
            InvalidArgumentError: One is neither a metric nor a function, or a function has the name
                of another one.
        """
        converted: dict[str, Any] = {}
        for metric in [] if metrics is None else _each(metrics):
            name = metric.get_name()
            if name in converted and isinstance(metric, CustomizedMetric):
                raise InvalidArgumentError(
                    f"two metrics have the name {name!r}; give the function one of its own"
                )
            converted[name] = metric.get_metric(backend)
        return converted


def _each(metrics: Any) -> Iterator[Metric]:
    for metric in metrics if isinstance(metrics, list | tuple) else [metrics]:
        if isinstance(metric, Metric):
            yield metric
        elif isinstance(metric, _FUNCTIONS):
            yield CustomizedMetric(metric)
        else:
            raise InvalidArgumentError(
                "Only orca metrics and customized functions are supported, "
                f"but get {type(metric).__name__}"
            )


def _torch_metrics() -> Any:
    try:
        from orca.adapters.torch import metrics
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("the backend 'pytorch' needs torch; run: pip install torch") from error
    return metrics


class CustomizedMetric(Metric):
    """A function ``f(preds, targets)`` of a user's own: its mean over batches, by their rows."""

    def __init__(self, compute_function: Callable[[Any, Any], Any]) -> None:
        self.compute_function = compute_function

    def get_pytorch_metric(self) -> PytorchMetric:  # noqa: D102
        made: PytorchMetric = _torch_metrics().FunctionMetric(self.compute_function)
        return made

    def get_name(self) -> str:  # noqa: D102
        return str(self.compute_function.__name__)


class _NamedMetric(Metric):
    """A metric of the engine."""

    engine_name: ClassVar[str | None] = None
    """The name in the results of the backend "bigdl"; None where it has no such metric."""
    _name: ClassVar[str]

    def get_bigdl_metric(self) -> EngineMetric:
        if self.engine_name is None:
            raise self._not_implemented("bigdl")
        return EngineMetric(self._name, self.engine_name, **self._bigdl_options())

    def get_pytorch_metric(self) -> PytorchMetric:
        made: PytorchMetric = getattr(_torch_metrics(), self._name)()
        return made

    def get_name(self) -> str:
        return self._name

    def _bigdl_options(self) -> dict[str, Any]:
        return {}


class AUC(_NamedMetric):
    """The area under the ROC curve of labels 0 and 1; the mean over columns of several labels.

    Args:
        threshold_num: Under the backend "bigdl" the area is estimated from so many thresholds, as
            that engine does. Elsewhere it is exact.
    """

    engine_name = "AucScore"
    _name = "AUC"

    def __init__(self, threshold_num: int = 200) -> None:
        self.threshold_num = threshold_num

    def _bigdl_options(self) -> dict[str, Any]:
        return {"threshold_num": self.threshold_num}


class MAE(_NamedMetric):
    """The mean absolute error of all elements."""

    engine_name = "MAE"
    _name = "MAE"


class MSE(_NamedMetric):
    """The mean squared error of all elements."""

    engine_name = "MSE"
    _name = "MSE"


class Accuracy(_NamedMetric):
    """How many labels were predicted, of several classes or of 0 and 1.

    Args:
        zero_based_label: Whether the first of several classes is label 0; if not, it is label 1,
            which the backends of PyTorch refuse.
    """

    engine_name = "Top1Accuracy"
    _name = "Accuracy"

    def __init__(self, zero_based_label: bool = True) -> None:
        self.zero_based_label = zero_based_label

    def get_pytorch_metric(self) -> PytorchMetric:  # noqa: D102
        if not self.zero_based_label:
            raise InvalidArgumentError(
                "zero_based_label=False is not supported with pytorch; subtract 1 from the labels "
                "and set zero_based_label to True"
            )
        return super().get_pytorch_metric()

    def _bigdl_options(self) -> dict[str, Any]:
        return {"zero_based_label": self.zero_based_label}


class SparseCategoricalAccuracy(_NamedMetric):
    """How many labels, given as integers, have the highest score."""

    engine_name = "Top1Accuracy"
    _name = "SparseCategoricalAccuracy"


class CategoricalAccuracy(_NamedMetric):
    """How many labels, given as one-hot rows, have the highest score."""

    engine_name = "Top1Accuracy"
    _name = "CategoricalAccuracy"


class BinaryAccuracy(_NamedMetric):
    """How many labels 0 and 1 are predicted by scores above 0.5."""

    engine_name = "Top1Accuracy"
    _name = "BinaryAccuracy"


class Top5Accuracy(_NamedMetric):
    """How many labels are among the five highest scores."""

    engine_name = "Top5Accuracy"
    _name = "Top5Accuracy"


class BinaryCrossEntropy(_NamedMetric):
    """The mean cross entropy of labels 0 and 1 and probabilities."""

    _name = "BinaryCrossEntropy"


class CategoricalCrossEntropy(_NamedMetric):
    """The mean cross entropy of one-hot rows and probabilities."""

    _name = "CategoricalCrossEntropy"


class SparseCategoricalCrossEntropy(_NamedMetric):
    """The mean cross entropy of labels as integers and probabilities."""

    _name = "SparseCategoricalCrossEntropy"


class KLDivergence(_NamedMetric):
    """The mean Kullback-Leibler divergence of the targets from the predictions."""

    _name = "KLDivergence"


class Poisson(_NamedMetric):
    """The mean of ``preds - targets * log(preds)``."""

    _name = "Poisson"


class ROC(_NamedMetric):
    """The rates of false and true positives at every threshold, and the thresholds."""

    _name = "ROC"


class F1Score(_NamedMetric):
    """The harmonic mean of precision and recall."""

    _name = "F1Score"


class Precision(_NamedMetric):
    """How many of the predicted positives are positive."""

    _name = "Precision"


class Recall(_NamedMetric):
    """How many of the positives were predicted."""

    _name = "Recall"


class PrecisionRecallCurve(_NamedMetric):
    """Precision and recall at every threshold, and the thresholds."""

    _name = "PrecisionRecallCurve"
