"""Shards against Ray's object store, the memory that workers take for them, and what supervision costs.

    python bench/shard_bench.py memory | [put] --ray PYTHON

``put``: 64 MB into fresh pages and into recycled ones, and a get with one read of all bytes in another process, in turns
with Ray. A virtual machine may give free memory back to its host, which takes far longer to come again than the kernel takes to hand
out a page: so fresh pages are measured twice on both sides, of memory that the machine has (1 GiB of it was just used and
freed), and as it is found. ``memory``: how the summed PSS of four workers grows when they read 2 GB of shards instead of 2 MB; and the CPU time
of the processes and threads that supervise, for each step of a loop. Every program checks what it read. Lines that begin with
RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from runtime_bench import report

SIZE = 64 << 20
COUNT = 8
LIMIT_US = 10.0  # for the supervision of a step

COMMON = f"""
import mmap, statistics, sys, time
import numpy as np
COUNT, SIZE = {COUNT}, {SIZE}
def have_memory():
    if sys.argv[1] == "had":
        memory = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(memory, np.uint8)[::4096] = 1
source = np.random.default_rng(1).integers(0, 255, SIZE, np.uint8)
expected = int(source.view(np.uint64).sum())
def timed(function, *arguments):
    begin = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - begin, result
def read(get, handles):
    times = []
    for handle in handles:
        begin = time.perf_counter()
        assert int(get(handle).view(np.uint64).sum()) == expected
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
def recycle(put, get):
    times = []
    for _ in range(COUNT):
        seconds, handle = timed(put, source)
        assert (get(handle)[::4096] == source[::4096]).all()
        del handle
        times.append(seconds)
        time.sleep(0.05)  # for the store to notice
    return statistics.median(times[1:])
"""
ORCA = (
    COMMON
    + """
import orca
from orca.data import Shard
orca.init_orca_context(cores=2, memory="6g")
orca.run(lambda: np.zeros(1), workers=1)
Shard(source[:1000])
have_memory()
fresh, shards = zip(*[timed(Shard, source) for _ in range(COUNT)])
got = orca.run(lambda shards: read(lambda shard: shard.view(), shards), (shards,), workers=1)[0]
print(statistics.median(fresh), got)
del shards
print(recycle(Shard, lambda shard: shard.view()))
from concurrent.futures import ThreadPoolExecutor
target, half = np.zeros_like(source), SIZE // 2
with ThreadPoolExecutor(2) as pool:
    def copy():
        list(pool.map(lambda at: np.copyto(target[at : at + half], source[at : at + half]), (0, half)))
    print(statistics.median(timed(copy)[0] for _ in range(3 * COUNT)))
assert (target == source).all()
orca.stop_orca_context()
"""
)
RAY = (
    COMMON
    + """
import ray
ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", num_cpus=2,
         object_store_memory=2 << 30)
@ray.remote
class Reader:
    def read(self, handles):
        return read(ray.get, handles)
