"""XShards against Hugging Face datasets, Ray Data, pandas, polars, pyarrow and a multiprocessing Pool.

    python bench/xshards_bench.py batches --datasets PYTHON --ray PYTHON | csv --polars PYTHON | transform | start

``batches``: shuffled batches of 64 of Fashion-MNIST (or random images of the same shape) as float32 tensors, an epoch a turn.
``csv``: a file of 500 MB, until all rows are in frames. ``transform``: a function of numpy over 16 arrays of 4 MB on two
workers that are warm; the arrays travel to them and back. ``start``: from ``init_orca_context`` to the first result, without
Spark. The PYTHONs are those of environments with the peers. A peer is a process that waits while we run, and the other
way around. Every side checks what it got. Lines that begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from runtime_bench import report

BATCH = 64
FOLDER = Path(__file__).resolve().parents[1] / "data/FashionMNIST/raw"
SERVE = """
import sys, time
def serve(turn):
    turn(); print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter(); turn(); print(time.perf_counter() - begin, flush=True)
"""
IMAGES = """
import numpy as np, torch
torch.set_num_threads(1)
saved = np.load(sys.argv[1]); x, y = saved["x"], saved["y"]
total = int(x.sum(dtype=np.int64))
def check(rows, images):
    assert rows == len(x), rows
    assert abs(images * 255 - total) < 1e-4 * total, (images, total)
def epoch(batches):
    rows, images = 0, 0.0
    for bx, by in batches:
        assert bx.dtype == torch.float32
        rows += len(by); images += bx[:, 14, 14].sum().item() if CHEAP else bx.sum(dtype=torch.float64).item()
    assert rows == len(x), rows
    if not CHEAP: check(rows, images)
"""
HF = """
import datasets
datasets.disable_progress_bars()
# Rows of a fixed length are twenty times as fast as Array2D.
data = datasets.Dataset.from_dict({"x": x.reshape(-1, 784), "y": y}, features=datasets.Features(
    {"x": datasets.Sequence(datasets.Value("uint8"), length=784), "y": datasets.Value("int64")}))
seed = iter(range(10**6))
def batches():
    for batch in data.shuffle(seed=next(seed)).with_format("torch").iter(64):
        yield batch["x"].view(-1, 28, 28).float() / 255, batch["y"]
"""
RAY = """
import ray, logging
ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", num_cpus=2)
ray.data.DataContext.get_current().enable_progress_bars = False
logging.getLogger("ray.data").setLevel("ERROR")
data = ray.data.from_items([{"x": a, "y": b} for a, b in zip(x, y)]).materialize()
def batches():
    for batch in data.iter_torch_batches(batch_size=64, local_shuffle_buffer_size=1024):
        yield batch["x"].float() / 255, batch["y"]
"""
TURN = """
CHEAP = False; epoch(batches()); CHEAP = True
serve(lambda: epoch(batches()))
"""
PANDAS = """
import pandas
def turn():
    frame = pandas.read_csv(sys.argv[1])
    assert len(frame) == int(sys.argv[2]) and frame["a"].sum() == int(sys.argv[3])
serve(turn)
"""
POLARS = """
import polars
def turn():
    frame = polars.read_csv(sys.argv[1])
    assert len(frame) == int(sys.argv[2]) and frame["a"].sum() == int(sys.argv[3])
serve(turn)
"""
ARROW = """
import pyarrow.compute, pyarrow.csv
def turn():
    table = pyarrow.csv.read_csv(sys.argv[1], pyarrow.csv.ReadOptions(use_threads=True))
    assert len(table) == int(sys.argv[2]) and pyarrow.compute.sum(table["a"]).as_py() == int(sys.argv[3])
serve(turn)
"""
START = """
import time
import numpy as np
import orca
from orca.data import XShards
begin = time.perf_counter()
orca.init_orca_context("local", cores=2)
made = XShards.partition(np.arange(10), num_shards=2).transform_shard(lambda shard: shard * 2)
assert np.concatenate(made.collect()).tolist() == list(range(0, 20, 2))
print(time.perf_counter() - begin)
orca.stop_orca_context()
"""


class Peer:
    """A program that does its work again whenever it is asked."""

    def __init__(self, python: str, program: str, *arguments: Any) -> None:
        command = [python, "-c", SERVE + program, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._expect("ready")

    def _expect(self, start: str = "") -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start) and (start or line[0].isdigit()):
                return line
        sys.exit(f"a peer ended with {self._process.wait()}; its output is above")

    def turn(self) -> float:
        """Seconds of its work."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._expect())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def in_turns(
    ours: Callable[[], float], peers: dict[str, Peer], turns: int
) -> tuple[list[float], dict[str, list[float]]]:
    ours()
    mine: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(turns):
        mine.append(ours())
        for name, peer in peers.items():
            theirs[name].append(peer.turn())
    for peer in peers.values():
        peer.end()
    return mine, theirs


def fashion_mnist() -> tuple[np.ndarray, np.ndarray]:
    if (FOLDER / "train-images-idx3-ubyte").exists():
        images = np.frombuffer((FOLDER / "train-images-idx3-ubyte").read_bytes()[16:], np.uint8)
        labels = np.frombuffer((FOLDER / "train-labels-idx1-ubyte").read_bytes()[8:], np.uint8)
        return images.reshape(-1, 28, 28), labels.astype(np.int64)
    random = np.random.default_rng(0)
    return random.integers(0, 256, (60_000, 28, 28), np.uint8), random.integers(0, 10, 60_000)


