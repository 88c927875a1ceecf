"""Statistics in a file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["CSVLogger"]


class CSVLogger(Callback):
    """Writes one line an epoch, on rank 0.

    Args:
        filename: Where.
        append: Whether to go on with a file that is there.
    """

    def __init__(self, filename: str, append: bool = False) -> None:
        self.filename, self.append = filename, append
        self._has_head = False

    def before_run(self, runner: Any) -> None:
        """Makes the file."""
        path = Path(self.filename)
        if runner.rank != 0:
            return
        self._has_head = self.append and path.exists() and path.stat().st_size > 0
        if not self.append:
            path.write_text("")

    def after_train_epoch(self, runner: Any) -> None:
        """One line."""
        if runner.rank != 0:
            return
        line = {k: v for k, v in runner.epoch_stats.items() if not isinstance(v, dict)}
        with Path(self.filename).open("a", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(line))
            if not self._has_head:
                writer.writeheader()
                self._has_head = True
            writer.writerow({k: float(v) for k, v in line.items()})
