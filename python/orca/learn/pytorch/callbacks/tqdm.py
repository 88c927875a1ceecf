"""A progress bar."""

from __future__ import annotations

import importlib
from typing import Any

from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["TqdmCallback"]


class TqdmCallback(Callback):
    """Shows a bar an epoch, on rank 0."""

    _bar: Any = None

    def before_train_epoch(self, runner: Any) -> None:
        """A new bar."""
        if runner.rank != 0:
            return
        try:
            tqdm = importlib.import_module("tqdm.auto").tqdm
        except ModuleNotFoundError as error:
            raise ImportError("a progress bar needs tqdm; run 'pip install tqdm'") from error
        of = "" if runner.epochs_of_call is None else f"/{runner.epochs_of_call}"
        self._bar = tqdm(desc=f"epoch {runner.epoch_of_call}{of}", unit="batch")

    def after_train_iter(self, runner: Any) -> None:
        """One step more."""
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{runner.step_loss:.4f}", refresh=False)
            self._bar.update(1)

    def after_train_epoch(self, runner: Any) -> None:
        """The end of the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