def bench_batches(folder: Path, datasets: str, ray: str) -> None:
    import torch

    import orca
    from orca.data import Float32, XShards

    torch.set_num_threads(1)
    x, y = fashion_mnist()
    np.savez(folder / "images.npz", x=x, y=y)
    epochs = iter(range(10**6))
    with orca.init_orca_context(cores=2):
        store = XShards.partition({"x": x, "y": y}, num_shards=4).array_store()

        def batches() -> Any:
            return store.batches(
                BATCH,
                epoch=next(epochs),
                convert={"x": Float32(scale=1 / 255)},
                framework="torch",
            )

        def epoch() -> float:
            begin = time.perf_counter()
            rows = sum(len(batch["y"]) for batch in batches())
            seconds = time.perf_counter() - begin
            assert rows == len(x), rows
            return seconds

        total = sum(batch["x"].sum(dtype=torch.float64).item() for batch in batches())
        assert abs(total * 255 - x.sum(dtype=np.int64)) < 1e-4 * x.sum(dtype=np.int64)
        peers = {
            "hf": Peer(datasets, IMAGES + HF + TURN, folder / "images.npz"),
            "ray": Peer(ray, IMAGES + RAY + TURN, folder / "images.npz"),
        }
        mine, theirs = in_turns(epoch, peers, 3)
    steps = -(-len(x) // BATCH)
    for name, times in theirs.items():
        each = [[t / steps for t in side] for side in (mine, times)]
        report(f"xshards-{name}/{BATCH}", *each)


def write_csv(path: Path, size: int) -> tuple[int, int]:
    """A file of about so many bytes; returns its rows, and the sum of a column."""
    import pyarrow as pa
    from pyarrow import csv

    random = np.random.default_rng(0)
    rows = 1 << 19
    names = pa.array(["alpha", "beta", "gamma", "delta"])
    done = total = 0
    schema = None
    with path.open("wb") as file:
        writer = None
        while file.tell() < size:
            columns = {"id": np.arange(done, done + rows)}
            columns |= {f"f{i}": random.normal(size=rows).round(4) for i in range(5)}
            columns |= {
                "a": random.integers(0, 1000, rows),
                "b": random.integers(-(10**6), 10**6, rows),
            }
            texts = names.take(pa.array(random.integers(0, 4, rows)))
            table = pa.table({**columns, "name": texts})
            if writer is None:
                schema = table.schema
                writer = csv.CSVWriter(
                    file, schema, write_options=csv.WriteOptions(quoting_style="needed")
                )
            writer.write_table(table)
            done, total = done + rows, total + int(columns["a"].sum())
        if writer is not None:
            writer.close()
    return done, total


def bench_csv(folder: Path, polars: str) -> None:
    import orca
    from orca.data.pandas import read_csv

    path = folder / "rows.csv"
    rows, total = write_csv(path, 500_000_000)

    def ours() -> float:
        begin = time.perf_counter()
        shards = read_csv(str(path))
        seconds = time.perf_counter() - begin
        assert len(shards) == rows
        assert sum(shards._ask(lambda frames: sum(int(f["a"].sum()) for f in frames))) == total
        return seconds

    with orca.init_orca_context(cores=2):
        peers = {
            "pandas": Peer(sys.executable, PANDAS, path, rows, total),
            "polars": Peer(polars, POLARS, path, rows, total),
            "pyarrow": Peer(sys.executable, ARROW, path, rows, total),
        }
        mine, theirs = in_turns(ours, peers, 5)
    for name, times in theirs.items():
        report(f"csv-{name}", mine, times)


def scaled(array: np.ndarray) -> np.ndarray:
    return np.sqrt(array) * 2 + 1


def bench_transform() -> None:
    import orca
    from orca.data import XShards

    arrays = list(np.random.default_rng(0).random((16, 1 << 19)))
    whole = np.concatenate(arrays)
    expected = float(scaled(whole).sum())

    def check(found: list[np.ndarray]) -> None:
        assert abs(sum(float(part.sum()) for part in found) - expected) < 1e-6 * expected

    with multiprocessing.get_context("spawn").Pool(2) as pool, orca.init_orca_context(cores=2):
        mine, theirs = [], []
        for turn in range(-2, 9):
            begin = time.perf_counter()
            found = XShards.partition(whole, num_shards=16).transform_shard(scaled).collect()
            seconds = time.perf_counter() - begin
            check(found)
            del found
            begin = time.perf_counter()
            found = pool.map(scaled, arrays, chunksize=1)
            peer = time.perf_counter() - begin
            check(found)
            if turn >= 0:
                mine.append(seconds)
                theirs.append(peer)
    report("transform-pool", mine, theirs)


def bench_start() -> None:
    times = []
    for _ in range(7):
        done = subprocess.run(
            [sys.executable, "-c", START], check=True, stdout=subprocess.PIPE, text=True, timeout=60
        )
        times.append(float(done.stdout))
    report("start-first", [statistics.median(times)], [0.5])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["batches", "csv", "transform", "start"])
    for name in ("datasets", "ray", "polars"):
        parser.add_argument(f"--{name}", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "batches":
            bench_batches(Path(folder), options.datasets, options.ray)
        elif options.what == "csv":
            bench_csv(Path(folder), options.polars)
        elif options.what == "transform":
            bench_transform()
        else:
            bench_start()


if __name__ == "__main__":
    main()
