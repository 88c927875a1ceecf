"""Arrays in shared memory, and shuffled batches of their rows.

Example:
    >>> import numpy as np
    >>> from orca.data import ArrayStore, Float32
    >>> store = ArrayStore()
    >>> store.put({"image": np.zeros((10, 28, 28), np.uint8), "label": np.arange(10)})
    >>> batch = next(store.batches(4, convert={"image": Float32(scale=1 / 255)}))
    >>> batch["image"].shape, str(batch["image"].dtype)
    ((4, 28, 28), 'float32')
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orca._native import _core
from orca.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["ArrayStore", "Float32"]


@dataclass(frozen=True)
class Float32:
    """Batches hold ``value * scale + shift`` as float32; for columns of uint8 and float64."""

    scale: float = 1.0
    shift: float = 0.0


def _flatten(data: Any, path: str, leaves: dict[str, Any]) -> Any:
    """Put the arrays of ``data`` into ``leaves``, by path; return ``data`` with paths for arrays."""
    if isinstance(data, Mapping):
        return {key: _flatten(value, f"{path}.{key}", leaves) for key, value in data.items()}
    if isinstance(data, list | tuple):
        parts = [_flatten(value, f"{path}.{i}", leaves) for i, value in enumerate(data)]
        return _sequence(type(data))(parts)
    name = path.removeprefix(".") or "0"
    if name in leaves:
        raise InvalidArgumentError(f"two arrays have the path {name!r}; rename a key")
    leaves[name] = data
    return name


def _sequence(kind: type) -> Callable[[Iterable[Any]], Any]:
    """Return what makes a list, tuple or named tuple of its parts."""
    return getattr(kind, "_make", kind)


def _number(name: str, value: int, limit: int) -> int:
    """Return an integer that the engine's types hold; it has limits of its own as well."""
    number = operator.index(value)
    if not 0 <= number < limit:
        raise InvalidArgumentError(f"{name} is {number}; give 0 or more, and less than {limit}")
    return number


def _builder(structure: Any, names: list[str]) -> Callable[[tuple[Any, ...]], Any]:
    """Return what puts the arrays of all names into the structure; it runs once a batch."""
    if isinstance(structure, dict):
        keys = list(structure)
        if list(structure.values()) == names:
            return lambda arrays: dict(zip(keys, arrays, strict=True))
        parts = [_builder(value, names) for value in structure.values()]
        return lambda arrays: {key: part(arrays) for key, part in zip(keys, parts, strict=True)}
    if isinstance(structure, list | tuple):
        make = _sequence(type(structure))
        if list(structure) == names:
            return make
        parts = [_builder(value, names) for value in structure]
        return lambda arrays: make(part(arrays) for part in parts)
    index = names.index(structure)
    return lambda arrays: arrays[index]


def _from_dlpack(framework: str) -> Any:
    """Return what makes an array of the framework; None for numpy."""
    if framework == "numpy":
        return None
    if framework != "torch":
        raise InvalidArgumentError(f"framework is {framework!r}; give 'numpy' or 'torch'")
    try:
        return importlib.import_module("torch.utils.dlpack").from_dlpack
    except ModuleNotFoundError as error:
        raise ImportError("framework='torch' needs torch; run 'pip install torch'") from error


class Batches(Iterator[Any]):
    """The batches of one rank in one epoch.

    Attributes:
        steps: How many there are, from ``start`` to the end of the epoch.
        cursor: What to give as ``start`` to go on after the last batch that came out.
    """

    def __init__(self, native: Any, build: Callable[[tuple[Any, ...]], Any], start: int) -> None:
        self._next = native.next
        self._build = build
        self.steps: int = native.steps()
        self.cursor: int = start

    def __next__(self) -> Any:
        arrays, self.cursor = self._next()
        return self._build(arrays)


