"""Checkpoints by a callback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from orca.errors import FailedPreconditionError
from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["ModelCheckpoint"]


class ModelCheckpoint(Callback):
    """Writes the state every few epochs or steps, and ``last.ckpt`` at the end.

    Args:
        filepath: Folder and name; ``{epoch}`` and ``{iter}`` in the name become ``epoch=1``, ``iter=5``.
        save_weights_only: The model's state dict alone.
        by_epoch: Whether ``interval`` counts epochs, else steps.
        interval: How many; below 0: every epoch.
    """

    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"

    def __init__(
        self,
        filepath: str = "",
        save_weights_only: bool = False,
        by_epoch: bool = True,
        interval: int = -1,
    ) -> None:
        path = Path(filepath)
        self.dirname, self.filename = path.parent, path.name
        self.save_weights_only, self.by_epoch = save_weights_only, by_epoch
        self.interval = 1 if by_epoch and interval < 0 else interval

    def before_run(self, runner: Any) -> None:
        """Refuses a folder with checkpoints in it."""
        if runner.rank != 0:
            return
        self.dirname.mkdir(parents=True, exist_ok=True)
        if any(self.dirname.glob(f"*{self.FILE_EXTENSION}")):
            raise FailedPreconditionError(
                f"Find non-empty dirname with filepath of {self.dirname}; give another folder, or "
                "remove its .ckpt files"
            )

    def after_train_epoch(self, runner: Any) -> None:
        """Every ``interval`` epochs."""
        if self.by_epoch and self.interval > 0 and runner.epochs % self.interval == 0:
            self._save(runner, self._name(runner))

    def after_train_iter(self, runner: Any) -> None:
        """Every ``interval`` steps."""
        if not self.by_epoch and self.interval > 0 and runner.global_step % self.interval == 0:
            self._save(runner, self._name(runner))

    def after_run(self, runner: Any) -> None:
        """The last state."""
        self._save(runner, self.CHECKPOINT_NAME_LAST)

    def _name(self, runner: Any) -> str:
        values = {"epoch": runner.epochs, "iter": runner.global_step}
        pattern = self.filename or ("{epoch}" if self.by_epoch else "{iter}")
        return re.sub(
            r"\{(epoch|iter)[^}]*\}", lambda match: f"{match[1]}={values[match[1]]}", pattern
        )

    def _save(self, runner: Any, name: str) -> None:
        path = self.dirname / f"{name.removesuffix(self.FILE_EXTENSION)}{self.FILE_EXTENSION}"
        runner.save_checkpoint(str(path), self.save_weights_only)

    @classmethod
    def get_latest_checkpoint(cls, checkpoint_dir: str) -> str:
        """The path of the last state in a folder."""
        path = Path(checkpoint_dir) / f"{cls.CHECKPOINT_NAME_LAST}{cls.FILE_EXTENSION}"
        if not path.exists():
            raise FailedPreconditionError(f"Latest checkpoint at {path} not found.")
        return str(path)
