"""Statistics for TensorBoard."""

from __future__ import annotations

import logging
from typing import Any

from orca.errors import InvalidArgumentError
from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["TensorBoardCallback"]

_log = logging.getLogger("orca")


class TensorBoardCallback(Callback):
    """Writes event files, on rank 0.

    Args:
        log_dir: The folder; by default ``runs``.
        freq: ``"epoch"``, ``"batch"``, or a number of steps.
        **kwargs: Of torch's SummaryWriter; they have no effect, which is said.
    """

    def __init__(
        self, log_dir: str | None = None, freq: str | int = "epoch", **kwargs: Any
    ) -> None:
        if freq not in ("epoch", "batch") and not (isinstance(freq, int) and freq > 0):
            raise InvalidArgumentError(
                f'freq {freq!r} is not known; give "epoch", "batch" or a number of steps'
            )
        if kwargs:
            _log.warning(
                "TensorBoardCallback: %s have no effect; leave them out", ", ".join(kwargs)
            )
        self.log_dir, self.freq = log_dir or "runs", freq
        self._writer: Any = None

    def before_run(self, runner: Any) -> None:
        """Makes the file."""
        if runner.rank == 0:
            from orca._native import _core

            self._writer = _core.EventWriter(self.log_dir)

    def after_train_iter(self, runner: Any) -> None:
        """The loss of a step."""
        every = 1 if self.freq == "batch" else self.freq
        if self._writer is None or isinstance(every, str) or runner.global_step % every:
            return
        self._writer.add_scalar("train_loss", runner.step_loss, runner.global_step)

    def after_train_epoch(self, runner: Any) -> None:
        """The statistics of an epoch."""
        if self._writer is None:
            return
        for name, value in runner.epoch_stats.items():
            if name not in ("epoch", "batch_count", "num_samples", "profile"):
                self._writer.add_scalar(name, float(value), runner.epochs)
        self._writer.sync()

    def after_run(self, runner: Any) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.sync()
            self._writer = None