class ArrayStore:
    """Rows of arrays, in shards of shared memory.

    What is put in is an array, or a dict, list or tuple of arrays (also nested) with the same
    number of rows; views and batches have the same structure.
    """

    def __init__(self) -> None:
        self._native: Any = None
        self._structure: Any = None
        self._names: list[str] = []
        self._build: Callable[[tuple[Any, ...]], Any] = tuple

    def __len__(self) -> int:
        return 0 if self._native is None else int(self._native.rows())

    @property
    def shards(self) -> int:
        """How many times something was put in."""
        return 0 if self._native is None else int(self._native.shards())

    def put(self, data: Any) -> None:
        """Copy rows into a new shard.

        Args:
            data: Arrays, in the same structure and of the same types and row shapes every time.

        Raises:
            InvalidArgumentError: The structure, a type, a shape or the number of rows differs.
        """
        leaves: dict[str, Any] = {}
        structure = _flatten(data, "", leaves)
        if self._native is None:
            arrays = list(leaves.values())
            native = _core.ArrayStore.make(list(leaves), arrays)
            native.put(arrays)
            self._native, self._structure, self._names = native, structure, list(leaves)
            self._build = _builder(structure, self._names)
            return
        if structure != self._structure:
            raise InvalidArgumentError(
                f"the first put had the arrays {self._names}, this one has {list(leaves)}; "
                "put the same structure every time"
            )
        # The keys of a dict may come in another order.
        self._native.put([leaves[name] for name in self._names])

    def view(self, shard: int = 0) -> Any:
        """Give the arrays of a shard as numpy arrays that cannot be written, without a copy."""
        native = self._filled()
        if not 0 <= shard < native.shards():
            raise InvalidArgumentError(f"shard is {shard}; give 0 to {native.shards() - 1}")
        return self._build(tuple(native.view(shard, c) for c in range(len(self._names))))

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        block_rows: int = 0,
        window_blocks: int = 16,
        ahead: int = 4,
        threads: int = 1,
        convert: Mapping[str, Float32] | None = None,
        framework: Literal["numpy", "torch"] = "numpy",
    ) -> Batches:
        """Iterate over the batches of one rank in one epoch.

        Every row is in exactly one batch of one rank, and all ranks make equally many steps. The
        order depends on seed and epoch alone, so the rows of a step are the same for any number of
        ranks. A batch's memory stays as it is while one of its arrays is alive, and is used again
        afterwards.

        Args:
            batch_size: Rows of one step, over all ranks together. A rank's share of them differs
                by one row at most, and may be none.
            shuffle: Whether rows come in a random order, or as they were put in.
            seed: With ``epoch``, decides the order.
            epoch: The number of the epoch.
            rank: Whose batches.
            world_size: How many ranks share the epoch.
            start: Where to go on with an epoch: the ``cursor`` of batches that were cut short,
                also those of another ``batch_size`` or ``world_size``.
            block_rows: Shuffle blocks of so many consecutive rows, for data that is read in
                blocks; 0 shuffles row by row.
            window_blocks: Blocks whose rows are mixed with each other.
            ahead: Batches that are gathered before they are asked for; 0 gathers when asked.
            threads: How many threads gather ahead.
            convert: What to convert, by the path of the array, as in ``{"image": Float32()}``; the
                arrays of a tuple are called ``"0"``, ``"1"``, a nested one ``"image.left"``.
            framework: Whose arrays the batches hold.

        Returns:
            The batches, in the structure of what was put in.

        Raises:
            InvalidArgumentError: A number is out of range, or a column cannot be converted.
            ImportError: The framework is not installed.

        Example:
            >>> import numpy as np
            >>> store = ArrayStore()
            >>> store.put(np.arange(10))
            >>> first = store.batches(4, seed=1)
            >>> rows = list(next(first))
            >>> for batch in store.batches(2, seed=1, start=first.cursor):
            ...     rows.extend(batch)
            >>> sorted(int(row) for row in rows)
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        native = self._filled()
        wanted = dict(convert or {})
        if unknown := [name for name in wanted if name not in self._names]:
            raise InvalidArgumentError(f"convert names {unknown}; the arrays are {self._names}")
        numbers = {
            "batch_size": _number("batch_size", batch_size, 2**63),
            "seed": operator.index(seed) & (2**64 - 1),
            "epoch": _number("epoch", epoch, 2**63),
            "rank": _number("rank", rank, 2**31),
            "world_size": _number("world_size", world_size, 2**31),
            "start": _number("start", start, 2**63),
            "block_rows": _number("block_rows", block_rows, 2**63),
            "window_blocks": _number("window_blocks", window_blocks, 2**63),
            "ahead": _number("ahead", ahead, 2**31),
            "threads": _number("threads", threads, 2**31),
        }
        conversions = [
            (wanted[name].scale, wanted[name].shift) if name in wanted else None
            for name in self._names
        ]
        loader = native.batches(numbers, bool(shuffle), conversions, _from_dlpack(framework))
        return Batches(loader, self._build, numbers["start"])

    def _filled(self) -> Any:
        if self._native is None:
            raise FailedPreconditionError("the store is empty; put arrays into it first")
        return self._native
