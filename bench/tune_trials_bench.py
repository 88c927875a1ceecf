"""What trials cost, against Ray Tune.

    python bench/tune_trials_bench.py empty|forked|reports|lenet --ray PYTHON | many | many-forked | resume

``empty``: 100 trials through AutoEstimator, two at a time on reused workers: a model with one weight, one row, one epoch,
the weights on the disk and every decision in the study's file. The peer is Ray Tune with ``reuse_actors``, whose trials
do the same with a loop in torch; and two processes of torch that nobody directs. ``forked``: every trial in a process of its own that has torch, against Ray Tune without.
``reports``: a report while ASHA decides, ten a trial, of a stored study with a function in Python that yields them, and of
AutoEstimator's epochs on two workers; the peer's come from its trainables on two actors. All curves are the same: ASHA
decides at every rung, and nobody is stopped. ``lenet``: the search of Analytics Zoo's documentation, LeNet on 20,000 images of Fashion-MNIST, 16
configurations that both sides get in the same order, ASHA, two at a time: the time from the call to the first report of
85 %, and that of the whole search; ours also with the form of ASHA that pauses and promotes, which the peer does not have. ``many``: 10,000 calls of an empty function on two reused workers, each a trial of a study
on the disk, against ten seconds. ``many-forked``: each in a process of its own, against a minute. ``resume``: opening a study of
100,000 finished trials with ten parameters, against one second. PYTHON is that of an environment with Ray and torch.
``empty --ours`` and ``forked --ours`` look at ours alone. Lines that begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from runtime_bench import report

import orca
from orca import running
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
from orca.tune import Study
from orca.tune.space import SearchSpace

LIMITS = {"many": 10.0, "many-forked": 60.0}  # Seconds for 10,000 trials.
RESUME_SECONDS = 1.0  # For 100,000 trials.
REPORTS = 10  # A trial.
LENET_EPOCHS = 4
LENET_SEED = 1
GOOD = 0.85  # The accuracy to be reached.
REST = 1.0  # Seconds in which the other side ends what it began: Ray removes its actors when its call has returned.
FASHION = Path("/usr/share/datasets/fashion-mnist")
# Both sides have this: the model and the loaders.
LENET = """
import numpy as np, torch
import torch.nn.functional as F
from torch import nn
class LeNet(nn.Module):
    def __init__(self, fc1_hidden_size):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5, 1)
        self.conv2 = nn.Conv2d(20, 50, 5, 1)
        self.fc1 = nn.Linear(4 * 4 * 50, fc1_hidden_size)
        self.fc2 = nn.Linear(fc1_hidden_size, 10)
    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2, 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 2)
        x = F.relu(self.fc1(x.view(-1, 4 * 4 * 50)))
        return F.log_softmax(self.fc2(x), dim=1)
def loader(config, part):
    x, y = (torch.from_numpy(np.load(f"{config['folder']}/{part}-{name}.npy")) for name in ("x", "y"))
    x = (x.unsqueeze(1).float() / 255 - 0.2860) / 0.3530
    data = torch.utils.data.TensorDataset(x, y)
    return torch.utils.data.DataLoader(data, batch_size=config["batch_size"], shuffle=part == "train")
def train_loader(config):
    return loader(config, "train")
def test_loader(config):
    return loader(config, "test")
def net(config):
    return LeNet(config["fc1_hidden_size"])
def adam(model, config):
    return torch.optim.Adam(model.parameters(), lr=config["lr"])
"""
FIRST_GOOD = """
import sqlite3, sys
study = sqlite3.connect(sys.argv[1])
print(study.execute("SELECT min(time) FROM reports WHERE value >= ?", (float(sys.argv[2]),)).fetchone()[0])
"""
SERVE = (
    LENET
    + """
