"""What a trial costs that does nothing.

    python bench/tune_trials_bench.py empty --ray PYTHON | forked --ray PYTHON | many

``empty``: 100 trials through AutoEstimator, two at a time on reused workers: a model with one weight, one row, one epoch,
the weights on the disk and every decision in the study's file. The peer is Ray Tune with ``reuse_actors``, whose trials
report a number and do no more. ``forked``: every trial in a process of its own that has torch, against Ray Tune without. ``many``: 10,000 calls of an empty function on two reused workers, each a trial of a study
on the disk, against ten seconds. PYTHON is that of an environment with Ray. Lines that begin with RESULT are read by
bench/run.py.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runtime_bench import report

import orca
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
from orca.tune import Study

LIMIT = 10.0  # Seconds for 10,000 trials.
SERVE = """
import os, sys, tempfile, time
os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
import ray, torch
from ray import tune
ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", num_cpus=2)
def trainable(config):
    import torch
    tune.report({"mse": config["lr"]})
def search(trials):
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space={"lr": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=2, metric="mse", mode="min",
                                        reuse_actors=sys.argv[1] == "empty"),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        begin = time.perf_counter()
        found = tuner.fit()
        seconds = time.perf_counter() - begin
        assert len(found) == trials and not found.errors
        return seconds
search(2)
print("ready", flush=True)
for line in sys.stdin:
    print(search(int(line)), flush=True)
ray.shutdown()
"""


class Peer:
    """Ray Tune in its own process, which waits while we run."""

    def __init__(self, python: str, part: str) -> None:
        self._process = subprocess.Popen(
            [python, "-c", SERVE, part],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        while self._read() != "ready":
            pass

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with {self._process.wait(60)}")
        return line.strip()

    def run(self, trials: int) -> float:
        """Seconds."""
        assert self._process.stdin is not None
        print(trials, file=self._process.stdin, flush=True)
        while True:  # Ray writes there, too.
            try:
                return float(self._read())
            except ValueError:
                continue

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def one_weight(_config: dict[str, Any]) -> torch.nn.Module:
    return torch.nn.Linear(1, 1)


def empty_trials(trials: int, reuse: bool) -> float:
    """Seconds for a search whose trials do nothing."""
    rows = np.zeros((1, 1), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        search = AutoEstimator.from_torch(
            model_creator=one_weight,
            optimizer="SGD",
            loss=torch.nn.MSELoss(),
            logs_dir=folder,
            name="empty",
        )
        begin = time.perf_counter()
        search.fit(
            (rows, rows),
            validation_data=(rows, rows),
            metric="mse",
            n_sampling=trials,
            search_space={"lr": hp.uniform(0.0, 1.0), "batch_size": 1},
            reuse_workers=reuse,
        )
        seconds = time.perf_counter() - begin
        assert [trial.state for trial in search.trials] == ["finished"] * trials
        assert len(list(Path(folder).glob("empty/*/best.ckpt"))) == trials
    return seconds


def bench_empty(part: str, ray: str, trials: int, rounds: int) -> None:
    reuse = part == "empty"
    empty_trials(4, reuse)
    peer = Peer(ray, part)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(empty_trials(trials, reuse) / trials)
        theirs.append(peer.run(trials) / trials)
    peer.end()
    report("trial-ray-reused" if reuse else "trial-ray-forked", ours, theirs)


def nothing(x: float) -> float:
    return x


def bench_many(trials: int, rounds: int) -> None:
    orca.run(nothing, (1.0,), workers=2)
    ours = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            study = Study(
                {"x": hp.uniform(0.0, 1.0)}, search_alg="random", storage=Path(folder) / "study.db"
            )
            study.optimize(
                lambda config: orca.run(nothing, (config["x"],), workers=1)[0],
                n_trials=trials,
                parallel=2,
                quiet=True,
            )
            ours.append(time.perf_counter() - begin)
            assert len(study) == trials
            assert study.best_value == min(trial.config["x"] for trial in study.trials)
            del study
    report("trial-many", ours, [LIMIT * trials / 10_000] * rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["empty", "forked", "many"])
    parser.add_argument("--ray", help="python of an environment with Ray")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    orca.init_orca_context("local", cores=2)
    if options.part != "many":
        if not options.ray:
            parser.error(f"{options.part} compares with Ray; give --ray")
        bench_empty(options.part, options.ray, options.trials or 100, options.rounds)
    else:
        bench_many(options.trials or 10_000, options.rounds)
    orca.stop_orca_context()


if __name__ == "__main__":
    main()
