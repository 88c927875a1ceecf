"""An end after some steps."""

from __future__ import annotations

from typing import Any

from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["MaxstepsCallback"]


class MaxstepsCallback(Callback):
    """Ends training after ``max_step`` steps."""

    def __init__(self, max_step: int) -> None:
        self.max_step = max_step

    def after_train_iter(self, runner: Any) -> None:
        """Counts."""
        if runner.global_step >= self.max_step:
            runner.stop = True
