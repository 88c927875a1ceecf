"""Shuffled batches of Fashion-MNIST as float32 tensors in a Python loop: ArrayStore against torch's loaders.

    python bench/data_bench.py

The data is what `make demo` unpacks into data/, or random images in the same files where it was not run. All sides run in
turns in one process, one epoch a turn, in batches of 64 of normalised images and their classes, torch with one thread:

- dataset: a DataLoader over torchvision's dataset with ToTensor and Normalize, with 0, 1 and 2 workers, the best counts;
- tensors: a DataLoader over a TensorDataset that was normalised beforehand;
- select: index_select of the same tensors by a shuffled index.

An epoch of every side is checked first, and not timed: its images must add up to the same sum, every class must come as
often as in the data, and ours must hold every row exactly once. Lines that begin with RESULT are read by bench/run.py.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import transforms
from torchvision.datasets import FashionMNIST

from orca.data import ArrayStore, Float32

ROOT = Path(__file__).resolve().parents[1]
BATCH, TURNS = 64, 5
MEAN, DEVIATION = 0.2860, 0.3530


def write_random_images(root: str) -> None:
    """Write files as torchvision reads them: the speed does not depend on what is in the images."""
    raw = Path(root) / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, rows in (("train", 60_000), ("t10k", 10_000)):
        for kind, shape in (("images-idx3", (rows, 28, 28)), ("labels-idx1", (rows,))):
            header = np.array([0x800 + len(shape), *shape], ">u4").tobytes()
            values = rng.integers(0, 256 if len(shape) == 3 else 10, shape, dtype=np.uint8)
            (raw / f"{part}-{kind}-ubyte").write_bytes(header + values.tobytes())


def load() -> FashionMNIST:
    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((MEAN,), (DEVIATION,))]
    )
    if (ROOT / "data/FashionMNIST/raw/train-images-idx3-ubyte").exists():
        return FashionMNIST(ROOT / "data", transform=transform)
    with tempfile.TemporaryDirectory() as root:
        write_random_images(root)
        return FashionMNIST(root, transform=transform)


def check_epoch(batches: Callable[[], Iterator], classes: np.ndarray, total: float) -> None:
    seen, sums = [], []
    for images, labels in batches():
        seen.append(labels.clone())
        sums.append(float(images.sum(dtype=torch.float64)))
    counts = np.bincount(torch.cat(seen).numpy(), minlength=10)
    if not np.array_equal(counts, np.bincount(classes, minlength=10)):
        raise AssertionError(f"an epoch has other classes: {counts}")
    # One image is worth hundreds; the order of the sums and of the roundings, a few.
    if abs(sum(sums) - total) > 20:
        raise AssertionError(f"the images of an epoch add up to {sum(sums)}, not to {total}")


def epoch_time(batches: Callable[[], Iterator], rows: int) -> float:
    """Seconds of one epoch. Nothing runs beside the loop that a loader could hide behind."""
    seen = 0
    start = time.perf_counter()
    for images, labels in batches():
        seen += min(len(images), len(labels))
    seconds = time.perf_counter() - start
    if seen != rows:
        raise AssertionError(f"an epoch has {seen} rows, not {rows}")
    return seconds


def index_select(images: torch.Tensor, labels: torch.Tensor) -> Iterator:
    for batch in torch.randperm(len(images)).split(BATCH):
        yield images.index_select(0, batch), labels.index_select(0, batch)


def main() -> None:
    torch.set_num_threads(1)
    dataset = load()
    images, classes = dataset.data.unsqueeze(1), dataset.targets
    store = ArrayStore()
    for part in range(4):
        store.put((images[part::4].contiguous(), classes[part::4].contiguous()))
    floats = (images.float() / 255 - MEAN) / DEVIATION
    total = float(floats.sum(dtype=torch.float64))
    convert = {"0": Float32(scale=1 / 255 / DEVIATION, shift=-MEAN / DEVIATION)}
    epochs = iter(range(1_000))

    def ours(ahead: int) -> Callable[[], Iterator]:
        return lambda: store.batches(
            BATCH, seed=1, epoch=next(epochs), convert=convert, framework="torch", ahead=ahead
        )

    def loader(data: Dataset, workers: int) -> Callable[[], Iterator]:
        return lambda: iter(DataLoader(data, BATCH, shuffle=True, num_workers=workers))

    sides: dict[str, Callable[[], Iterator]] = {
        "ours": ours(ahead=4),
        "inline": ours(ahead=0),
        "tensors": loader(TensorDataset(floats, classes), 0),
        "select": lambda: index_select(floats, classes),
        **{f"dataset{workers}": loader(dataset, workers) for workers in range(3)},
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    check_rows(len(images))
    for batches in sides.values():
        check_epoch(batches, classes.numpy(), total)
    for _ in range(TURNS):
        for name, batches in sides.items():
            times[name].append(epoch_time(batches, len(images)))

    steps = -(-len(images) // BATCH)
    best = min((f"dataset{n}" for n in range(3)), key=lambda name: statistics.median(times[name]))
    for name, side, peer in (
        ("dataset", "ours", best),
        ("tensors", "ours", "tensors"),
        ("select", "ours", "select"),
        ("select-inline", "inline", "select"),
    ):
        ratio = statistics.median(
            theirs / mine for mine, theirs in zip(times[side], times[peer], strict=True)
        )
        print(
            f"RESULT data-{name}/{BATCH} "
            f"ours_us={statistics.median(times[side]) / steps * 1e6:.2f} "
            f"peer_us={statistics.median(times[peer]) / steps * 1e6:.2f} ratio={ratio:.3f}",
            flush=True,
        )


def check_rows(count: int) -> None:
    """An epoch in the same set-up as above holds every row exactly once."""
    store = ArrayStore()
    store.put(np.arange(count))
    rows = np.concatenate([rows.copy() for rows in store.batches(BATCH, seed=1)])
    if not np.array_equal(np.sort(rows), np.arange(count)):
        raise AssertionError("an epoch lost or repeated rows")


if __name__ == "__main__":
    main()
