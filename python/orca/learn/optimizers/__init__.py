"""Optimizers as descriptions: which algorithm, with which numbers. No framework is needed.

An estimator makes the real one of its framework from it, e.g. with
``orca.adapters.torch.optimizers.make_optimizer``.

Example:
    >>> from orca.learn.optimizers import SGD
    >>> SGD(learningrate=0.1, momentum=0.9).dampening
    0.9
"""

from __future__ import annotations

import math
import sys
from array import array
from dataclasses import KW_ONLY, InitVar, dataclass
from numbers import Real
from typing import Any

from orca.errors import InvalidArgumentError
from orca.learn.optimizers.schedule import Default, Scheduler

__all__ = [
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "Ftrl",
    "Optimizer",
    "ParallelAdam",
    "RMSprop",
]

# What the originals' signatures have where nothing is given.
_MAX = sys.float_info.max


@dataclass(frozen=True)
class Optimizer:
    """The base of all optimizers.

    All of them accept ``bigdl_type`` as BigDL's did; it means nothing.
    """

    _: KW_ONLY
    bigdl_type: InitVar[str] = "float"

    def __post_init__(self, bigdl_type: str) -> None:
        self._check()

    def get_optimizer(self) -> Optimizer:
        """The description itself: every engine reads it."""
        return self

    def schedule(self) -> Scheduler | None:
        """How the learning rate changes; None: it does not."""
        return Default() if getattr(self, "learningrate_decay", 0.0) else None

    def _check(self) -> None:
        pass

    def _want(self, what: str, *names: str) -> None:
        """Checks numbers of the description."""
        rules = {
            "positive": lambda value: value > 0,
            "not negative": lambda value: value >= 0,
            "from 0 to below 1": lambda value: 0 <= value < 1,
            "0 or less": lambda value: value <= 0,
        }
        for name in names:
            value = getattr(self, name)
            if not (isinstance(value, Real) and math.isfinite(value) and rules[what](value)):
                raise InvalidArgumentError(
                    f"{name} {value!r} of {type(self).__name__} is not {what}; give a number that is"
                )


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent.

    Args:
        learningrate: What the schedule begins with.
        learningrate_decay: For the schedule ``Default``: ``lr / (1 + decay · iteration)``.
        weightdecay: What of a weight is added to its gradient.
        momentum: What of the last step is kept.
        dampening: How much of a gradient the momentum leaves out; without it as much as
            ``momentum``, and with ``nesterov`` nothing.
        nesterov: Looks ahead; wants a momentum and no dampening.
        learningrate_schedule: A schedule; None means ``Default()``.
        learningrates: A factor for each single weight, in the order of the parameters.
        weightdecays: A weight decay for each single weight; counts when ``weightdecay`` is 0.
        leaningrate_schedule: Another name for ``learningrate_schedule``, which BigDL had.
    """

    learningrate: float = 1e-3
    learningrate_decay: float = 0.0
    weightdecay: float = 0.0
    momentum: float = 0.0
    dampening: float = _MAX
    nesterov: bool = False
    learningrate_schedule: Scheduler | None = None
    learningrates: Any = None
    weightdecays: Any = None
    _: KW_ONLY
    leaningrate_schedule: InitVar[Scheduler | None] = None

    def __post_init__(  # type: ignore[override]
        self, bigdl_type: str, leaningrate_schedule: Scheduler | None
    ) -> None:
        if self.learningrate_schedule is None:
            object.__setattr__(self, "learningrate_schedule", leaningrate_schedule)
        if self.dampening == _MAX:
            object.__setattr__(self, "dampening", 0.0 if self.nesterov else self.momentum)
        for name in ("learningrates", "weightdecays"):
            values = _numbers(name, getattr(self, name))
            object.__setattr__(self, name, values)
        self._check()

    def schedule(self) -> Scheduler | None:
        """How the learning rate changes; None: it does not."""
        return self.learningrate_schedule or super().schedule()

    def _check(self) -> None:
        self._want("not negative", "learningrate", "learningrate_decay", "weightdecay")
        self._want("not negative", "momentum", "dampening")
        if self.nesterov and not (self.momentum > 0 and self.dampening == 0):
            raise InvalidArgumentError(
                f"nesterov wants a momentum and no dampening, but momentum is {self.momentum} and "
                f"dampening {self.dampening}; give momentum=0.9 and dampening=0"
            )
        if not isinstance(self.learningrate_schedule, (Scheduler, type(None))):
            raise InvalidArgumentError(
                "learningrate_schedule should be an orca.learn.optimizers.schedule.Scheduler, "
                f"but got {self.learningrate_schedule!r}"
            )


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Divides by the root of the sum of all squared gradients."""

    learningrate: float = 1e-3
    learningrate_decay: float = 0.0
    weightdecay: float = 0.0

    def _check(self) -> None:
        self._want("not negative", "learningrate", "learningrate_decay", "weightdecay")


