"""When something happens during training: a validation, a checkpoint, the end.

A trigger is a value: it can be used for several trainings and sent to workers. ``get_trigger``
makes the object that one training asks after every iteration.

Example:
    >>> from orca.learn.trigger import EveryEpoch, MinLoss, TriggerOr
    >>> asked = TriggerOr(MinLoss(0.1), EveryEpoch()).get_trigger()
    >>> asked.fires(epoch=1, iteration=10, loss=0.5)
    False
    >>> asked.fires(epoch=1, iteration=11, loss=0.05)
    True
    >>> asked.fires(epoch=2, iteration=20, loss=0.5)
    True
"""

from __future__ import annotations

from typing import Any

from orca._native import _core
from orca.errors import InvalidArgumentError

__all__ = [
    "EveryEpoch",
    "MaxEpoch",
    "MaxIteration",
    "MaxScore",
    "MinLoss",
    "SeveralIteration",
    "Trigger",
    "TriggerAnd",
    "TriggerOr",
]


class Trigger:
    """The base of all triggers."""

    _arguments: tuple[Any, ...] = ()

    def get_trigger(self) -> Any:
        """A trigger of the engine that has seen nothing yet: one for each training.

        Its ``fires(epoch, iteration, loss=nan, score=nan)`` wants counters that begin at 1 and have
        grown when an epoch or an iteration has ended.
        """
        raise NotImplementedError

    @staticmethod
    def convert_trigger(trigger: Any) -> Any:
        """What ``checkpoint_trigger=`` and the like accept, as a trigger of the engine.

        Args:
            trigger: None, ``"EveryEpoch"`` in any case, a trigger, or one of the engine.

        Returns:
            A trigger of the engine, or None.

        Raises:
            InvalidArgumentError: It is something else.

        Example:
            >>> Trigger.convert_trigger("everyepoch").fires(epoch=1, iteration=1)
            False
        """
        if trigger is None or isinstance(trigger, _core.Trigger):
            return trigger
        if isinstance(trigger, str) and trigger.lower() == "everyepoch":
            return EveryEpoch().get_trigger()
        if isinstance(trigger, Trigger):
            return trigger.get_trigger()
        raise InvalidArgumentError(
            "Only 'EveryEpoch', orca triggers and bigdl triggers are supported now, "
            f"but got {trigger!r}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._arguments))})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._arguments == self._arguments  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self), self._arguments))


class EveryEpoch(Trigger):
    """Whenever an epoch has ended."""

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def get_trigger(self) -> Any:
        """See ``Trigger``."""
        return _core.Trigger.every_epoch()


class SeveralIteration(Trigger):
    """When the number of the iteration is a multiple of ``interval``."""

    def __init__(self, interval: int, bigdl_type: str = "float") -> None:
        self._arguments = (_count("interval", interval),)
        self.get_trigger()  # Says now what is wrong with it.

    def get_trigger(self) -> Any:
        """See ``Trigger``."""
        return _core.Trigger.several_iteration(*self._arguments)


class MaxEpoch(Trigger):
    """When ``max_epoch`` epochs are done. ``max`` is another name for it."""

    def __init__(
        self, max_epoch: int | None = None, bigdl_type: str = "float", *, max: int | None = None
    ) -> None:
        self._arguments = (_count("max_epoch", max if max_epoch is None else max_epoch),)
        self.get_trigger()

    def get_trigger(self) -> Any:
        """See ``Trigger``."""
        return _core.Trigger.max_epoch(*self._arguments)


class MaxIteration(Trigger):
    """When ``max`` iterations are done."""

    def __init__(self, max: int, bigdl_type: str = "float") -> None:
        self._arguments = (_count("max", max),)
        self.get_trigger()

    def get_trigger(self) -> Any:
        """See ``Trigger``."""
        return _core.Trigger.max_iteration(*self._arguments)


class MaxScore(Trigger):
    """When the score of the last validation is above ``max``."""

    def __init__(self, max: float, bigdl_type: str = "float") -> None:
        self._arguments = (_number("max", max),)
        self.get_trigger()

    def get_trigger(self) -> Any:
        """See ``Trigger``."""
        return _core.Trigger.max_score(*self._arguments)


class MinLoss(Trigger):
    """When the loss of the last iteration is below ``min``."""

    def __init__(self, min: float, bigdl_type: str = "float") -> None:
        self._arguments = (_number("min", min),)
        self.get_trigger()

    def get_trigger(self) -> Any:
        """See ``Trigger``."""
        return _core.Trigger.min_loss(*self._arguments)


class TriggerAnd(Trigger):
    """When all of its triggers fire."""

    def __init__(self, first: Trigger, *other: Trigger) -> None:
        self._arguments = _triggers("TriggerAnd", first, *other)

    def get_trigger(self) -> Any:
        """See ``Trigger``."""
        return _core.Trigger.all_of([trigger.get_trigger() for trigger in self._arguments])


class TriggerOr(Trigger):
    """When any of its triggers fires."""

    def __init__(self, first: Trigger, *other: Trigger) -> None:
        self._arguments = _triggers("TriggerOr", first, *other)

    def get_trigger(self) -> Any:
        """See ``Trigger``."""
        return _core.Trigger.any_of([trigger.get_trigger() for trigger in self._arguments])


def _count(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidArgumentError(f"{name} {value!r} is not a whole number; give 1 or more")


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{name} {value!r} is not a number") from None


def _triggers(name: str, *triggers: Any) -> tuple[Trigger, ...]:
    for trigger in triggers:
        if not isinstance(trigger, Trigger):
            raise InvalidArgumentError(
                f"{name} was given {trigger!r}, which is not a trigger; give EveryEpoch(), "
                "MaxEpoch(n) and the like"
            )
    return triggers