import json, os, sys, tempfile, time
os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
if sys.argv[1] == "reports":  # Our study writes no files for people, either.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
os.environ["RAY_worker_niceness"] = "0"  # Its actors would give way to other programs, which ours do not.
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", num_cpus=2)
part, STEPS, EPOCHS, GOOD = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
def one_weight(config):
    torch.set_num_threads(1)
    row = torch.zeros(1, 1)
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(row, row), batch_size=1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for x, y in rows:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        value = sum(F.mse_loss(model(x), y).item() for x, y in rows)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), f"{folder}/best.ckpt")
        tune.report({"value": value}, checkpoint=tune.Checkpoint.from_directory(folder))
def many_reports(config):
    for step in range(1, STEPS + 1):
        tune.report({"value": float(step)})
def train(config):
    torch.set_num_threads(1)
    rows, held_out = train_loader(config), test_loader(config)
    model = net(config)
    optimizer = adam(model, config)
    for _ in range(EPOCHS):
        model.train()
        for x, y in rows:
            optimizer.zero_grad()
            F.nll_loss(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in held_out)
        tune.report({"value": right / len(held_out.dataset)})
class FirstGood(tune.Callback):
    def __init__(self):
        self.when = float("nan")
    def on_trial_result(self, iteration, trials, trial, result, **info):
        if self.when != self.when and result["value"] >= GOOD:
            self.when = time.perf_counter()
scratch = tempfile.TemporaryDirectory()  # Nothing is removed meanwhile, as on our side.
def search(function, space, trials, scheduler=None):
    good = FirstGood()
    tuner = tune.Tuner(
        tune.with_resources(function, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=2, metric="value", mode="max",
                                    scheduler=scheduler, reuse_actors=part != "forked"),
        run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(dir=scratch.name), verbose=0, callbacks=[good]),
    )
    begin = time.perf_counter()
    found = tuner.fit()
    seconds = time.perf_counter() - begin
    assert not found.errors
    return {"seconds": seconds, "good": good.when - begin, "trials": len(found),
            "reports": sum(one.metrics["training_iteration"] for one in found)}
search(one_weight, {"lr": tune.uniform(0, 1)}, 2)
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if part == "reports":
        answer = search(many_reports, {"lr": tune.uniform(0, 1)}, asked, ASHAScheduler(max_t=STEPS))
    elif part == "lenet":
        with_asha = ASHAScheduler(max_t=EPOCHS, reduction_factor=2)
        answer = search(lambda config: train(config["all"]), {"all": tune.grid_search(asked)}, 1, with_asha)
    else:
        answer = search(one_weight, {"lr": tune.uniform(0, 1)}, asked)
    print("ANSWER", json.dumps(answer), flush=True)
ray.shutdown()
scratch.cleanup()
"""
)
# What cannot be had for less: two processes that nobody directs make such trials, and write files as large.
BARE = """
import json, os, sys, time, torch
import torch.nn.functional as F
torch.set_num_threads(1)
folder, trials = sys.argv[1], int(sys.argv[2])
row = torch.zeros(1, 1)
def trial(number):
    own = f"{folder}/{os.getpid()}-{number}"
    os.mkdir(own)
    torch.manual_seed(number)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.mse_loss(model(row), row).backward()
    optimizer.step()
    with torch.no_grad():
        value = F.mse_loss(model(row), row).item()
    torch.save(model.state_dict(), f"{own}/best.ckpt")
    for name, size in (("params.json", 40), ("result.json", 200), ("progress.csv", 200), ("events", 800)):
        with open(f"{own}/{name}", "w") as file:
            file.write("x" * size)
for number in range(50):
    trial(-1 - number)
print("ready", flush=True)
for line in sys.stdin:
    for number in range(trials):
        trial(int(line) * trials + number)
    print("done", flush=True)
