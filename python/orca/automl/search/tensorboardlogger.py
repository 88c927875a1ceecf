"""TensorBoard's table of hyper-parameters, from configurations and metrics."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orca._native import _core
from orca.automl.events import hparams_of, is_number
from orca.errors import InvalidArgumentError

__all__ = ["TensorboardLogger"]


class TensorboardLogger:
    """Writes one folder of events for each trial.

    Args:
        logs_dir: Where the folders are; by default here.
        writer: A ``SummaryWriter`` of torch, whose ``log_dir`` is taken, and which ``close`` closes.
        name: What the names of parameters and metrics begin with.

    Example:
        >>> import tempfile
        >>> from orca.automl.search.tensorboardlogger import TensorboardLogger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logger = TensorboardLogger(folder)
        ...     logger.run({"run1": {"lr": 0.1}}, {"run1": {"acc": [0.91, 0.93]}})
        ...     logger.close()
    """

    def __init__(self, logs_dir: str = "", writer: Any = None, name: str = "AutoML") -> None:
        self.logs_dir = Path(logs_dir if writer is None else writer.log_dir).expanduser()
        self.name = name
        self._writer = writer

    def run(self, config: Mapping[str, Any], metric: Mapping[str, Any]) -> None:
        """Writes what trials are and found.

        Args:
            config: A dict of parameters for each trial, by its name.
            metric: A dict of metrics for each trial, by the same names; a metric is a value, or a list of one for each step.
        """
        if config.keys() != metric.keys():
            raise InvalidArgumentError(
                "The keys of config and metric should be exactly the same; only in one of them: "
                f"{sorted(config.keys() ^ metric.keys())}"
            )
        folders = []
        for trial, values in metric.items():
            own = hparams_of(config[trial], f"{self.name}/")
            curves = {f"{self.name}/{key}": _curve(found) for key, found in values.items()}
            folder = f"{self.logs_dir}/{trial.replace('/', '_')}"  # A Path takes longer.
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            folders.append((folder, own, curves))
        _core.write_event_folders(folders)

    def close(self) -> None:
        """Closes the writer that was given, if any."""
        if self._writer is not None:
            self._writer.close()


def _curve(found: Any) -> list[float]:
    """A metric's values by step; one alone is a list of one, and what is no number is NaN."""
    values = found if isinstance(found, list | tuple) else [found]
    return [float(value) if is_number(value) else math.nan for value in values]
