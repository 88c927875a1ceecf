"""What a worker's loss weighs in the loss of the whole batch.

A mean over some rows and a mean over others become the mean over all of them when each is weighed with what it was divided by.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

# Divided by the number of elements, not of rows.
_BY_ELEMENT = (
    nn.L1Loss,
    nn.MSELoss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.GaussianNLLLoss,
    nn.SoftMarginLoss,
)
_BY_ELEMENT_FUNCTIONS = (
    F.l1_loss,
    F.mse_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
)


class Criterion:
    """The user's loss, and the weight of what it returns.

    Attributes:
        is_sum: Whether losses of parts add up instead of being averaged.
        rule: What a part weighs, in words.
    """

    def __init__(self, loss: Any) -> None:
        self.loss = loss
        self.is_sum = getattr(loss, "reduction", None) == "sum"
        self._weigh, self.rule = _rule_of(loss)

    def __call__(self, output: Any, target: Any, rows: int) -> tuple[torch.Tensor, Any]:
        """The loss of a batch, and its weight: a number, or a LaterWeight."""
        outputs = output if isinstance(output, list | tuple) else (output,)
        targets = target if isinstance(target, list | tuple) else (target,)
        loss = self.loss(*outputs, *targets)
        if isinstance(loss, tuple):
            loss, weight = loss
            return loss, float(weight)
        return loss, self._weigh(outputs[0], targets[0], rows)


def _rule_of(loss: Any) -> tuple[Callable[[Any, Any, int], Any], str]:
    if getattr(loss, "reduction", None) == "sum":
        return _rows, "sums"
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return _ClassWeights(loss.weight, loss.ignore_index), "counted labels"
    if loss is F.cross_entropy or loss is F.nll_loss:
        return _ClassWeights(None, -100), "counted labels"
    if isinstance(loss, nn.KLDivLoss) and loss.reduction == "mean":
        return _elements, "elements"
    if isinstance(loss, _BY_ELEMENT) or loss in _BY_ELEMENT_FUNCTIONS:
        return _elements, "elements"
    return _rows, "rows"


def _rows(_output: Any, _target: Any, rows: int) -> float:
    return float(rows)


def _elements(output: Any, target: Any, _rows: int) -> float:
    return float(max(output.numel(), target.numel()))


class LaterWeight:
    """A weight that can be had from a GPU; to ask for it as a number is to wait for the GPU."""

    def __init__(self, tensor: Callable[[], torch.Tensor]) -> None:
        self.tensor = tensor

    def __float__(self) -> float:
        return float(self.tensor())


class _ClassWeights:
    """What cross entropy divides by: the labels that count, each with its class's weight."""

    def __init__(self, weight: torch.Tensor | None, ignored: int) -> None:
        self._weight, self._ignored = weight, ignored

    def __call__(self, _output: Any, target: Any, rows: int) -> Any:
        if target.is_floating_point():  # Probabilities: a mean over rows, whatever the weights.
            return float(rows)
        if target.is_cuda:
            return LaterWeight(partial(self._on_gpu, target))
        if self._weight is None:
            return float(target.numel() - int((target == self._ignored).sum()))
        counted = target[target != self._ignored]
        return float(self._weight[counted].sum(dtype=torch.float64))

    def _on_gpu(self, target: torch.Tensor) -> torch.Tensor:
        counts = target != self._ignored
        if self._weight is None:
            return counts.sum()
        each = self._weight[torch.where(counts, target, 0)] * counts
        return each.sum(dtype=torch.float64)


def required_arguments(function: Any) -> int | None:
    """How many arguments a call must have; None when that cannot be found out."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return sum(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
    )
