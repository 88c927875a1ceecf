"""Learning rates as functions of how far training is, for ``SGD(learningrate_schedule=...)``.

A schedule is a value: it can be used for several trainings and sent to workers. ``get_scheduler``
makes the object that one training asks.

Example:
    >>> from orca.learn.optimizers.schedule import Step
    >>> asked = Step(step_size=10, gamma=0.5).get_scheduler()
    >>> [asked.rate(0.4, 0.0, iteration) for iteration in (0, 9, 10, 20)]
    [0.4, 0.4, 0.2, 0.1]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orca._native import _core
from orca.errors import InvalidArgumentError

__all__ = [
    "Default",
    "Exponential",
    "MultiStep",
    "Plateau",
    "Poly",
    "Scheduler",
    "SequentialSchedule",
    "Step",
    "Warmup",
]


class Scheduler:
    """The base of all schedules."""

    _arguments: tuple[Any, ...] = ()

    def get_scheduler(self) -> Any:
        """A schedule of the engine that has seen nothing yet: one for each training.

        Its ``rate(base_rate, decay, iteration, epoch=1, loss=nan, score=nan)`` is the learning rate
        of the iteration that comes after ``iteration`` others, in epoch ``epoch`` (from 1).
        ``state()`` and ``restore(state)`` are for checkpoints.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._arguments))})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._arguments == self._arguments  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self), self._arguments))


class Poly(Scheduler):
    """``lr · (1 - iteration / max_iteration) ^ power``; 0 behind the end."""

    def __init__(self, power: float, max_iteration: int, bigdl_type: str = "float") -> None:
        self._arguments = (float(power), int(max_iteration))
        self.get_scheduler()  # Says now what is wrong with it.

    def get_scheduler(self) -> Any:
        """See ``Scheduler``."""
        return _core.Schedule.poly(*self._arguments)


class Exponential(Scheduler):
    """``lr · decay_rate ^ (iteration / decay_step)``; a ``stair_case`` divides without a rest."""

    def __init__(
        self,
        decay_step: int,
        decay_rate: float,
        stair_case: bool = False,
        bigdl_type: str = "float",
    ) -> None:
        self._arguments = (int(decay_step), float(decay_rate), bool(stair_case))
        self.get_scheduler()

    def get_scheduler(self) -> Any:
        """See ``Scheduler``."""
        return _core.Schedule.exponential(*self._arguments)


class Step(Scheduler):
    """``lr · gamma ^ (iteration // step_size)``."""

    def __init__(self, step_size: int, gamma: float, bigdl_type: str = "float") -> None:
        self._arguments = (int(step_size), float(gamma))
        self.get_scheduler()

    def get_scheduler(self) -> Any:
        """See ``Scheduler``."""
        return _core.Schedule.step(*self._arguments)


class MultiStep(Scheduler):
    """``lr · gamma ^ n``, where n of the ascending ``step_sizes`` are reached."""

    def __init__(self, step_sizes: Sequence[int], gamma: float, bigdl_type: str = "float") -> None:
        self._arguments = (tuple(int(size) for size in step_sizes), float(gamma))
        self.get_scheduler()

    def get_scheduler(self) -> Any:
        """See ``Scheduler``."""
        sizes, gamma = self._arguments
        return _core.Schedule.multi_step(list(sizes), gamma)


class Default(Scheduler):
    """``lr / (1 + learningrate_decay · iteration)``."""

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def get_scheduler(self) -> Any:
        """See ``Scheduler``."""
        return _core.Schedule.default()


class Plateau(Scheduler):
    """Multiplies the rate by ``factor`` when a number has not improved for ``patience`` epochs.

    Args:
        monitor: ``"Loss"`` of training or ``"score"`` of the validation.
        factor: Below 1.
        patience: Epochs.
        mode: ``"min"``: smaller is better; ``"max"``: larger is.
        epsilon: An improvement is more than this.
        cooldown: Epochs after a reduction that do not count.
        min_lr: No rate is below this.
    """

    def __init__(
        self,
        monitor: str,
        factor: float = 0.1,
        patience: int = 10,
        mode: str = "min",
        epsilon: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
        bigdl_type: str = "float",
    ) -> None:
        self._arguments = (
            str(monitor),
            float(factor),
            int(patience),
            str(mode),
            float(epsilon),
            int(cooldown),
            float(min_lr),
        )
        self.get_scheduler()

    def get_scheduler(self) -> Any:
        """See ``Scheduler``."""
        return _core.Schedule.plateau(*self._arguments)


class Warmup(Scheduler):
    """``lr + delta · iteration``."""

    def __init__(self, delta: float, bigdl_type: str = "float") -> None:
        self._arguments = (float(delta),)
        self.get_scheduler()

    def get_scheduler(self) -> Any:
        """See ``Scheduler``."""
        return _core.Schedule.warmup(*self._arguments)


class SequentialSchedule(Scheduler):
    """Schedules one after the other; each takes over the rate that the one before ended with.

    Args:
        iteration_per_epoch: Kept for old scripts. Epochs are counted where training counts them.

    Example:
        >>> schedule = SequentialSchedule(10).add(Warmup(0.1), 5).add(Poly(0.5, 100), 95)
        >>> schedule
        SequentialSchedule(10).add(Warmup(0.1), 5).add(Poly(0.5, 100), 95)
    """

    def __init__(self, iteration_per_epoch: int, bigdl_type: str = "float") -> None:
        if int(iteration_per_epoch) < 1:
            raise InvalidArgumentError(
                f"iteration_per_epoch {iteration_per_epoch} is not positive; give 1 or more"
            )
        self._iteration_per_epoch = int(iteration_per_epoch)

    def add(
        self, scheduler: Scheduler, max_iteration: int, bigdl_type: str = "float"
    ) -> SequentialSchedule:
        """Appends a schedule that runs for ``max_iteration`` iterations; returns the sequence."""
        if not isinstance(scheduler, Scheduler):
            raise InvalidArgumentError(
                f"a sequence was given {scheduler!r}, which is not a schedule; give Poly(...), "
                "Warmup(...) and the like"
            )
        if int(max_iteration) < 1:
            raise InvalidArgumentError(
                f"max_iteration {max_iteration} is not positive; give 1 or more"
            )
        self._arguments = (*self._arguments, (scheduler, int(max_iteration)))
        return self

    def get_scheduler(self) -> Any:
        """See ``Scheduler``."""
        parts = [(scheduler.get_scheduler(), count) for scheduler, count in self._arguments]
        return _core.Schedule.sequential(parts)

    def __repr__(self) -> str:
        added = "".join(f".add({scheduler!r}, {count})" for scheduler, count in self._arguments)
        return f"SequentialSchedule({self._iteration_per_epoch}){added}"
