"""Optimizers of torch from the descriptions of ``orca.learn.optimizers``, with BigDL's arithmetic.

Example:
    >>> import torch
    >>> from orca.learn.optimizers import SGD
    >>> weight = torch.ones(1, requires_grad=True)
    >>> optimizer, rates = make_optimizer(SGD(0.5, learningrate_decay=1.0), [weight])
    >>> for iteration in range(2):
    ...     weight.grad = torch.ones(1)
    ...     _ = rates.apply(optimizer, iteration)
    ...     optimizer.step()
    >>> weight.item()
    0.25
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from orca.errors import InvalidArgumentError
from orca.learn import optimizers as described
from orca.learn.optimizers.schedule import Default

__all__ = ["Ftrl", "PerWeightSGD", "Rates", "load_optimizer_state", "make_optimizer"]


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, state: dict[str, Any], converted: Collection[int] = ()
) -> None:
    """Loads a state dict whose tensors keep the types that they were saved with.

    torch gives them the type of their parameter: whole numbers, and moments that are more precise than
    the weights, would not be what they were.

    Args:
        optimizer: Any; one that loads in a way of its own is left to it.
        state: Of the same kind of optimizer.
        converted: The ids of parameters that have another type than when they were saved; there
            torch's rule is right.
    """
    optimizer.load_state_dict(state)
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        if id(parameter) in converted:
            continue
        loaded = optimizer.state.get(parameter, {})
        for key, value in state["state"].get(number, {}).items():
            if isinstance(value, torch.Tensor) and loaded[key].dtype != value.dtype:
                loaded[key] = value.to(loaded[key].device, copy=True)


class Rates:
    """What of an optimizer changes from iteration to iteration: mostly its learning rate.

    Args:
        optimizer: The description.
    """

    def __init__(self, optimizer: described.Optimizer) -> None:
        self._base = float(getattr(optimizer, "learningrate", 1.0))
        self._decay = float(getattr(optimizer, "learningrate_decay", 0.0))
        self._schedule = (optimizer.schedule() or Default()).get_scheduler()
        self._adam = optimizer if isinstance(optimizer, described.Adam) else None

    def apply(
        self,
        optimizer: torch.optim.Optimizer,
        iteration: int,
        epoch: int = 1,
        loss: float = math.nan,
        score: float = math.nan,
    ) -> float:
        """Prepares ``optimizer`` for its next step. Calling it again for that step changes nothing.

        Args:
            optimizer: The one that was made with these rates.
            iteration: How many steps it has made.
            epoch: The epoch that is under way, from 1.
            loss: The last one; NaN when there is none.
            score: Of the last validation; NaN when there is none.

        Returns:
            The learning rate.
        """
        rate = float(self._schedule.rate(self._base, self._decay, iteration, epoch, loss, score))
        for group in optimizer.param_groups:
            group["lr"] = rate
            if self._adam is not None:
                # BigDL adds epsilon to the root of the second moment, torch to the root after its
                # bias was corrected.
                corrected = math.sqrt(1 - self._adam.beta2 ** (iteration + 1))
                group["eps"] = self._adam.epsilon / corrected
        return rate

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, for a checkpoint."""
        return {"schedule": self._schedule.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where ``state_dict`` was called."""
        self._schedule.restore([float(value) for value in state["schedule"]])


class Ftrl(torch.optim.Optimizer):
    """Follow the regularized leader. Every weight is treated alone, so slices of it may be, too."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        lr_power: float = -0.5,
        initial_accumulator: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        l2_shrinkage: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_power": lr_power,
            "initial_accumulator": initial_accumulator,
            "l1": l1,
            "l2": l2,
            "l2_shrinkage": l2_shrinkage,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Makes one step."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)
        return loss

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["squares"] = torch.full_like(weight, group["initial_accumulator"])
            state["linear"] = torch.zeros_like(weight)
        squares, linear = state["squares"], state["linear"]
        if group["l2_shrinkage"] > 0:
            gradient = gradient + 2 * group["l2_shrinkage"] * weight
        before = squares.pow(-group["lr_power"])
        squares.addcmul_(gradient, gradient)
        after = squares.pow(-group["lr_power"])
        linear.add_(gradient).addcmul_(after - before, weight, value=-1 / group["lr"])
        # What is within l1 of 0 becomes 0, also where no gradient has come yet and the divisor is 0.
        pull = torch.clamp(linear, -group["l1"], group["l1"]) - linear
        divisor = after / group["lr"] + 2 * group["l2"]
        weight.copy_(torch.where(pull == 0, pull, pull / divisor))


class PerWeightSGD(torch.optim.Optimizer):
    """SGD with a factor of the learning rate, or a weight decay, for each single weight."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        rates: Sequence[float] | None = None,
        weight_decays: Sequence[float] | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)
        self._rates = self._divide("learningrates", rates)
        self._decays = self._divide("weightdecays", None if weight_decay else weight_decays)

    def _divide(
        self, name: str, values: Sequence[float] | None
    ) -> dict[torch.Tensor, torch.Tensor] | None:
        """The numbers that belong to each parameter."""
        if values is None:
            return None
        weights = [weight for group in self.param_groups for weight in group["params"]]
        total = sum(weight.numel() for weight in weights)
        if len(values) != total:
            raise InvalidArgumentError(
                f"{name} has {len(values)} numbers for {total} weights; give one for each weight"
            )
        parts = torch.tensor(values, dtype=torch.float64).split([w.numel() for w in weights])
        return {w: part.view_as(w).to(w) for w, part in zip(weights, parts, strict=True)}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Makes one step."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)
        return loss

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        if self._decays is not None:
            gradient = gradient + self._decays[weight] * weight
        elif group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * weight
        if group["momentum"]:
            gradient = self._with_momentum(self.state[weight], gradient, group)
        if self._rates is not None:
            gradient = gradient * self._rates[weight]
        weight.sub_(gradient, alpha=group["lr"])

    @staticmethod
    def _with_momentum(
        state: dict[str, Any], gradient: torch.Tensor, group: dict[str, Any]
    ) -> torch.Tensor:
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = gradient.clone()
        else:
            kept = state["momentum_buffer"].mul_(group["momentum"])
            kept.add_(gradient, alpha=1 - group["dampening"])
        buffer: torch.Tensor = state["momentum_buffer"]
        return gradient + group["momentum"] * buffer if group["nesterov"] else buffer


def make_optimizer(
    description: described.Optimizer, parameters: Iterable[Any]
) -> tuple[torch.optim.Optimizer, Rates | None]:
    """Makes the optimizer that a description means.

    Args:
        description: One of ``orca.learn.optimizers``.
        parameters: Parameters or parameter groups, as torch's optimizers take them.

    Returns:
        The optimizer, and what must be applied before each of its steps; None when nothing changes
        from step to step.

    Raises:
        InvalidArgumentError: It is not a description, or does not fit the parameters.
    """
    described_as = description.get_optimizer() if hasattr(description, "get_optimizer") else None
    make = next((m for kind, m in _MAKERS.items() if isinstance(described_as, kind)), None)
    if make is None:
        raise InvalidArgumentError(
            f"{description!r} is not an optimizer of orca.learn.optimizers; known: "
            f"{', '.join(kind.__name__ for kind in _MAKERS)}"
        )
    optimizer = make(described_as, list(parameters))
    changes = description.schedule() is not None or isinstance(description, described.Adam)
    return optimizer, Rates(description) if changes else None


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _make_sgd(of: Any, parameters: list[Any]) -> torch.optim.Optimizer:
    options = {
        "lr": of.learningrate,
        "momentum": of.momentum,
        "dampening": of.dampening,
        "weight_decay": of.weightdecay,
        "nesterov": of.nesterov,
    }
    if of.learningrates is None and of.weightdecays is None:
        return torch.optim.SGD(parameters, **options)
    return PerWeightSGD(
        parameters, **options, rates=of.learningrates, weight_decays=of.weightdecays
    )


def _make_lbfgs(of: Any, parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(
        parameters,
        lr=of.learningrate,
        max_iter=int(of.max_iter),
        max_eval=None if of.max_eval == sys.float_info.max else int(of.max_eval),
        tolerance_grad=of.tolfun,
        tolerance_change=of.tolx,
        history_size=int(of.ncorrection),
    )


def _make_ftrl(of: Any, parameters: list[Any]) -> torch.optim.Optimizer:
    return Ftrl(
        parameters,
        lr=of.learningrate,
        lr_power=of.learningrate_power,
        initial_accumulator=of.initial_accumulator_value,
        l1=of.l1_regularization_strength,
        l2=of.l2_regularization_strength,
        l2_shrinkage=of.l2_shrinkage_regularization_strength,
    )


_MAKERS: dict[type[described.Optimizer], Callable[[Any, list[Any]], torch.optim.Optimizer]] = {
    described.SGD: _make_sgd,
    described.Adagrad: lambda of, parameters: torch.optim.Adagrad(
        parameters, lr=of.learningrate, weight_decay=of.weightdecay, eps=1e-10
    ),
    described.LBFGS: _make_lbfgs,
    described.Adadelta: lambda of, parameters: torch.optim.Adadelta(
        parameters, lr=1.0, rho=of.decayrate, eps=of.epsilon
    ),
    described.Adam: lambda of, parameters: torch.optim.Adam(
        parameters, lr=of.learningrate, betas=(of.beta1, of.beta2), eps=of.epsilon
    ),
    described.Ftrl: _make_ftrl,
    described.Adamax: lambda of, parameters: torch.optim.Adamax(
        parameters, lr=of.learningrate, betas=(of.beta1, of.beta2), eps=of.epsilon
    ),
    described.RMSprop: lambda of, parameters: torch.optim.RMSprop(
        parameters, lr=of.learningrate, alpha=of.decayrate, eps=of.epsilon
    ),
}
