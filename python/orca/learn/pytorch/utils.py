"""Helpers that training operators of old scripts import."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

__all__ = [
    "BATCH_COUNT",
    "NUM_SAMPLES",
    "AverageMeter",
    "AverageMeterCollection",
    "TimerCollection",
    "process_stats",
]

BATCH_COUNT = "batch_count"
NUM_SAMPLES = "num_samples"


class AverageMeter:
    """A mean that grows.

    Example:
        >>> meter = AverageMeter()
        >>> meter.update(1.0, n=3)
        >>> meter.update(5.0)
        >>> meter.avg
        2.0
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all."""
        self.val = self.avg = self.sum = 0.0
        self.count = 0

    def update(self, val: float, n: int = 1) -> None:
        """Adds ``n`` rows whose mean is ``val``."""
        self.val = float(val)
        self.sum += self.val * n
        self.count += n
        self.avg = self.sum / self.count


class AverageMeterCollection:
    """The means of all metrics that batches report.

    Example:
        >>> meters = AverageMeterCollection()
        >>> meters.update({"train_loss": 2.0}, n=2)
        >>> meters.update({"train_loss": 5.0}, n=1)
        >>> meters.summary()["train_loss"], meters.summary()["num_samples"]
        (3.0, 3)
    """

    def __init__(self) -> None:
        self._batch_count = 0
        self.n = 0
        self._meters: dict[str, AverageMeter] = {}

    def update(self, metrics: dict[str, Any], n: int = 1) -> None:
        """Adds the metrics of a batch of ``n`` rows."""
        self._batch_count += 1
        self.n += n
        for name, value in metrics.items():
            if name != NUM_SAMPLES:
                self._meters.setdefault(name, AverageMeter()).update(value, n=n)

    def summary(self, sync_stats: bool = False, dist_backend: Any = None) -> dict[str, Any]:
        """Means over all rows, and the last values as ``last_…``."""
        found: dict[str, Any] = {BATCH_COUNT: self._batch_count, NUM_SAMPLES: self.n}
        for name, meter in self._meters.items():
            found[name] = meter.avg
            found[f"last_{name}"] = meter.val
        return found


class TimerCollection:
    """How long parts of a loop take."""

    def __init__(self) -> None:
        self._meters: dict[str, AverageMeter] = {}
        self._enabled = True

    @contextlib.contextmanager
    def record(self, name: str) -> Iterator[None]:
        """Measures what is inside."""
        begin = time.perf_counter()
        yield
        if self._enabled:
            self._meters.setdefault(name, AverageMeter()).update(time.perf_counter() - begin)

    def enable(self) -> None:
        """Measures from now on."""
        self._enabled = True

    def disable(self) -> None:
        """Does not."""
        self._enabled = False

    def stats(self) -> dict[str, float]:
        """The means, in seconds, as ``mean_…_s``."""
        return {f"mean_{name}_s": meter.avg for name, meter in self._meters.items()}

    def reset(self) -> None:
        """Forgets all."""
        self._meters.clear()


def process_stats(worker_stats: list[dict[str, Any]]) -> dict[str, Any]:
    """One dict of the workers': samples are summed, numbers are means over samples, the rest is worker 0's.

    Example:
        >>> process_stats([{"num_samples": 1, "loss": 1.0}, {"num_samples": 3, "loss": 2.0}])
        {'num_samples': 4, 'loss': 1.75}
    """
    rows = sum(int(stats.get(NUM_SAMPLES, 1)) for stats in worker_stats)
    merged: dict[str, Any] = {NUM_SAMPLES: rows}
    for name, first in worker_stats[0].items():
        if name == NUM_SAMPLES:
            continue
        if isinstance(first, int | float) and not isinstance(first, bool) and rows:
            weighed = [(s[name], int(s.get(NUM_SAMPLES, 1))) for s in worker_stats if name in s]
            known = [(value, n) for value, n in weighed if n and value == value]
            total = sum(n for _, n in known)
            mean = sum(v * n for v, n in known) / total if total else float("nan")
            # What all agree on stays what it is, to the bit.
            merged[name] = float(known[0][0]) if len({v for v, _ in known}) == 1 else mean
        else:
            merged[name] = first
    return merged
