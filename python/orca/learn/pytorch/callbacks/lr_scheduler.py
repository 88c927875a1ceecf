"""Learning rates by a callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["LRSchedulerCallback"]

# With the optimizer's settings, which outlive a worker.
_FIRST, _EPOCH = "lr_of_callback", "epoch_of_callback"


class LRSchedulerCallback(Callback):
    """Sets the learning rate of every epoch.

    Args:
        schedule: ``f(epoch, lr)``, the next learning rate; or ``f(epoch)``, a factor of the first one.
    """

    def __init__(self, schedule: Callable[..., float]) -> None:
        self._schedule = schedule

    def before_run(self, runner: Any) -> None:
        """What earlier trainings noted is of no use, unless this one goes on after a death."""
        for group in () if runner.is_resumed else runner.optimizer.param_groups:
            group.pop(_FIRST, None)
            group.pop(_EPOCH, None)

    def before_train_epoch(self, runner: Any) -> None:
        """Asks for the epoch's rate, once."""
        takes_two = self._schedule.__code__.co_argcount >= 2
        for group in runner.optimizer.param_groups:
            first = group.setdefault(_FIRST, group["lr"])
            if group.get(_EPOCH) == runner.epochs:
                continue
            group[_EPOCH] = runner.epochs
            if takes_two:
                group["lr"] = self._schedule(runner.epochs, group["lr"])
            else:
                group["lr"] = first * self._schedule(runner.epochs)
