"""Metrics on tensors; ``orca.learn.pytorch.pytorch_metrics`` is their public name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.learn.engine_metric import EngineMetric, as_array

__all__ = [
    "AUC",
    "AUROC",
    "MAE",
    "MSE",
    "ROC",
    "Accuracy",
    "BinaryAccuracy",
    "BinaryCrossEntropy",
    "CategoricalAccuracy",
    "CategoricalCrossEntropy",
    "F1Score",
    "FunctionMetric",
    "KLDivergence",
    "Mean",
    "Poisson",
    "Precision",
    "PrecisionRecallCurve",
    "PytorchMetric",
    "Recall",
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossEntropy",
    "Top5Accuracy",
]


class PytorchMetric(ABC):
    """A callable that is given batches and computes a tensor of all of them.

    A class of a user's own needs ``__call__`` and ``compute``; to be merged over workers, ``state``
    and ``merge`` as well.
    """

    @abstractmethod
    def __call__(self, preds: Any, targets: Any) -> None:
        """Add a batch."""

    @abstractmethod
    def compute(self) -> Any:
        """Return the value of all batches."""

    def state(self) -> bytes:
        """Return all that was added, for ``merge`` in another process."""
        raise self._cannot("state")

    def merge(self, state: bytes) -> None:
        """Add what another metric of this kind has seen."""
        raise self._cannot("merge")

    def reset(self) -> None:
        """Forget everything."""
        raise self._cannot("reset")

    def _cannot(self, method: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{type(self).__name__} has no {method}(); define it to measure on several workers"
        )


class _EngineTorchMetric(PytorchMetric):
    """A metric of the engine, with tensors as results."""

    _name: ClassVar[str]

    def __init__(self) -> None:
        self._engine = EngineMetric(self._name)

    def __call__(self, preds: Any, targets: Any) -> None:
        self._engine(preds, targets)

    def compute(self) -> Any:
        value = self._engine.value()
        if isinstance(value, float):
            return torch.tensor(value, dtype=torch.float64)
        return tuple(torch.from_numpy(array) for array in value.values())

    def state(self) -> bytes:
        return self._engine.state()

    def merge(self, state: bytes) -> None:
        self._engine.merge(state)

    def reset(self) -> None:
        self._engine.reset()


class Accuracy(_EngineTorchMetric):
    """How many labels were predicted.

    Predictions of the targets' shape are labels, or probabilities that mean 1 from 0.5 on. With one
    dimension more they are the scores of the classes.

    Example:
        >>> accuracy = Accuracy()
        >>> accuracy(torch.tensor([0, 2, 3, 4]), torch.tensor([1, 2, 3, 4]))
        >>> float(accuracy.compute())
        0.75
    """

    _name = "Accuracy"


class SparseCategoricalAccuracy(_EngineTorchMetric):
    """How many labels, given as integers, have the highest score."""

    _name = "SparseCategoricalAccuracy"


class CategoricalAccuracy(_EngineTorchMetric):
    """How many labels, given as one-hot rows, have the highest score."""

    _name = "CategoricalAccuracy"


class BinaryAccuracy(_EngineTorchMetric):
    """How many labels 0 and 1 are predicted by scores above a threshold, for each row."""

    _name = "BinaryAccuracy"

    def __call__(self, preds: Any, targets: Any, threshold: float = 0.5) -> None:
        """Add a batch; its scores above ``threshold`` mean 1."""
        part = EngineMetric(self._name, threshold=float(threshold))
        part(preds, targets)
        self._engine.merge(part.state())


class Top5Accuracy(_EngineTorchMetric):
    """How many labels are among the five highest scores."""

    _name = "Top5Accuracy"


class MAE(_EngineTorchMetric):
    """The mean absolute error of all elements."""

    _name = "MAE"


class MSE(_EngineTorchMetric):
    """The mean squared error of all elements."""

    _name = "MSE"


class BinaryCrossEntropy(_EngineTorchMetric):
    """The mean cross entropy of labels 0 and 1 and probabilities."""

    _name = "BinaryCrossEntropy"


class CategoricalCrossEntropy(_EngineTorchMetric):
    """The mean cross entropy of one-hot rows and probabilities."""

    _name = "CategoricalCrossEntropy"


class SparseCategoricalCrossEntropy(_EngineTorchMetric):
    """The mean cross entropy of labels as integers and probabilities."""

    _name = "SparseCategoricalCrossEntropy"


class KLDivergence(_EngineTorchMetric):
    """The mean Kullback-Leibler divergence of the targets from the predictions."""

    _name = "KLDivergence"


class Poisson(_EngineTorchMetric):
    """The mean of ``preds - targets * log(preds)``."""

    _name = "Poisson"


class AUC(_EngineTorchMetric):
    """The area under the ROC curve; exact, from all scores."""

    _name = "AUC"


AUROC = AUC
"""The name that it has in torchmetrics."""


class ROC(_EngineTorchMetric):
    """Computes (false positive rates, true positive rates, thresholds)."""

    _name = "ROC"


class PrecisionRecallCurve(_EngineTorchMetric):
    """Computes (precisions, recalls, thresholds)."""

    _name = "PrecisionRecallCurve"


class F1Score(_EngineTorchMetric):
    """The harmonic mean of precision and recall."""

    _name = "F1Score"


class Precision(_EngineTorchMetric):
    """How many of the predicted positives are positive."""

    _name = "Precision"


class Recall(_EngineTorchMetric):
    """How many of the positives were predicted."""

    _name = "Recall"


class Mean(_EngineTorchMetric):
    """The mean of values by their weights, such as the losses of batches by their rows.

    Example:
        >>> loss = Mean()
        >>> loss(torch.tensor(0.5), 3)
        >>> loss(torch.tensor(1.5), 1)
        >>> float(loss.compute())
        0.75
    """

    _name = "Mean"


def _rows(data: Any) -> int:
    """The rows of a batch: of its first array, where it has several."""
    while isinstance(data, list | tuple | Mapping):
        if not data:
            return 0
        data = next(iter(data.values())) if isinstance(data, Mapping) else data[0]
    shape: Sequence[int] = getattr(data, "shape", ())
    return int(shape[0]) if len(shape) else 1


class FunctionMetric(Mean):
    """The mean of a function ``f(preds, targets)`` over batches, by the rows of their targets.

    Example:
        >>> metric = FunctionMetric(torch.nn.functional.l1_loss)
        >>> metric(torch.ones(3), torch.zeros(3))
        >>> metric(torch.ones(1), torch.ones(1))
        >>> float(metric.compute())
        0.75
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._function = function

    def __call__(self, preds: Any, targets: Any) -> None:
        """Add a batch."""
        rows = _rows(targets)
        if rows == 0:  # Most functions have no value for nothing.
            return
        value = as_array(self._function(preds, targets))
        if value.size != 1:
            raise InvalidArgumentError(
                f"the metric {getattr(self._function, '__name__', self._function)!r} returned "
                f"an array of shape {value.shape}; return one number"
            )
        super().__call__(value.reshape(()), rows)
