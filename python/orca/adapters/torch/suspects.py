"""The batch that a worker works on, for messages that say which rows are to blame."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import torch

from orca import running
from orca.errors import InvalidArgumentError, MismatchError, OrcaError
from orca.objects import allgather_object

_MOST = 8  # row numbers in a message


class Suspects:
    """What a worker has before it. Errors that leave a ``with`` of it say which rows they are about.

    Attributes:
        batch: The batch; None while it is fetched.
        output: What the model made of it, where that is known.
    """

    def __init__(self) -> None:
        self._feed: Any = None
        self._index = 0
        self.batch: Any = None
        self.output: Any = None
        self.ignored = -100  # the label that a loss leaves out
        self._first: list[tuple[Any, str]] = []  # a rank

    def fetching(self, feed: Any, index: int) -> Suspects:
        """Before a batch is asked for: the step ``index`` of the feed's epoch."""
        self._feed, self._index, self.batch = feed, index, None
        return self

    def accuse(self, feed: Any, index: int, batch: Any) -> None:
        """It was that batch, and not the last one."""
        self._feed, self._index, self.batch = feed, index, batch

    def watched(self, feed: Any, stream: Iterator[Any]) -> Iterator[tuple[int, Any, int]]:
        """The steps of a feed's epoch that have a batch: number, batch and rows."""
        for index in itertools.count():
            self.fetching(feed, index)
            batch, rows = next(stream, (None, -1))
            if rows < 0:
                return
            self.batch = batch
            if rows:
                yield index, batch, rows

    def compare(self) -> None:
        """In the first step, on all workers: what everybody's batches look like.

        Raises:
            MismatchError: The loaders do not make equally many steps.
        """
        self._first = allgather_object((self._feed.steps, _shapes(self.batch)))
        for rank, (steps, _) in enumerate(self._first):
            if steps != self._first[0][0]:
                raise MismatchError(
                    f"the workers have different data: {_steps(self._first[0][0])} an epoch on rank 0, "
                    f"{_steps(steps)} on rank {rank}; let the data creator make the same dataset "
                    "everywhere, or an iterable one, whose parts may differ"
                )

    def where(self) -> str:
        """The rows of the batch, in words."""
        rows = self._rows()
        return f"its batch {self._index}" if rows is None else f"its {_listed(rows)}"

    def not_finite(self) -> str:
        """The rows of the batch that are not finite, in words; empty when all are."""
        rows = self._rows()
        found = []
        for name, leaf in self._leaves():
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or not leaf.dim():
                continue
            if not leaf.numel():
                continue
            bad = ~torch.isfinite(leaf).reshape(len(leaf), -1).all(1)
            if bad.any():
                found.append(f"{_some(rows, bad, self._index)} in {name}")
        return "NaN or Inf: " + "; ".join(found) if found else ""

    def __enter__(self) -> None:
        """Errors are explained from here on."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, OrcaError):
            return
        self._explain_label(error)
        if not getattr(error, "__notes__", None):
            note(error, self._describe())

    def _explain_label(self, error: Exception) -> None:
        match = re.fullmatch(r"Target (-?\d+) is out of bounds\.?", str(error))
        if match is None or not isinstance(error, IndexError):
            return
        labels = [leaf for _, leaf in self._leaves() if _is_whole(leaf)]
        first = self.output[0] if isinstance(self.output, list | tuple) else self.output
        classes = first.shape[1] if isinstance(first, torch.Tensor) and first.dim() > 1 else None
        for target in reversed(labels):
            if not bool((target == int(match[1])).any()):
                continue
            wrong = target == int(match[1])
            if classes is not None:
                wrong = ((target < 0) | (target >= classes)) & (target != self.ignored)
            values = sorted(set(target[wrong].tolist()))
            rows = _some(self._rows(), wrong.reshape(len(target), -1).any(1), self._index)
            limit = (
                "the classes of the model's output"
                if classes is None
                else f"0 to {classes - 1}, the {classes} classes of the model's output"
            )
            raise InvalidArgumentError(
                f"rank {running.rank()}: {_counted('the label', values)} of {rows} "
                f"{'is' if len(values) == 1 else 'are'} not in {limit}; correct the labels, give the "
                f"model an output for each, or mark rows to leave out with the loss's ignore_index "
                f"({self.ignored})"
            ) from error

    def _describe(self) -> str:
        if self.batch is None:
            return f"rank {running.rank()} was fetching {self.where()}"
        mine = _shapes(self.batch)
        text = f"rank {running.rank()} was at {self.where()}: {mine}"
        for rank, (_, theirs) in enumerate(self._first):
            if theirs and theirs != mine:
                whose = "its" if rank == running.rank() else f"rank {rank}'s"
                return f"{text}; {whose} first batch was {theirs}"
        return text

    def _rows(self) -> list[Any] | None:
        try:
            found: list[Any] | None = self._feed.row_numbers(self._index)
        except OrcaError:  # What cannot be found out must not hide the error.
            return None
        return found

    def _leaves(self) -> list[tuple[str, Any]]:
        """The parts of the batch and their names."""
        leaves = list(_flat(self.batch))
        columns = getattr(self._feed, "columns", ())
        if len(columns) == len(leaves):
            return [(f"column {c!r}", leaf) for c, leaf in zip(columns, leaves, strict=True)]
        if len(leaves) == 2:
            return [("the input", leaves[0]), ("the target", leaves[1])]
        return [(f"part {i} of the batch", leaf) for i, leaf in enumerate(leaves)]


def note(error: BaseException, text: str) -> None:
    """Adds a line to an error, also before Python 3.11."""
    error.__notes__ = [*getattr(error, "__notes__", ()), text]


def shape_of(row: Any) -> str:
    """The types and shapes of one row of a dataset, in words."""
    return _joined(_shape(leaf, ()) for leaf in _flat(row))


def _shapes(batch: Any) -> str:
    return "" if batch is None else _joined(_shape(leaf, ("*",)) for leaf in _flat(batch))


def _joined(shapes: Iterable[str]) -> str:
    runs = [(shape, len(list(same))) for shape, same in itertools.groupby(shapes)]
    return ", ".join(shape if count == 1 else f"{count} x {shape}" for shape, count in runs)


def _shape(leaf: Any, rows: tuple[str, ...]) -> str:
    if not hasattr(leaf, "shape"):
        return type(leaf).__name__
    sizes = [*rows, *map(str, leaf.shape[len(rows) :])]
    kind = str(leaf.dtype).removeprefix("torch.")
    return f"{kind} ({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _flat(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for part in tree:
            yield from _flat(part)
    else:
        yield tree


def _is_whole(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and not leaf.is_floating_point()


def _some(rows: list[Any] | None, chosen: torch.Tensor, index: int) -> str:
    """Those of the rows that are chosen, in words."""
    numbers = chosen.nonzero()[:, 0].tolist()
    if rows is None or len(rows) != len(chosen):
        return f"{_listed(numbers)} of batch {index}"
    return _listed([rows[i] for i in numbers])


def _listed(rows: list[Any]) -> str:
    return _counted("row", rows)


def _counted(what: str, values: list[Any]) -> str:
    """``row 3``; ``rows 3, 4 and 5``; ``rows 1, 2, 3, 4, 5, 6, 7, 8 and 4 more``."""
    shown = [str(value) for value in values[:_MOST]]
    if len(values) > _MOST:
        shown.append(f"{len(values) - _MOST} more")
    text = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])) if shown else "none"
    return f"{what}{'' if len(values) == 1 else 's'} {text}"


def _steps(count: int | None) -> str:
    return "as many steps as come" if count is None else f"{count} steps"