reader = Reader.remote()
ray.get(ray.put(source[:1000]))
ray.get(reader.read.remote([ray.put(source)]))
have_memory()
fresh, refs = zip(*[timed(ray.put, source) for _ in range(COUNT)])
got = ray.get(reader.read.remote(list(refs)))
print(statistics.median(fresh), got)
del refs
print(recycle(ray.put, ray.get))
ray.shutdown()
"""
)


def answers(command: list[str]) -> list[float]:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    return [float(word) for word in done.stdout.split()]


def bench_put(ray: str) -> None:
    if not ray:
        sys.exit("put and get have no peer without Ray; give --ray PYTHON")
    names = {"had": ("fresh", "get", "recycled"), "found": ("found",)}
    ours: dict[str, list[list[float]]] = {memory: [] for memory in names}
    peer: dict[str, list[list[float]]] = {memory: [] for memory in names}
    for _ in range(3):
        for memory in names:
            ours[memory].append(answers([sys.executable, "-c", ORCA, memory]))
            peer[memory].append(answers([ray, "-c", RAY, memory]))
    for memory, results in names.items():
        for index, name in enumerate(results):
            mine = [times[index] for times in ours[memory]]
            theirs = [times[index] for times in peer[memory]]
            report(f"shard-{name}", mine, theirs)
            if name == "recycled":
                report("shard-recycled-limit", mine, [times[index + 1] for times in ours[memory]])


def pss() -> int:
    """What this process takes, with its part of what it shares, in bytes."""
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in rollup if line.startswith("Pss:"))


def read_all(shards: list[object]) -> tuple[int, int]:
    import orca

    views = [shard.view() for shard in shards]  # type: ignore[attr-defined]
    total = sum(int(view.sum()) for view in views)
    orca.barrier()
    taken = pss()
    orca.barrier()
    return total, taken


def summed_pss(megabytes: int) -> int:
    import orca
    from orca.data import Shard

    numbers = np.arange(megabytes * (1 << 20) // 8 // 4, dtype=np.int64)
    shards = [Shard(numbers) for _ in range(4)]
    results = orca.run(read_all, (shards,), workers=4)
    expected = 4 * (len(numbers) * (len(numbers) - 1) // 2)
    if [total for total, _ in results] != [expected] * 4:
        raise AssertionError(results)
    return sum(taken for _, taken in results)


def cpu_seconds(pid: int, thread: str = "") -> float:
    """CPU time of a process, or of its threads of one name."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if not thread or (task / "comm").read_text().strip() == thread:
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def loop(steps: int) -> tuple[float, float]:
    """Steps of a loop with a collective; the CPU time of this worker's supervision, and the wall time."""
    import orca

    data = np.ones(16384, np.float32)
    orca.allreduce(data)
    before, begin = cpu_seconds(os.getpid(), "orca-worker"), time.perf_counter()
    for _ in range(steps):
        time.sleep(0.001)
        orca.allreduce(data, op="max")
    after = cpu_seconds(os.getpid(), "orca-worker")
    if not (data == orca.world_size()).all():
        raise AssertionError(data)
    return after - before, time.perf_counter() - begin


def bench_memory() -> None:
    import orca

    data = 2048
    orca.init_orca_context(cores=2)
    small = summed_pss(2)
    large = summed_pss(data)
    growth, more = (large - small) / 1e6, ((data - 2) << 20) / 1e6
    print(
        f"RESULT shard-pss ours_mb={growth:.1f} peer_mb={more:.1f} ratio={more / growth:.3f}",
        flush=True,
    )
    steps = 2000
    family = [int(pid) for pid in Path("/proc").iterdir() for pid in [pid.name] if pid.isdigit()]
    mine = [pid for pid in family if parent(pid) == os.getpid()]
    helpers = mine + [pid for pid in family if parent(pid) in mine]
    before = sum(map(cpu_seconds, helpers)) + cpu_seconds(os.getpid(), "orca-driver")
    workers = orca.run(loop, (steps,), workers=2)
    after = sum(map(cpu_seconds, helpers)) + cpu_seconds(os.getpid(), "orca-driver")
    total = after - before + sum(cpu for cpu, _ in workers)
    wall = max(wall for _, wall in workers)
    each = total / steps * 1e6
    print(f"steps of {wall / steps * 1e6:.0f} us; supervision is {total / wall:.2%} of a core")
    print(
        f"RESULT supervision-step ours_us={each:.2f} peer_us={LIMIT_US:.2f} "
        f"ratio={LIMIT_US / each:.3f}",
        flush=True,
    )
    orca.stop_orca_context()


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["put", "memory"])
    parser.add_argument("--ray", default="")
    arguments = parser.parse_args()
    if arguments.what == "put":
        bench_put(arguments.ray)
    else:
        bench_memory()


if __name__ == "__main__":
    main()