"""
SHARED: dict[str, Any] = {}
exec(LENET, SHARED)


# Nothing is removed until the bench ends: where files were removed, ext4 makes new ones slowly for minutes.
SCRATCH = tempfile.TemporaryDirectory()


class Peer:
    """Ray Tune in its own process, which waits while we run."""

    def __init__(self, python: str, part: str) -> None:
        self._process = subprocess.Popen(
            [python, "-c", SERVE, part, str(REPORTS), str(LENET_EPOCHS), str(GOOD)],
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

    def ask(self, what: Any) -> dict[str, float]:
        """Runs a search: `what` is the number of trials, or their configurations."""
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        while True:  # Ray writes there, too.
            kind, _, answer = self._read().partition(" ")
            if kind == "ANSWER":
                found: dict[str, float] = json.loads(answer)
                return found

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def one_weight(_config: dict[str, Any]) -> Any:
    import torch  # Not above: processes of ``many-forked`` do without.

    model = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(model.bias)  # All curves are the same: there is nothing to stop.
    return model


def empty_trials(trials: int, reuse: bool, epochs: int = 1) -> float:
    """Seconds for a search whose trials learn nothing; ASHA decides when they have several epochs."""
    rows = np.zeros((1, 1), np.float32)
    folder = tempfile.mkdtemp(dir=SCRATCH.name)
    search = AutoEstimator.from_torch(
        model_creator=one_weight,
        optimizer="SGD",
        loss="MSELoss",
        logs_dir=folder,
        name="empty",
    )
    begin = time.perf_counter()
    search.fit(
        (rows, rows),
        validation_data=(rows, rows),
        epochs=epochs,
        metric="mse",
        n_sampling=trials,
        search_space={"lr": hp.uniform(0.0, 1.0), "batch_size": 1},
        scheduler="async_hyperband" if epochs > 1 else None,
        scheduler_params={"max_t": epochs} if epochs > 1 else None,
        reuse_workers=reuse,
    )
    seconds = time.perf_counter() - begin
    assert [trial.state for trial in search.trials] == ["finished"] * trials
    assert all(len(trial.reports) == epochs for trial in search.trials)
    assert len(list(Path(folder).glob("empty/*/best.ckpt"))) == trials
    return seconds


def look(part: str, trials: int, rounds: int) -> None:
    """Ours alone: no result, since there is no peer."""
    empty_trials(4, part == "empty")
    for _ in range(rounds):
        before = cpu_seconds()
        seconds = empty_trials(trials, part == "empty")
        used = cpu_seconds() - before
        print(
            f"{part}: {1e3 * seconds / trials:.2f} ms, {1e3 * used / trials:.2f} ms of CPU a trial"
        )


def cpu_seconds() -> float:
    """Of this process and all below it, those that have ended and were waited for, too."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # It has just ended.
            continue
        children.setdefault(int(fields[1]), []).append(int(folder.name))
        ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def bench_empty(part: str, ray: str, trials: int, rounds: int) -> None:
    reuse = part == "empty"
    empty_trials(4, reuse)
    peer, bare = Peer(ray, part), Bare(trials)
    ours, theirs, limits = [], [], []
    for _ in range(rounds):
        time.sleep(REST)
        ours.append(empty_trials(trials, reuse) / trials)
        limits.append(bare.seconds())
        time.sleep(REST)
        answer = peer.ask(trials)
        assert answer["trials"] == trials
        theirs.append(answer["seconds"] / trials)
    peer.end()
    bare.end()
    report("trial-ray-reused" if reuse else "trial-ray-forked", ours, theirs)
    if reuse:
        report("trial-limit", ours, limits)
        report("trial-bound", limits, theirs)


