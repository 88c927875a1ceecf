"""``experiment_state-<when>.json``: all trials of a search, as Ray Tune writes them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orca.files import write_whole
from orca.tune import Study, Trial

_STATUS = {
    "running": "RUNNING",
    "paused": "PAUSED",
    "finished": "TERMINATED",
    "pruned": "TERMINATED",
    "failed": "ERROR",
}


def write_experiment_state(
    folder: Path, study: Study, folders: Mapping[int, Sequence[Path]], run: str, began: float
) -> None:
    """Writes the file of a search, in the place of the one before.

    Args:
        folder: Of the search.
        study: With its trials.
        folders: Of each trial, the youngest last.
        run: The beginning of the trials' ids, where they have no folder.
        began: When the search began, in seconds since 1970.
    """
    encode = json.JSONEncoder(default=str).encode
    state = {
        # Each as a text of its own, as Ray Tune has them.
        "checkpoints": [
            encode(_described(trial, study.metric, folders.get(trial.number), run))
            for trial in study.trials
        ],
        "runner_data": {"_total_time": time.time() - began, "_metric": study.metric},
        "stats": {"start_time": began, "timestamp": time.time()},
    }
    when = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(began))
    path = folder / f"experiment_state-{when}.json"
    text = json.dumps(state, indent=2).encode()
    write_whole(path, lambda file: file.write(text), is_lasting=False)


def _described(
    trial: Trial, metric: str, folders: Sequence[Path] | None, run: str
) -> dict[str, Any]:
    folder = folders[-1] if folders else None
    name = folder.name if folder else f"train_func_{run}_{trial.number:05d}"
    trial_id = name.removeprefix("train_func_")
    values = [value for _, value in trial.reports if math.isfinite(value)]
    return {
        "stub": False,
        "trainable_name": "train_func",
        "trial_id": trial_id,
        "config": trial.config,
        "evaluated_params": trial.config,
        "experiment_tag": str(trial.number),
        "status": _STATUS[trial.state],
        "logdir": str(folder or name),
        "local_dir": str(folder.parent) if folder else "",
        "error_file": str(folder / "error.txt") if folder and trial.state == "failed" else None,
        "num_failures": trial.retries + (trial.state == "failed"),
        "last_result": {
            "trial_id": trial_id,
            "training_iteration": trial.reports[-1][0],
            metric: trial.reports[-1][1],
            "config": trial.config,
            "done": trial.state in ("finished", "pruned", "failed"),
        }
        if trial.reports
        else {},
        "metric_analysis": {
            metric: {
                "min": min(values),
                "max": max(values),
                "avg": sum(values) / len(values),
                "last": values[-1],
            }
        }
        if values
        else {},
    }
