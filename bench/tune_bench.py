"""Studies against Optuna 5 and Rustuna.

    python bench/tune_bench.py tpe|stored|gp|ask --optuna PYTHON

``tpe``: 1,000 trials of TPE over 10 floats, an objective in Python, in memory; ``stored``: the same on the disk, against Optuna
with SQLite and with its journal, all of them with every commit synchronised, and against a program that only writes and
synchronises as many bytes in as many pieces as we did; ``gp``: 100 trials with a Gaussian process; ``ask``: one trial, asked and
told, of 8 floats, when both sides know the same 1,000 (TPE) or 200 (Gaussian process) random ones.
The PYTHONs are those of an environment with both peers. A peer is a process that waits while we run, and the other way
around; every side gets the same seeds. The answers count, too: our median of the best values must not be worse than the
peer's by more than the factor below. Lines that begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from runtime_bench import report

from orca.automl import hp
from orca.tune import Study

DIMENSIONS = 10
# Medians of a few studies are that far apart.
NOT_WORSE = 1.5
SERVE = """
import sys, tempfile, time, warnings
warnings.simplefilter("ignore")
kind, trials = sys.argv[1], int(sys.argv[2])
def objective(trial):
    return sum((trial.suggest_float(f"x{i}", -5, 5) - 0.1 * i) ** 2 for i in range(10))
if kind == "rustuna":
    import rustuna as peer
else:
    import optuna as peer
    peer.logging.set_verbosity(peer.logging.ERROR)
def stored(folder):
    if kind == "sqlite":
        import sqlalchemy
        storage = peer.storages.RDBStorage(f"sqlite:///{folder}/study.db")
        with storage.engine.connect() as connection:  # 2: full.
            assert connection.execute(sqlalchemy.text("PRAGMA synchronous")).scalar() == 2
        return storage
    from optuna.storages.journal import JournalFileBackend
    return peer.storages.JournalStorage(JournalFileBackend(f"{folder}/study.log"))
def study(seed, trials):
    if kind == "gp":
        sampler = peer.samplers.GPSampler(seed=seed)
    else:
        sampler = peer.samplers.TPESampler(seed=seed)
    if kind not in ("sqlite", "journal"):
        found = peer.create_study(sampler=sampler)
        found.optimize(objective, n_trials=trials)
        return found.best_trial.value
    with tempfile.TemporaryDirectory() as folder:
        found = peer.create_study(sampler=sampler, storage=stored(folder))
        found.optimize(objective, n_trials=trials)
        known = peer.load_study(study_name=found.study_name, storage=stored(folder))
        assert len(known.trials) == trials
        return known.best_trial.value
study(0, 12)
print("ready", flush=True)
for line in sys.stdin:
    begin = time.perf_counter()
    best = study(int(line), trials)
    print(time.perf_counter() - begin, best, flush=True)
