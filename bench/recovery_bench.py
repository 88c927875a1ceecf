"""What a killed worker costs, against torchrun and Ray Train; what commits cost when nobody is killed; how soon faults are noticed.

    python bench/recovery_bench.py kill [--ray PYTHON] | commits | notice

``kill``: LeNet on four workers; one kills itself in the middle. Timed is from there to the end of the next step that counts.
torchrun restarts its workers with a checkpoint that they write before that step, Ray Train likewise. ``commits``: an epoch of
LeNet on two workers with and without commits, in turns; the upper bound of their ratio is printed, too. ``notice``: from a fault
to the error, or to the next answer, against the limit that we promise. Lines that begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from estimator_bench import COMMON
from runtime_bench import report

ROOT = Path(__file__).resolve().parents[1]
STEP = 20  # The one in which a worker dies, from 0.
ROUNDS = 20
BATCH = 32
OURS = (
    COMMON
    + """
import signal, orca
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback
folder, STEP = sys.argv[1], int(sys.argv[2])
class Watch(Callback):
    def before_train_iter(self, runner):
        if orca.rank() == 3 and runner.batch_idx == STEP and not os.path.exists(folder + "/killed"):
            with open(folder + "/killed", "w") as file: file.write(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
    def after_train_iter(self, runner):
        if orca.rank() == 0 and runner.batch_idx == STEP:
            with open(folder + "/done", "w") as file: file.write(repr(time.time()))
def model(config): torch.manual_seed(1); return Net()
x, y = data()
orca.init_orca_context(cores=2)
est = Estimator.from_torch(model=model, optimizer=adam, loss=nn.CrossEntropyLoss(), workers_per_node=4)
stats = est.fit((x[:4096], y[:4096]), epochs=1, batch_size=4 * 32, callbacks=[Watch()])
assert stats[0]["num_samples"] == 4096, stats
orca.stop_orca_context()
"""
)
LOOP = (
    COMMON
    + """
import signal
def train(folder, STEP, rank, model, step_of):
    x, y = data(); x, y = torch.from_numpy(x), torch.from_numpy(y)
    optimizer = adam(model); first = 0
    if os.path.exists(folder + "/checkpoint"):
        saved = torch.load(folder + "/checkpoint"); first = saved["step"]
        model.load_state_dict(saved["model"]); optimizer.load_state_dict(saved["optimizer"])
    for step in range(first, 32):
        if step == STEP and rank == 0 and first == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder + "/new")
            os.replace(folder + "/new", folder + "/checkpoint")
        if step == STEP: step_of()
        if step == STEP and rank == 3 and not os.path.exists(folder + "/killed"):
            with open(folder + "/killed", "w") as file: file.write(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        rows = slice((4 * step + rank) * 32, (4 * step + rank + 1) * 32)
        optimizer.zero_grad(); F.cross_entropy(model(x[rows]), y[rows]).backward(); optimizer.step()
        if step == STEP and rank == 0:
            with open(folder + "/done", "w") as file: file.write(repr(time.time()))
"""
)
TORCHRUN = (
    LOOP
    + """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
# With the store of torchrun gloo finds the addresses of the attempt before, and every restart fails.
store = "file://" + sys.argv[1] + "/store" + os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=4); torch.manual_seed(1)
train(sys.argv[1], int(sys.argv[2]), dist.get_rank(), DistributedDataParallel(Net()), dist.barrier)
dist.destroy_process_group()
"""
)
RAY = (
    LOOP
    + """
os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
folder, STEP = sys.argv[1], int(sys.argv[2])
ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", num_cpus=4)
def function():
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    torch.set_num_threads(1); torch.manual_seed(1)
    train(folder, STEP, dist.get_rank(), DistributedDataParallel(Net()), dist.barrier)
TorchTrainer(function, scaling_config=ScalingConfig(num_workers=4), run_config=RunConfig(
    storage_path=folder, failure_config=FailureConfig(max_failures=3))).fit()
ray.shutdown()
"""
)
COMMITS = (
    COMMON
    + """
import orca
from orca.data import ArrayStore
from orca.learn.pytorch import Estimator
batch, rounds = int(sys.argv[1]), int(sys.argv[2])
def model(config): torch.manual_seed(1); return Net()
x, y = data()
orca.init_orca_context(cores=2)
store = ArrayStore(); store.put({"x": x, "y": y})
sides = {}
for way in ("restart", "raise"):
    est = Estimator.from_torch(model=model, optimizer=adam, loss=nn.CrossEntropyLoss(), workers_per_node=2)
    est.fit(store, epochs=1, batch_size=2 * batch, on_failure=way)
    sides[way] = est, []
