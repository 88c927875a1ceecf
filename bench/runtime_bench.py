"""Starting workers and calling functions on them, against torchrun and Ray, in turns.

    python bench/runtime_bench.py cold|warm [--ray PYTHON]

``cold``: a whole program that imports torch and runs an empty function on two workers, from its start to its end. ``warm``:
a call of a trivial function on one warm worker, and a second run on two. PYTHON is the interpreter of an environment with
Ray and torch. Every program checks what its workers returned. Lines that begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ORCA = """
import torch, orca
orca.init_orca_context(cores=2)
assert orca.run(lambda: torch.ones(2).sum().item(), workers=2) == [2.0, 2.0]
orca.stop_orca_context()
"""
TORCHRUN = """
import torch
assert torch.ones(2).sum().item() == 2.0
"""
# What cannot be had for less: the driver imports torch and ends, and before it ends another process has imported it.
LIMITS = ("import torch", "import gc; gc.disable(); import os, torch; os._exit(0)")
RAY = """
import os
os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
import torch, ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
def function():
    assert torch.ones(2).sum().item() == 2.0
import tempfile
with tempfile.TemporaryDirectory() as folder:
    TorchTrainer(function, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=folder)).fit()
ray.shutdown()
"""
RAY_CALLS = """
import statistics, sys, time, ray
ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", num_cpus=2)
@ray.remote
class Actor:
    def absolute(self, x):
        return abs(x)
actor = Actor.remote()
for _ in range(200):
    ray.get(actor.absolute.remote(-1))
times = []
for _ in range(5):
    begin = time.perf_counter()
    for _ in range(300):
        assert ray.get(actor.absolute.remote(-1)) == 1
    times.append((time.perf_counter() - begin) / 300)
print(statistics.median(times))
ray.shutdown()
"""
ORCA_CALLS = """
import statistics, time, torch, orca
orca.init_orca_context(cores=2)
for _ in range(200):
    orca.run(abs, (-1,), workers=1)
times = []
for _ in range(5):
    begin = time.perf_counter()
    for _ in range(300):
        assert orca.run(abs, (-1,), workers=1) == [1]
    times.append((time.perf_counter() - begin) / 300)
print(statistics.median(times))
orca.run(abs, (-1,), workers=2)
again = []
for _ in range(21):
    begin = time.perf_counter()
    assert orca.run(lambda: 1, workers=2) == [1, 1]
    again.append(time.perf_counter() - begin)
print(statistics.median(again))
orca.stop_orca_context()
"""


def report(name: str, ours: list[float], peer: list[float]) -> None:
    """One comparison: medians, and the median of the ratios of the rounds."""
    ratio = statistics.median(p / o for o, p in zip(ours, peer, strict=True))
    print(
        f"RESULT {name} ours_us={statistics.median(ours) * 1e6:.2f} "
        f"peer_us={statistics.median(peer) * 1e6:.2f} ratio={ratio:.3f}",
        flush=True,
    )


def timed(command: list[str]) -> float:
    """Seconds that a program takes; fails when it fails. Both sides may write byte code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ORCA_LOG": "warning"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, timeout=300)
    return time.perf_counter() - begin


def answers(command: list[str]) -> list[float]:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    return [float(line) for line in done.stdout.split()]


def bench_cold(folder: Path, ray: str) -> None:
    scripts = {name: folder / f"{name}_program.py" for name in ("orca", "torchrun", "ray")}
    for name, text in (("orca", ORCA), ("torchrun", TORCHRUN), ("ray", RAY)):
        scripts[name].write_text(text)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    commands = {
        "orca": [sys.executable, str(scripts["orca"])],
        "torchrun": [*launch, str(scripts["torchrun"])],
    }
    if ray:
        commands["ray"] = [ray, str(scripts["ray"])]
    times: dict[str, list[float]] = {name: [] for name in commands}
    limits = []
    for turn in range(-1, 5):
        for name, command in commands.items():
            seconds = timed(command)
            if turn >= 0:
                times[name].append(seconds)
        if turn >= 0:
            limits.append(sum(timed([sys.executable, "-c", program]) for program in LIMITS))
    for name in list(commands)[1:]:
        report(f"cold-{name}", times["orca"], times[name])
    report("cold-limit", times["orca"], limits)
    second = answers([sys.executable, "-c", ORCA_CALLS])[1]
    report("second-torchrun", [second], [statistics.median(times["torchrun"])])


def bench_warm(ray: str) -> None:
    if not ray:
        sys.exit("a warm call has no peer without Ray; give --ray PYTHON")
    ours, peer = [], []
    for _ in range(5):
        ours.append(answers([sys.executable, "-c", ORCA_CALLS])[0])
        peer.append(answers([ray, "-c", RAY_CALLS])[0])
    report("call-ray", ours, peer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["cold", "warm"])
    parser.add_argument("--ray", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "cold":
            bench_cold(Path(folder), arguments.ray)
        else:
            bench_warm(arguments.ray)


if __name__ == "__main__":
    main()