@dataclass(frozen=True)
class LBFGS(Optimizer):
    """Limited-memory BFGS with steps of a fixed size; wants a closure at every step.

    Args:
        max_iter: Iterations a step.
        max_eval: Evaluations a step; without it 1.25 times ``max_iter``.
        tolfun: Ends when the gradient is below.
        tolx: Ends when the change of the weights or of the loss is below.
        ncorrection: How many updates are kept.
        learningrate: The size of steps.
        verbose: Accepted.
        linesearch: Must be None.
        linesearch_options: Must be None.
    """

    max_iter: int = 20
    max_eval: float = _MAX
    tolfun: float = 1e-5
    tolx: float = 1e-9
    ncorrection: int = 100
    learningrate: float = 1.0
    verbose: bool = False
    linesearch: Any = None
    linesearch_options: Any = None

    def _check(self) -> None:
        self._want("positive", "max_iter", "max_eval", "ncorrection")
        self._want("not negative", "tolfun", "tolx", "learningrate")
        if self.linesearch is not None or self.linesearch_options is not None:
            raise InvalidArgumentError(
                "linesearch and linesearch_options must be None in LBFGS; steps have a fixed size"
            )


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adagrad with a window, and without a learning rate."""

    decayrate: float = 0.9
    epsilon: float = 1e-10

    def _check(self) -> None:
        self._want("from 0 to below 1", "decayrate")
        self._want("not negative", "epsilon")


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam. ``epsilon`` is added to the root of the second moment before its bias is corrected."""

    learningrate: float = 1e-3
    learningrate_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def _check(self) -> None:
        self._want("not negative", "learningrate", "learningrate_decay", "epsilon")
        self._want("from 0 to below 1", "beta1", "beta2")


@dataclass(frozen=True)
class ParallelAdam(Adam):
    """Adam; ``parallel_num`` is accepted, the engine decides how many cores do it."""

    parallel_num: int = -1


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """Follow the regularized leader, for sparse models.

    Args:
        learningrate: The learning rate.
        learningrate_power: How it falls with the squared gradients; 0 or less.
        initial_accumulator_value: What the sum of squares begins with.
        l1_regularization_strength: Makes weights exactly 0.
        l2_regularization_strength: Stabilises.
        l2_shrinkage_regularization_strength: Makes weights small.
    """

    learningrate: float = 1e-3
    learningrate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0

    def _check(self) -> None:
        self._want("positive", "learningrate")
        self._want("0 or less", "learningrate_power")
        self._want("not negative", "initial_accumulator_value", "l1_regularization_strength")
        self._want("not negative", "l2_regularization_strength")
        self._want("not negative", "l2_shrinkage_regularization_strength")


@dataclass(frozen=True)
class Adamax(Optimizer):
    """Adam with the largest gradient in place of the second moment."""

    learningrate: float = 0.002
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-38

    def _check(self) -> None:
        self._want("not negative", "learningrate", "epsilon")
        self._want("from 0 to below 1", "beta1", "beta2")


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """Divides by the root of the mean of the last squared gradients."""

    learningrate: float = 1e-2
    learningrate_decay: float = 0.0
    decayrate: float = 0.99
    epsilon: float = 1e-8

    def _check(self) -> None:
        self._want("not negative", "learningrate", "learningrate_decay", "epsilon")
        self._want("from 0 to below 1", "decayrate")


def _numbers(name: str, values: Any) -> array[float] | None:
    if values is None:
        return None
    numbers = array("d", values.ravel().tolist() if hasattr(values, "ravel") else values)
    if not all(map(math.isfinite, numbers)):
        raise InvalidArgumentError(f"{name} holds a number that is not finite")
    return numbers