for turn in range(rounds):
    for way in (("restart", "raise") if turn % 2 else ("raise", "restart")):
        est, times = sides[way]
        begin = time.perf_counter()
        stats = est.fit(store, epochs=1, batch_size=2 * batch, on_failure=way)
        times.append(time.perf_counter() - begin)
        assert stats[-1]["num_samples"] == ROWS
for way in ("restart", "raise"): print(json.dumps(sides[way][1]))
orca.stop_orca_context()
"""
)
NOTICE = """
import json, os, signal, time, orca
from orca.errors import WorkerFailedError
from processes import agent_of, nursery_of, wait_until
import checks_run as checks, pathlib, sys
folder, times = pathlib.Path(sys.argv[1]), {}
def took(fault, begin, limit):
    times.setdefault(fault, ([], limit))[0].append(time.perf_counter() - begin)
def harmed(turn, fault, harm, limit):
    own = folder / f"{fault}-{turn}"; own.mkdir()
    future = orca.submit(checks.hangs, args=(str(own),), workers=2)
    wait_until((own / "rank-1").exists, "it runs")
    begin = time.perf_counter(); harm(int((own / "rank-1").read_text()))
    assert isinstance(future.exception(60), WorkerFailedError), fault
    took(fault, begin, limit)
for turn in range(5):
    with orca.init_orca_context("local", cores=2):
        assert len(orca.run(checks.who, workers=2)) == 2
        harmed(turn, "killed", lambda pid: os.kill(pid, signal.SIGKILL), 1)
        harmed(turn, "stopped", lambda pid: os.kill(pid, signal.SIGSTOP), 6)
        assert len(orca.run(checks.who, workers=2)) == 2
        begin = time.perf_counter()
        try: orca.run(checks.raises_on, args=(0, str(folder)), workers=2)
        except WorkerFailedError as error: assert "on purpose" in str(error)
        took("raised", begin, 1)
        own = folder / f"restart-{turn}"; own.mkdir(); begin = time.perf_counter()
        assert len(orca.run(checks.dies_once, args=(str(own), 1), workers=2, on_failure="restart")) == 2
        took("restarted", begin, 3)
        begin = time.perf_counter(); os.kill(nursery_of(os.getpid()), signal.SIGKILL)
        assert len(orca.run(checks.who, workers=6)) == 6
        took("nursery", begin, 1)
        harmed(turn, "agent", lambda _: os.kill(agent_of(os.getpid()), signal.SIGKILL), 1)
print(json.dumps(times))
"""


def lost(command: list[str]) -> float:
    """Seconds from a worker's death to the end of the next step."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [folder, str(STEP)]
        # Its own account of the killed worker is no news.
        done = subprocess.run(
            [*command, *arguments], check=False, capture_output=True, text=True, timeout=300
        )
        if done.returncode != 0:
            sys.exit(f"{command[-1]} failed:\n{done.stdout}{done.stderr}")
        killed, after = (float((Path(folder) / name).read_text()) for name in ("killed", "done"))
    return after - killed


def bench_kill(folder: Path, ray: str) -> None:
    programs = {"orca": OURS, "torchrun": TORCHRUN} | ({"ray": RAY} if ray else {})
    for name, text in programs.items():
        (folder / f"{name}_program.py").write_text(text)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    commands = {
        "orca": [sys.executable],
        "torchrun": [*launch, "--nproc-per-node=4", "--max-restarts=3"],
        "ray": [ray],
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(3):
        for name, seconds in times.items():
            seconds.append(lost([*commands[name], str(folder / f"{name}_program.py")]))
    for name in list(times)[1:]:
        report(f"killed-{name}", times["orca"], times[name])


def bench_commits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMITS, str(BATCH), str(ROUNDS)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    ours, without = (json.loads(line) for line in done.stdout.splitlines()[-2:])
    ratios = [b / a for a, b in zip(ours, without, strict=True)]
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
    low = mean - 2.093 * spread  # Student's t of 19 degrees of freedom
    report("commits", ours, without)
    print(
        f"RESULT commits-bound ours_us={statistics.median(ours) * 1e6:.2f} "
        f"peer_us={statistics.median(ours) * low * 1e6:.2f} ratio={low:.3f}",
        flush=True,
    )


def bench_notice(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTICE, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests/python")},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    for fault, (times, limit) in json.loads(done.stdout.splitlines()[-1]).items():
        report(f"notice-{fault}", times, [limit] * len(times))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["kill", "commits", "notice"])
    parser.add_argument("--ray", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "kill":
            bench_kill(Path(folder), options.ray)
        elif options.what == "notice":
            bench_notice(folder)
        else:
            bench_commits()


if __name__ == "__main__":
    main()
