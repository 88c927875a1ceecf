"""All-reduce of 8 and 16 ranks on a machine with that many cores: Orca against Open MPI, gloo and the memory.

    python bench/scale.py MPIRUN MPI_BENCH LIMITS_BENCH     # how to make them: docs/performance.md

MPI_BENCH runs Orca and Open MPI in the same processes, in turns, LIMITS_BENCH Orca and the fastest of sixteen kernels that
only move the bytes. gloo runs in processes of its own, whatever torch there is; its runs and theirs take turns, three
times each, and medians are compared. Every rank rewrites its
buffer before each timed call, the slowest rank counts, and every answer is checked.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [64 << 10, 32 << 20]
RESULT = re.compile(r"RESULT \w+/(\d+) ours_us=(\S+) peer_us=(\S+) ratio=(\S+)")


def gloo_rank(rank: int, world: int, store: str, queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for size in SIZES:
        data, ramp = torch.empty(size // 4), torch.arange(size // 4, dtype=torch.float32) % 16
        times = []
        for turn in range(13 if size > (1 << 20) else 53):
            torch.add(ramp, rank + 1 + turn % 7, out=data)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(data)
            times.append(time.perf_counter() - start)
            if not torch.equal(data, ramp * world + sum(r + 1 + turn % 7 for r in range(world))):
                raise AssertionError("gloo returned a wrong sum")
        slowest = torch.tensor(times[3:])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if rank == 0:
            queue.put((size, statistics.median(slowest.tolist()) * 1e6))
    dist.destroy_process_group()


def run_gloo(world: int) -> dict[int, float]:
    queue = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(gloo_rank, (world, os.path.join(folder, "store"), queue), nprocs=world)
    return dict(queue.get() for _ in SIZES)


def run_mpi(world: int, mpirun: str, binary: str) -> dict[int, tuple[float, float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [mpirun, "-n", str(world), "--allow-run-as-root", "--bind-to", "core"]
        return results([*command, binary, "openmpi", folder, *map(str, SIZES)])


def run_limits(world: int, binary: str) -> dict[int, tuple[float, float, float]]:
    return results([binary, "memory", str(world), str(SIZES[-1])])


def results(command: list[str]) -> dict[int, tuple[float, float, float]]:
    output = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=300
    ).stdout
    return {
        int(size): (float(ours), float(peer), float(ratio))
        for size, ours, peer, ratio in RESULT.findall(output)
    }


def main() -> None:
    mpirun, mpi_bench, limits_bench = sys.argv[1:4]
    print(f"{os.cpu_count()} cores, torch {torch.__version__}")
    print("| ranks | bytes | orca | Open MPI | ratio | gloo | ratio | of the memory's limit |")
    print("|---|---|---|---|---|---|---|---|")
    for world in (8, 16):
        ours: dict[int, list[tuple[float, float, float]]] = {size: [] for size in SIZES}
        gloo: dict[int, list[float]] = {size: [] for size in SIZES}
        limits: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(3):
            for size, result in run_mpi(world, mpirun, mpi_bench).items():
                ours[size].append(result)
            for size, (_, _, ratio) in run_limits(world, limits_bench).items():
                limits[size].append(ratio)
            for size, microseconds in run_gloo(world).items():
                gloo[size].append(microseconds)
        for size in SIZES:
            orca_us, mpi_us, mpi_ratio = (
                statistics.median(column) for column in zip(*ours[size], strict=True)
            )
            gloo_us = statistics.median(gloo[size])
            limit = f"{statistics.median(limits[size]):.2f}" if limits[size] else ""
            print(
                f"| {world} | {size} | {orca_us:,.1f} µs | {mpi_us:,.1f} µs | {mpi_ratio:.1f} "
                f"| {gloo_us:,.1f} µs | {gloo_us / orca_us:.1f} | {limit} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