class Bare:
    """Two processes of torch, which wait while we run."""

    def __init__(self, trials: int) -> None:
        self._trials, self._rounds = trials, 0
        command = [sys.executable, "-c", BARE, tempfile.mkdtemp(dir=SCRATCH.name), str(trials // 2)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
        self._hear()

    def _hear(self) -> None:
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline()

    def seconds(self) -> float:
        """Of a trial."""
        begin = time.perf_counter()
        for process in self._processes:
            print(self._rounds, file=process.stdin, flush=True)
        self._hear()
        self._rounds += 1
        return (time.perf_counter() - begin) / (self._trials // 2 * 2)

    def end(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def curve(_config: dict[str, float]) -> Any:
    for step in range(1, REPORTS + 1):
        yield float(step)


def reports_of_a_study(trials: int) -> float:
    """Seconds a report."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        study = Study(
            {"lr": hp.uniform(0.0, 1.0)},
            mode="max",
            search_alg="random",
            scheduler="async_hyperband",
            scheduler_params={"max_t": REPORTS},
            epochs=REPORTS,
            storage=Path(folder) / "study.db",
        )
        study.optimize(curve, n_trials=trials, quiet=True)
        seconds = time.perf_counter() - begin
        assert len(study) == trials
        assert all(len(trial.reports) == REPORTS for trial in study.trials)
    return seconds / (trials * REPORTS)


def bench_reports(ray: str, trials: int, rounds: int) -> None:
    reports_of_a_study(10)
    empty_trials(4, True, REPORTS)
    peer = Peer(ray, "reports")
    ours, workers, theirs = [], [], []
    for _ in range(rounds):
        ours.append(reports_of_a_study(50 * trials))
        answer = peer.ask(trials)
        assert answer["reports"] == trials * REPORTS, answer
        theirs.append(answer["seconds"] / answer["reports"])
        workers.append(empty_trials(trials, True, REPORTS) / (trials * REPORTS))
    peer.end()
    report("reports-ray", ours, theirs)
    report("reports-ray-workers", workers, theirs)


def write_images(folder: str, rows: int) -> None:
    """Fashion-MNIST as files of numpy: `rows` to learn from, all of the others to measure with."""
    for part, prefix, most in (("train", "train", rows), ("test", "t10k", 10_000)):
        images = gzip.decompress((FASHION / f"{prefix}-images-idx3-ubyte.gz").read_bytes())[16:]
        labels = gzip.decompress((FASHION / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())[8:]
        x = np.frombuffer(images, np.uint8).reshape(-1, 28, 28)[:most]
        np.save(f"{folder}/{part}-x.npy", x)
        np.save(f"{folder}/{part}-y.npy", np.frombuffer(labels, np.uint8).astype(np.int64)[:most])


def lenet_search(
    space: dict[str, Any], configs: list[dict[str, Any]], form: str
) -> tuple[float, float]:
    """Seconds of our search, and until its first good report."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        search = AutoEstimator.from_torch(
            model_creator=SHARED["net"],
            optimizer=SHARED["adam"],
            loss=torch.nn.NLLLoss(),
            logs_dir=folder,
            name="lenet",
            resources_per_trial={"cpu": 1},
        )
        begin = time.time()
        search.fit(
            SHARED["train_loader"],
            validation_data=SHARED["test_loader"],
            epochs=LENET_EPOCHS,
            metric="accuracy",
            search_space=space,
            n_sampling=len(configs) // 2,
            scheduler="async_hyperband",
            scheduler_params={"max_t": LENET_EPOCHS, "reduction_factor": 2, "form": form},
            seed=LENET_SEED,
        )
        seconds = time.time() - begin
        assert [trial.config for trial in search.trials] == configs
        assert not any(trial.state == "failed" for trial in search.trials)
        # Another process: a program must not open a study that it writes with another copy of SQLite.
        first = [sys.executable, "-c", FIRST_GOOD, f"{folder}/lenet/study.db", str(GOOD)]
        when = subprocess.run(first, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    if when == "None":
        raise AssertionError(f"no trial was as good as {GOOD}")
    return seconds, float(when) - begin


def bench_lenet(ray: str, rows: int, trials: int, rounds: int) -> None:
    empty_trials(4, True)
    peer = Peer(ray, "lenet")
    forms = ("stopping", "promotion")
    good: dict[str, list[float]] = {form: [] for form in (*forms, "peer")}
    whole: dict[str, list[float]] = {form: [] for form in (*forms, "peer")}
    with tempfile.TemporaryDirectory() as folder:
        write_images(folder, rows)
        space = {
            "fc1_hidden_size": hp.grid_search([500, 600]),
            "lr": hp.loguniform(0.001, 0.1),
            "batch_size": hp.choice([160, 320, 640]),
            "folder": folder,
        }
        drawn = SearchSpace(space)
        configs = [drawn.draw(LENET_SEED, number) for number in range(trials)]
        for _ in range(rounds):
            for form in forms:
                seconds, reached = lenet_search(space, configs, form)
                whole[form].append(seconds)
                good[form].append(reached)
            answer = peer.ask(configs)
            assert answer["trials"] == trials
            if not answer["good"] > 0:
                raise AssertionError(f"no trial of the peer was as good as {GOOD}")
            whole["peer"].append(answer["seconds"])
            good["peer"].append(answer["good"])
    peer.end()
    for form, name in zip(forms, ("lenet-ray", "lenet-ray-promotion"), strict=True):
        report(name, good[form], good["peer"])
        report(f"{name}-whole", whole[form], whole["peer"])


def bench_resume(trials: int, rounds: int) -> None:
    space = {f"x{i}": hp.uniform(-5.0, 5.0) for i in range(10)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.db"

        def opened() -> Study:
            return Study(space, search_alg="random", seed=1, storage=file, resume="auto")

        study = opened()
        study.optimize(lambda config: float(config["x0"]), n_trials=trials, quiet=True)
        best = study.best_value
        del study
        ours = []
        for _ in range(rounds):
            begin = time.perf_counter()
            study = opened()
            ours.append(time.perf_counter() - begin)
            assert (len(study), study.best_value) == (trials, best)
            del study
    report("study-resume", ours, [RESUME_SECONDS * trials / 100_000] * rounds)


def nothing(x: float) -> float:
    return x


def bench_many(part: str, trials: int, rounds: int) -> None:
    orca.run(nothing, (1.0,), workers=2)
    forks = part == "many-forked"

    def objective(config: dict[str, Any]) -> float:
        with running.fresh_workers(forks):
            found: float = orca.run(nothing, (config["x"],), workers=1, threads=1)[0]
        return found

    ours = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            study = Study(
                {"x": hp.uniform(0.0, 1.0)}, search_alg="random", storage=Path(folder) / "study.db"
            )
            study.optimize(objective, n_trials=trials, parallel=2, quiet=True)
            ours.append(time.perf_counter() - begin)
            assert len(study) == trials
            assert study.best_value == min(trial.config["x"] for trial in study.trials)
            del study
    report(f"trial-{part}", ours, [LIMITS[part] * trials / 10_000] * rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["empty", "forked", "reports", "lenet", *LIMITS, "resume"])
    parser.add_argument("--ray", help="python of an environment with Ray and torch")
    parser.add_argument("--ours", action="store_true", help="look at ours alone, with its CPU time")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rows", type=int, default=20_000, help="lenet: images to learn from")
    options = parser.parse_args()
    alone = options.part in (*LIMITS, "resume") or (
        options.ours and options.part in ("empty", "forked")
    )
    if not alone and not options.ray:
        parser.error(f"{options.part} compares with Ray; give --ray")
    orca.init_orca_context("local", cores=2)
    trials, rounds = options.trials, options.rounds or 2
    if options.part in LIMITS:
        bench_many(options.part, trials or 10_000, rounds)
    elif options.part == "resume":
        bench_resume(trials or 100_000, options.rounds or 5)
    elif alone:
        look(options.part, trials or 100, rounds)
    elif options.part == "reports":
        bench_reports(options.ray, trials or 20, options.rounds or 3)
    elif options.part == "lenet":
        bench_lenet(options.ray, options.rows, trials or 16, options.rounds or 1)
    else:
        bench_empty(options.part, options.ray, trials or 100, rounds)
    orca.stop_orca_context()


if __name__ == "__main__":
    main()
