"""An end when nothing gets better."""

from __future__ import annotations

import math
from typing import Any

from orca.errors import InvalidArgumentError
from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["EarlyStopping"]


class EarlyStopping(Callback):
    """Ends training when a number has not become better for some epochs.

    Args:
        monitor: A key of an epoch's statistics, such as ``"val_loss"``.
        patience: How many epochs to wait.
        min_delta: What counts as better.
        mode: ``"min"`` or ``"max"``.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 0,
        min_delta: float = 0.0,
        mode: str = "min",
    ) -> None:
        if mode not in ("min", "max"):
            raise InvalidArgumentError(f'mode {mode!r} is not known; give "min" or "max"')
        self.monitor, self.patience, self.min_delta, self.mode = monitor, patience, min_delta, mode
        self._best, self._waited = math.inf, 0

    def after_train_epoch(self, runner: Any) -> None:
        """Looks at the epoch's statistics."""
        if self.monitor not in runner.epoch_stats:
            raise InvalidArgumentError(
                f"there is no {self.monitor!r} to monitor; there is {sorted(runner.epoch_stats)}"
            )
        value = float(runner.epoch_stats[self.monitor]) * (1 if self.mode == "min" else -1)
        if value < self._best - self.min_delta:
            self._best, self._waited = value, 0
            return
        self._waited += 1
        runner.stop = runner.stop or self._waited > self.patience
