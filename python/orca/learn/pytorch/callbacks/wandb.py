"""Statistics for Weights & Biases."""

from __future__ import annotations

import importlib
from typing import Any

from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["WandbLoggerCallback"]


class WandbLoggerCallback(Callback):
    """Sends the statistics of every epoch, from rank 0.

    Args:
        project: The name of the project.
        log_config: Whether the Estimator's config goes with them.
        watch_model: Whether the model and its gradients do.
        **kwargs: Of ``wandb.init``; ``mode="offline"`` needs no account.
    """

    def __init__(
        self, project: str, log_config: bool = False, watch_model: bool = False, **kwargs: Any
    ) -> None:
        _wandb()  # The driver tells what is missing.
        self.project, self.log_config, self.watch_model = project, log_config, watch_model
        self.kwargs = kwargs
        self.run: Any = None

    def before_run(self, runner: Any) -> None:
        """Begins a run."""
        if runner.rank != 0:
            return
        given = dict(self.kwargs)
        config = dict(given.pop("config", None) or {})
        if self.log_config:
            config |= runner.config
        self.run = _wandb().init(project=self.project, config=config, **given)
        if self.watch_model:
            self.run.watch(runner.model)

    def after_train_epoch(self, runner: Any) -> None:
        """The statistics of an epoch."""
        if self.run is not None:
            self.run.log(runner.epoch_stats)

    def after_run(self, runner: Any) -> None:
        """Ends the run."""
        if self.run is not None:
            self.run.finish()
            self.run = None


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        raise ImportError("WandbLoggerCallback needs wandb; run 'pip install wandb'") from error
