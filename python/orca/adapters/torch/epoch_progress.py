"""How far an epoch is, and what its losses were."""

from __future__ import annotations

import math
import time
from typing import Any

from orca import running
from orca.adapters.torch.feeds import Feed
from orca.adapters.torch.runner import Runner


class EpochProgress:
    """Tells how far an epoch is: four times a second, and not in the first one.

    Args:
        options: Those of the ``fit``.
        feed: Of the epoch's batches.
        runner: Knows which epoch of the call this is.
        done: Rows of the epoch that were done before, when training resumes.
    """

    def __init__(self, options: Any, feed: Feed, runner: Runner, done: int = 0) -> None:
        self._options, self._feed = options, feed
        self._epoch, self._epochs = runner.epoch_of_call, runner.epochs_of_call
        self._begin = time.perf_counter()
        self._next = self._begin + 1.0 if running.rank() == 0 else math.inf
        self._done, self._rows, self._steps = done, 0, 0

    def step(self, index: int, total: Any, steps_left: int | None) -> None:
        """After a step.

        Args:
            index: Its number in the epoch.
            total: What the workers said together.
            steps_left: How many are left of those that were asked for; None: epochs were.
        """
        self._rows += total[2]
        self._steps += 1
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + 0.25
        seconds = now - self._begin
        running.show_progress(
            {
                "epoch": self._epoch,
                "epochs": self._epochs,
                "step": index + 1,
                "steps": self._feed.steps,
                "loss": total[1],
                "rate": self._rows / seconds,
                "left": self._left(seconds, steps_left),
                "always": self._options.use_tqdm,
            }
        )

    def _left(self, seconds: float, steps_left: int | None) -> float | None:
        """Seconds, if they can be known."""
        if steps_left is not None:
            return seconds * steps_left / self._steps
        if self._feed.rows is None or self._epochs is None or not self._rows:
            return None
        rows = self._feed.rows * (self._epochs - self._epoch + 1) - self._done - self._rows
        return seconds * rows / self._rows

    def end(self) -> None:
        """After the epoch."""
        if self._next > self._begin + 1.0 and running.rank() == 0:
            running.show_progress({"ends": True, "always": self._options.use_tqdm})


class Losses:
    """The losses of the whole job's steps, weighed by their rows."""

    def __init__(self, total: float = 0.0, rows: int = 0, last: float = math.nan) -> None:
        self.sum, self.rows, self._last = total, rows, last

    def add(self, total: Any) -> None:
        """Adds what the workers said together."""
        self.sum += total[1] * total[2]
        self.rows += total[2]
        self._last = total[1]

    def summary(self) -> dict[str, float]:
        """The mean over all rows, and the last one."""
        mean = self.sum / self.rows if self.rows else math.nan
        return {"train_loss": mean, "last_train_loss": self._last}
