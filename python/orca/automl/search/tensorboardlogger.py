"""TensorBoard's table of hyper-parameters, from configurations and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orca.automl.events import TrialEvents, steps_of
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
        for trial, values in metric.items():
            folder = self.logs_dir / trial.replace("/", "_")
            own = {f"{self.name}/{key}": value for key, value in config[trial].items()}
            folder.mkdir(parents=True, exist_ok=True)
            events = TrialEvents(folder, own, f"{self.name}/")
            for key, found in values.items():
                for step, value in enumerate(steps_of(found)):
                    events.add({key: value}, step)
            events.close()

    def close(self) -> None:
        """Closes the writer that was given, if any."""
        if self._writer is not None:
            self._writer.close()