"""
ASK = """
import importlib, random, sys, time, warnings
warnings.simplefilter("ignore")
peer, sampler, known, count = importlib.import_module(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if sys.argv[1] == "optuna":
    peer.logging.set_verbosity(peer.logging.ERROR)
space = {f"x{i}": peer.distributions.FloatDistribution(-5, 5) for i in range(8)}
def loss(params):
    return sum((value - 0.1 * i) ** 2 for i, value in enumerate(params.values()))
def run(seed, known, count):
    draw = random.Random(seed)
    study = peer.create_study(sampler=getattr(peer.samplers, sampler)(seed=seed))
    for _ in range(known):
        params = {name: draw.uniform(-5, 5) for name in space}
        study.add_trial(peer.trial.create_trial(params=params, distributions=space, value=loss(params)))
    begin, values = time.perf_counter(), []
    for _ in range(count):
        trial = study.ask()
        values.append(loss({name: trial.suggest_float(name, -5, 5) for name in space}))
        study.tell(trial.number, values[-1])
    return (time.perf_counter() - begin) / count, min(values)
run(0, 20, 2)
print("ready", flush=True)
for line in sys.stdin:
    print(*run(int(line), known, count), flush=True)
"""


class Peer:
    """Another library in its own process: it says "ready", then answers lines with lines."""

    def __init__(self, python: str, program: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [python, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with {self._process.wait(60)}")
        return line

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return self._read()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def objective(config: dict[str, float]) -> float:
    return sum((config[f"x{i}"] - 0.1 * i) ** 2 for i in range(DIMENSIONS))


def ours(search_alg: str, trials: int, seed: int) -> tuple[float, float]:
    begin = time.perf_counter()
    space = {f"x{i}": hp.uniform(-5, 5) for i in range(DIMENSIONS)}
    study = Study(space, search_alg=search_alg, seed=seed)
    study.optimize(objective, n_trials=trials)
    return time.perf_counter() - begin, study.best_value


def written() -> int:
    """The bytes that this process has written."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def ours_stored(trials: int, seed: int) -> tuple[float, float, float]:
    """Seconds of a stored study and its best value; and the seconds that its writing cannot be done without."""
    space = {f"x{i}": hp.uniform(-5, 5) for i in range(DIMENSIONS)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.db"
        before, begin = written(), time.perf_counter()
        study = Study(space, search_alg="tpe", seed=seed, storage=file, full_sync=True)
        study.optimize(objective, n_trials=trials, quiet=True)
        best, seconds = study.best_value, time.perf_counter() - begin
        # The start of the first trial, ends with the start of the next one, and the end of the last.
        commits = trials + 1
        piece = bytes((written() - before) // commits)
        del study
        known = Study(space, search_alg="tpe", seed=seed, storage=file, resume="auto")
        assert (len(known), known.best_value) == (trials, best)
        with (Path(folder) / "limit").open("wb", buffering=0) as limit:
            begin = time.perf_counter()
            for _ in range(commits):
                limit.write(piece)
                os.fdatasync(limit.fileno())
            least = time.perf_counter() - begin
    print(f"{commits} commits of {len(piece)} bytes", flush=True)
    return seconds, best, least


def compare(name: str, search_alg: str, kind: str, python: str, trials: int, rounds: int) -> None:
    peer = Peer(python, SERVE, kind, str(trials))
    mine, theirs, limits = [], [], []
    for seed in range(rounds):
        if kind in ("sqlite", "journal"):
            *found, limit = ours_stored(trials, seed)
            limits.append(limit)
            mine.append((found[0], found[1]))
        else:
            mine.append(ours(search_alg, trials, seed))
        seconds, best = map(float, peer.ask(str(seed)).split())
        theirs.append((seconds, best))
    peer.end()
    report(name, [seconds for seconds, _ in mine], [seconds for seconds, _ in theirs])
    if limits:
        report(f"{name}-limit", [seconds for seconds, _ in mine], limits)
    best, others = (statistics.median(value for _, value in side) for side in (mine, theirs))
    print(f"{name}: best value {best:.4g}, peer's {others:.4g} (medians of {rounds} studies)")
    if best > NOT_WORSE * others:
        raise AssertionError(f"{name}: our best value {best:.4g} is worse than {others:.4g}")


def ours_ask(search_alg: str, known: int, count: int, seed: int) -> tuple[float, float]:
    """Seconds of a trial when `known` are known, and the best of `count`."""
    draw = random.Random(seed)
    names = [f"x{i}" for i in range(8)]
    study = Study({name: hp.uniform(-5, 5) for name in names}, search_alg=search_alg, seed=seed)

    def loss(config: dict[str, float]) -> float:
        return sum((config[name] - 0.1 * i) ** 2 for i, name in enumerate(names))

    for _ in range(known):
        config = {name: draw.uniform(-5, 5) for name in names}
        study.add_trial(config, loss(config))
    begin, values = time.perf_counter(), []
    for _ in range(count):
        trial = study.ask()
        values.append(loss(trial.config))
        study.tell(trial, values[-1])
    return (time.perf_counter() - begin) / count, min(values)


def compare_ask(name: str, search_alg: str, sampler: str, known: int, python: str) -> None:
    """`sampler` is the peer's, with its library: "optuna.TPESampler"."""
    count = 20  # So many that a fit of the Gaussian process is among them.
    peer = Peer(python, ASK, *sampler.split("."), str(known), str(count))
    mine, theirs = [], []
    for seed in range(5):
        mine.append(ours_ask(search_alg, known, count, seed))
        seconds, best = map(float, peer.ask(str(seed)).split())
        theirs.append((seconds, best))
    peer.end()
    report(name, [seconds for seconds, _ in mine], [seconds for seconds, _ in theirs])
    best, others = (statistics.median(value for _, value in side) for side in (mine, theirs))
    print(f"{name}: best value {best:.4g}, peer's {others:.4g} (medians of 5 studies)")
    if best > NOT_WORSE * others + 0.05:  # The best of 1,000 random ones is about 10.
        raise AssertionError(f"{name}: our best value {best:.4g} is worse than {others:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["tpe", "stored", "gp", "ask"])
    parser.add_argument("--optuna", required=True, help="python of an environment with the peers")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    ours("random", 10, 0)
    if options.part == "tpe":
        trials = options.trials or 1000
        compare("tune-tpe", "tpe", "optuna", options.optuna, trials, options.rounds or 5)
        compare("tune-tpe-rustuna", "tpe", "rustuna", options.optuna, trials, options.rounds or 15)
    elif options.part == "stored":
        trials = options.trials or 1000
        compare("tune-sqlite", "tpe", "sqlite", options.optuna, trials, options.rounds or 2)
        compare("tune-journal", "tpe", "journal", options.optuna, trials, options.rounds or 3)
    elif options.part == "ask":
        compare_ask("tune-ask-tpe", "tpe", "optuna.TPESampler", 1000, options.optuna)
        compare_ask("tune-ask-tpe-rustuna", "tpe", "rustuna.TPESampler", 1000, options.optuna)
        compare_ask("tune-ask-gp", "gp", "optuna.GPSampler", 200, options.optuna)
    else:
        trials = options.trials or 100
        compare("tune-gp", "gp", "gp", options.optuna, trials, options.rounds or 5)


if __name__ == "__main__":
    main()
