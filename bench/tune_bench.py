"""Studies against Optuna 5 and Rustuna.

    python bench/tune_bench.py tpe --optuna PYTHON | gp --optuna PYTHON

``tpe``: 1,000 trials of TPE over 10 floats, an objective in Python, in memory; ``gp``: 100 trials with a Gaussian process.
The PYTHONs are those of an environment with both peers. A peer is a process that waits while we run, and the other way
around; every side gets the same seeds. The answers count, too: our median of the best values must not be worse than the
peer's by more than the factor below. Lines that begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time

from runtime_bench import report

from orca.automl import hp
from orca.tune import Study

DIMENSIONS = 10
# Medians of a few studies are that far apart.
NOT_WORSE = 1.5
SERVE = """
import sys, time, warnings
warnings.simplefilter("ignore")
kind, trials = sys.argv[1], int(sys.argv[2])
def objective(trial):
    return sum((trial.suggest_float(f"x{i}", -5, 5) - 0.1 * i) ** 2 for i in range(10))
if kind == "rustuna":
    import rustuna as peer
else:
    import optuna as peer
    peer.logging.set_verbosity(peer.logging.ERROR)
def study(seed, trials):
    if kind == "gp":
        sampler = peer.samplers.GPSampler(seed=seed)
    else:
        sampler = peer.samplers.TPESampler(seed=seed)
    found = peer.create_study(sampler=sampler)
    found.optimize(objective, n_trials=trials)
    return found.best_trial.value
study(0, 12)
print("ready", flush=True)
for line in sys.stdin:
    begin = time.perf_counter()
    best = study(int(line), trials)
    print(time.perf_counter() - begin, best, flush=True)
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


def compare(name: str, search_alg: str, kind: str, python: str, trials: int, rounds: int) -> None:
    peer = Peer(python, SERVE, kind, str(trials))
    mine, theirs = [], []
    for seed in range(rounds):
        mine.append(ours(search_alg, trials, seed))
        seconds, best = map(float, peer.ask(str(seed)).split())
        theirs.append((seconds, best))
    peer.end()
    report(name, [seconds for seconds, _ in mine], [seconds for seconds, _ in theirs])
    best, others = (statistics.median(value for _, value in side) for side in (mine, theirs))
    print(f"{name}: best value {best:.4g}, peer's {others:.4g} (medians of {rounds} studies)")
    if best > NOT_WORSE * others:
        raise AssertionError(f"{name}: our best value {best:.4g} is worse than {others:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["tpe", "gp"])
    parser.add_argument("--optuna", required=True, help="python of an environment with the peers")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    ours("random", 10, 0)
    if options.part == "tpe":
        trials = options.trials or 1000
        compare("tune-tpe", "tpe", "optuna", options.optuna, trials, options.rounds or 5)
        compare("tune-tpe-rustuna", "tpe", "rustuna", options.optuna, trials, options.rounds or 15)
    else:
        trials = options.trials or 100
        compare("tune-gp", "gp", "gp", options.optuna, trials, options.rounds or 5)


if __name__ == "__main__":
    main()
