"""Batch normalisation over the rows of all workers, on CPUs and GPUs.

torch's own SyncBatchNorm wants GPUs, and weighs all workers alike. Here every worker adds up its rows, the sums are added over the workers, and backward
does the same with the two sums that it needs; each worker's part is weighed as its loss is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class Share:
    """What this worker's loss weighs among all, in the step that is under way.

    Args:
        add_up: Adds a tensor up over all workers, in place.

    Attributes:
        is_joined: Whether batch norms see the rows of all workers in this step.
    """

    def __init__(self, add_up: Callable[[torch.Tensor], Any]) -> None:
        self.value = 1.0
        self.is_joined = False
        self.add_up = add_up


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        mean: torch.Tensor,
        inverse: torch.Tensor,
        count: float,
        share: Share,
    ) -> torch.Tensor:
        shape = _per_channel(x)
        normal = (x - mean.to(x.dtype).view(shape)) * inverse.to(x.dtype).view(shape)
        ctx.save_for_backward(normal, inverse)
        ctx.count, ctx.share = count, share
        return normal

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        normal, inverse = ctx.saved_tensors
        share = ctx.share.value
        shape, dims = _per_channel(normal), _all_but_channel(normal)
        sums = torch.stack(
            [gradient.double().sum(dims), (gradient.double() * normal.double()).sum(dims)]
        )
        # Gradients of workers without rows are nothing, whatever they weigh.
        sums = sums * share if share else torch.zeros_like(sums)
        ctx.share.add_up(sums)
        if not share:
            return torch.zeros_like(gradient), None, None, None, None
        means = (sums / (share * ctx.count)).to(gradient.dtype)
        inner = gradient - means[0].view(shape) - normal * means[1].view(shape)
        return inner * inverse.to(gradient.dtype).view(shape), None, None, None, None


def _per_channel(x: torch.Tensor) -> tuple[int, ...]:
    return (1, -1) + (1,) * (x.dim() - 2)


def _all_but_channel(x: torch.Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


class _Joined:
    """Takes the place of a batch norm's ``forward`` while it trains."""

    orca_share: Share

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not (self.training and self.orca_share.is_joined):
            return super().forward(x)  # type: ignore[safe-super,misc,no-any-return]
        dims = _all_but_channel(x)
        wide = x.detach().double()
        rows = wide.new_full((self.num_features,), x.numel() / max(x.shape[1], 1))
        sums = torch.stack([wide.sum(dims), wide.pow(2).sum(dims), rows])
        self.orca_share.add_up(sums)
        count = float(sums[2, 0])
        mean = sums[0] / count
        # In a second pass: the difference of two large numbers loses what matters.
        squares = (wide - mean.view(_per_channel(x))).pow(2).sum(dims)
        self.orca_share.add_up(squares)
        variance = squares / count
        self._follow(mean, variance * (count / max(count - 1, 1)))
        y = _Normalise.apply(x, mean, (variance + self.eps).rsqrt(), count, self.orca_share)
        if self.affine:
            shape = _per_channel(x)
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y  # type: ignore[no-any-return]

    def _follow(self: Any, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if not self.track_running_stats:
            return
        self.num_batches_tracked.add_(1)
        part = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), part)
            self.running_var.lerp_(variance.to(self.running_var.dtype), part)


def has_batch_norms(model: nn.Module) -> bool:
    """Whether a model has a batch norm."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def join_batch_norms(model: nn.Module, share: Share) -> None:
    """Makes every batch norm of a model normalise with the rows of all workers, in steps where ``share`` says so."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, _Joined):
            kind = type(module)
            module.__class__ = type(f"Joined{kind.__name__}", (_Joined, kind), {})
            module.orca_share = share
