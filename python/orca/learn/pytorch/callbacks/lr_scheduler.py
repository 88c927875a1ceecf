"""Learning rates by a callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["LRSchedulerCallback"]


class LRSchedulerCallback(Callback):
    """Sets the learning rate of every epoch.

    Args:
        schedule: ``f(epoch, lr)``, the next learning rate; or ``f(epoch)``, a factor of the first one.
    """

    def __init__(self, schedule: Callable[..., float]) -> None:
        self._schedule = schedule
        self._first: list[float] = []

    def before_train_epoch(self, runner: Any) -> None:
        """Asks for the epoch's rate."""
        groups = runner.optimizer.param_groups
        self._first = self._first or [group["lr"] for group in groups]
        takes_two = self._schedule.__code__.co_argcount >= 2
        for group, first in zip(groups, self._first, strict=True):
            if takes_two:
                group["lr"] = self._schedule(runner.epochs, group["lr"])
            else:
                group["lr"] = first * self._schedule(runner.epochs)
