"""Rows of arrays and texts in shared memory, and shuffled batches of them.

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

import contextlib
import importlib
import math
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from orca import pickles
from orca._native import _core
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.running import shard_home

__all__ = ["ArrayStore", "Float32", "Shard", "SharedBlock", "Texts"]


class Texts(Sequence[Any]):
    """Strings or bytes behind each other in one piece of memory; one is made when it is asked for.

    Example:
        >>> from orca.data import Shard
        >>> names = Shard(["Ada", None, "Grace"]).view()
        >>> names[0], names[1], len(names)
        ('Ada', None, 3)
    """

    def __init__(
        self,
        values: np.ndarray[Any, Any],
        offsets: np.ndarray[Any, Any],
        validity: np.ndarray[Any, Any] | None,
        binary: bool,
    ) -> None:
        self.values, self.offsets, self.validity, self.binary = values, offsets, validity, binary

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = operator.index(index)
        row += len(self) if row < 0 else 0
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} is not there; there are {len(self)}")
        if self.validity is not None and not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        text = bytes(self.values[self.offsets[row] : self.offsets[row + 1]])
        return text if self.binary else text.decode()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("texts become an array only as copies")
        made = np.empty(len(self), object)
        made[:] = self[:]
        return made if dtype is None else made.astype(dtype)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:5]))
        return f"Texts([{shown}{', ...' if len(self) > 5 else ''}])"


@dataclass(frozen=True)
class Float32:
    """Batches hold ``value * scale + shift`` as float32; for columns of uint8 and float64."""

    scale: float = 1.0
    shift: float = 0.0


def _flatten(data: Any, path: str, leaves: dict[str, Any]) -> Any:
    """Put the arrays of ``data`` into ``leaves``, by path; return ``data`` with paths for arrays."""
    if isinstance(data, Mapping):
        return {key: _flatten(value, f"{path}.{key}", leaves) for key, value in data.items()}
    if isinstance(data, list | tuple) and not (_is_texts(data) or _is_rows(data)):
        parts = [_flatten(value, f"{path}.{i}", leaves) for i, value in enumerate(data)]
        return _sequence(type(data))(parts)
    name = path.removeprefix(".") or "0"
    if name in leaves:
        raise InvalidArgumentError(f"two arrays have the path {name!r}; rename a key")
    leaves[name] = _leaf(name, data)
    return name


def _is_texts(data: Sequence[Any]) -> bool:
    return len(data) > 0 and all(item is None or isinstance(item, str | bytes) for item in data)


def _is_rows(data: Any) -> bool:
    """Whether it is a list of numbers, or of rows of them, as plain Python has them."""
    if not isinstance(data, list) or not data:
        return False
    item = data[0]
    while isinstance(item, list | tuple) and item:
        item = item[0]
    return item is None or isinstance(item, bool | int | float | np.generic | list | tuple)


def _stacked(name: str, rows: list[Any]) -> np.ndarray[Any, Any]:
    """Rows of numbers as one array.

    Raises:
        InvalidArgumentError: Numpy cannot; names the row.
    """
    with contextlib.suppress(ValueError):
        found = np.asarray(rows)
        if found.dtype.kind in "biuf":
            return found
    first = np.shape(rows[0])
    for i, row in enumerate(rows):
        try:
            array = np.asarray(row)
        except ValueError:
            array = np.asarray(row, dtype=object)
        if array.dtype.kind not in "biuf":
            raise InvalidArgumentError(
                f"{name!r}: row {i} is {_shortened(row)}; give numbers alone, and as many in every row"
            )
        if array.shape != first:
            raise InvalidArgumentError(
                f"{name!r}: row {i} has the shape {array.shape}, and row 0 has {first}; pad, cut or leave "
                "out what differs"
            )
    raise InvalidArgumentError(f"{name!r} cannot be an array of one type; give a numpy array")


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _leaf(name: str, data: Any) -> Any:
    """What the engine takes for a column: see ``Leaves`` in the bindings."""
    if isinstance(data, Texts):
        return (data.values, data.offsets, data.validity, data.binary)
    if isinstance(data, np.ma.MaskedArray):
        if data.size == 0:
            return data.data
        missing = np.ma.getmaskarray(data).reshape(len(data), -1)
        if np.any(missing.any(axis=1) != missing.all(axis=1)):
            raise InvalidArgumentError(
                f"{name!r} masks parts of rows; a value of a shard is a whole row: mask or fill it"
            )
        bits = np.packbits(~missing[:, :1].any(axis=1), bitorder="little")
        return (np.ascontiguousarray(data.filled(0)), bits)
    if isinstance(data, str | bytes):
        raise InvalidArgumentError(f"{name!r} is a single text; give a list of texts, one a row")
    if isinstance(data, list | tuple):
        return list(data) if _is_texts(data) else _stacked(name, list(data))
    if not hasattr(data, "__dlpack__"):  # Such as a Series, a range or a memoryview.
        data = _array_of(name, data)
    if isinstance(data, np.ndarray) and data.dtype.kind in "OUST" and data.ndim:
        rows = data.tolist()
        # A missing text of pandas is a NaN.
        texts = [None if isinstance(row, float) and row != row else row for row in rows]
        some = any(isinstance(text, str | bytes) for text in texts)
        are_texts = data.ndim == 1 and (some or all(text is None for text in texts))
        return texts if are_texts else _stacked(name, rows)
    if isinstance(data, np.ndarray):
        if data.dtype.kind not in "biufc" or data.dtype.char in "gG":
            raise InvalidArgumentError(
                f"{name!r} has the dtype {data.dtype}, which cannot be stored; give .astype() of it with "
                "float64, int64 or another type of numbers"
            )
        if not data.dtype.isnative:
            data = data.astype(data.dtype.newbyteorder("="))
        if data.ndim:
            return np.ascontiguousarray(
                data
            )  # A copy only of strided ones, and of Fortran's order.
    return data


def _array_of(name: str, data: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(data)
    if array.dtype == object and not array.ndim:  # As numpy says what it cannot look into.
        raise InvalidArgumentError(
            f"{name!r} is a {type(data).__name__}; give an array, or a list with one item a row"
        )
    return array


def _unpack(column: Any) -> Any:
    """What users see of a column: its array, ``Texts``, or an array with a mask."""
    if not isinstance(column, tuple):
        return column
    if len(column) == 4:
        return Texts(*column)
    array, validity = column
    missing = np.unpackbits(validity, count=len(array), bitorder="little") == 0
    shape = (len(array),) + (1,) * (array.ndim - 1)
    return np.ma.MaskedArray(array, np.broadcast_to(missing.reshape(shape), array.shape))


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


_shelves: dict[int, Any] = {}  # by process: a forked child has one of its own


def _home() -> Any:
    """The agent's, in a driver with a context and in its workers; else this process's own."""
    home = pickles.home() or shard_home()
    return _shelf() if home is None else home


def _shelf() -> Any:
    """This process's own."""
    if os.getpid() not in _shelves:
        _shelves.clear()
        _shelves[os.getpid()] = _core.shard_shelf()
    return _shelves[os.getpid()]


class Shard:
    """Rows of arrays and texts in one piece of shared memory, which never changes.

    With a context the memory is the agent's: a shard that a function of ``orca.run`` gets,
    captures or returns is not copied, the other processes of the machine read the same memory.

    Args:
        data: An array, a list of numbers, of rows of them, or of texts; or a dict, list or tuple of those (also nested) with the
            same number of rows; or anything that speaks Arrow (a record batch, a table, a frame).
            Values may be missing: None among texts, a masked array, Arrow's nulls.

    Raises:
        InvalidArgumentError: A type cannot be stored, or the numbers of rows differ.
        ResourceExhaustedError: There is not enough memory; names the limit.

    Example:
        >>> import numpy as np
        >>> shard = Shard({"x": np.arange(3.0), "name": ["a", "b", None]})
        >>> len(shard), float(shard.view()["x"].sum()), shard.view()["name"][1]
        (3, 3.0, 'b')
    """

    def __init__(self, data: Any) -> None:
        home = _home()
        self._native: Any = None  # opened when it is first needed
        if hasattr(data, "__arrow_c_array__") or hasattr(data, "__arrow_c_stream__"):
            self._native = _core.Shard.from_arrow(home, *_record_batch(data))
            names = [name for name, _, _ in self._native.describe()]
            if len(set(names)) < len(names):
                raise InvalidArgumentError(f"the columns {names} do not all differ; rename some")
            self._structure: Any = {name: name for name in names}
        else:
            leaves: dict[str, Any] = {}
            self._structure = _flatten(data, "", leaves)
            if not leaves:
                raise InvalidArgumentError(f"there is no array in {data!r}; give at least one")
            names = list(leaves)
            self._native = _core.Shard.put(home, names, list(leaves.values()))
        self._names = names
        self._hold = self._native.hold

    @classmethod
    def _of(cls, structure: Any, names: list[str], native: Any, hold: Any) -> Shard:
        made = cls.__new__(cls)
        made._structure, made._names, made._native, made._hold = structure, names, native, hold
        return made

    def _open(self) -> Any:
        if self._native is None:
            self._native = self._hold.open()
        return self._native

    def _move_to(self, home: Any) -> bool:
        if self._hold.lives_in(home):
            return False
        self._native = self._open().copy_to(home)
        self._hold = self._native.hold
        return True

    def __len__(self) -> int:
        return int(self._open().rows)

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        return int(self._open().nbytes)

    def view(self, framework: Literal["numpy", "torch"] = "numpy") -> Any:
        """Give the arrays, in the structure of what was put in, without a copy.

        numpy's cannot be written. What is written to torch's stays in this process. Texts are
        ``Texts``; an array with missing values is a masked one, which torch does not have.
        """
        native = self._open()
        if framework != "numpy":
            _refuse_missing(native, framework)
        columns = native.view(_from_dlpack(framework))
        return _builder(self._structure, self._names)(tuple(map(_unpack, columns)))

    def own_view(self) -> Any:
        """As ``view``, but what is written to its arrays is the caller's own: pages are copied when written."""
        columns = self._hold.open().view(None, True)
        return _builder(self._structure, self._names)(tuple(map(_unpack, columns)))

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        """The columns as an Arrow record batch, without a copy (booleans excepted)."""
        return self._open().to_arrow()

    def _is_called(self, structure: Any, names: list[str]) -> bool:
        return bool(self._structure == structure and self._names == names)

    def __reduce__(self) -> Any:
        shards = pickles.carried()
        if shards is None:  # To a file, or to a process that knows nothing of this one's memory.
            return Shard, (self.view(),)
        self._move_to(_home())
        shards.append(self._hold)
        return _receive, (self._structure, self._names, self._hold.id)


def _receive(structure: Any, names: list[str], number: int) -> Shard:
    known = _stored.get(number)  # Then the agent need not hear of it.
    if known is not None and known._is_called(structure, names) and known._hold.lives_in(_home()):
        return known
    return Shard._of(structure, names, None, _core.ShardHold.take(_home(), number))


class SharedBlock:
    """Memory with the agent that several processes of one machine read and write.

    Args:
        nbytes: How many bytes; they are zero at first.

    Raises:
        ResourceExhaustedError: There is not enough memory; names the limit.

    Example:
        >>> block = SharedBlock(16)
        >>> block.array("float32", (2,), offset=4)[:] = 1
        >>> block.array("float32", (4,)).tolist()
        [0.0, 1.0, 1.0, 0.0]
    """

    def __init__(self, nbytes: int) -> None:
        self.native: Any = _core.SharedBlock.create(_home(), nbytes)
        self._hold = self.native.hold
        self._view = self.native.view()

    @property
    def number(self) -> int:
        """What other processes of this machine find it by."""
        return int(self._hold.id)

    @property
    def nbytes(self) -> int:
        """At least as many as were asked for."""
        return int(self._view.size)

    @property
    def address(self) -> int:
        """Where it begins, in this process."""
        return int(self._view.ctypes.data)

    def array(self, dtype: str, shape: tuple[int, ...], offset: int = 0) -> np.ndarray[Any, Any]:
        """A part of it, from byte ``offset`` on, as an array that can be written."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        return self._view[offset : offset + size].view(kind).reshape(shape)

    def __reduce__(self) -> Any:
        shards = pickles.carried()
        if shards is None:
            raise InvalidArgumentError(
                "a shared block cannot be pickled: its memory is this job's; copy its array"
            )
        shards.append(self._hold)
        return receive_block, (self._hold.id,)


def receive_block(number: int) -> SharedBlock:
    made = SharedBlock.__new__(SharedBlock)
    made._hold = _core.ShardHold.take(_home(), number)
    made.native = _core.SharedBlock.open(made._hold)
    made._view = made.native.view()
    return made


def _record_batch(data: Any) -> tuple[Any, Any]:
    """The two capsules of one record batch."""
    if not hasattr(data, "__arrow_c_array__"):
        # One batch of them all; where a stream comes from, pyarrow is.
        pyarrow = importlib.import_module("pyarrow")
        table = pyarrow.table(data).combine_chunks()
        batches = table.to_batches()
        if len(batches) > 1:  # More than 2 GiB of text have short offsets only in parts.
            batches = _with_long_offsets(pyarrow, table).combine_chunks().to_batches()
        data = batches[0] if batches else pyarrow.RecordBatch.from_pylist([], table.schema)
        if data.num_rows != table.num_rows:
            raise InvalidArgumentError(
                f"the {table.num_rows} rows do not fit into one record batch; put them in parts"
            )
    schema, array = data.__arrow_c_array__()
    return schema, array


def _with_long_offsets(pyarrow: Any, table: Any) -> Any:
    long = {
        pyarrow.string(): pyarrow.large_string(),
        pyarrow.binary(): pyarrow.large_binary(),
    }
    fields = [field.with_type(long.get(field.type, field.type)) for field in table.schema]
    return table.cast(pyarrow.schema(fields))


def _refuse_missing(native: Any, framework: str) -> None:
    for name, kind, may_miss in native.describe():
        if may_miss and kind not in ("string", "bytes"):
            raise InvalidArgumentError(
                f"{name!r} has missing values, which an array of {framework} cannot have; "
                "fill them, or ask for numpy's"
            )


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
    """Shards that hold the same arrays, as one long table.

    A store that a function of ``orca.run`` gets or captures is not copied: the workers of a machine
    read the same memory.
    """

    def __init__(self) -> None:
        self._native: Any = None
        self._shards: list[Shard] = []
        self._has_parts = False  # columns that are more than an array

    def __len__(self) -> int:
        return 0 if self._native is None else int(self._native.rows())

    def __reduce__(self) -> Any:
        if pickles.carried() is not None:
            moved = [shard._move_to(_home()) for shard in self._shards]
            if any(moved):  # The memory from before is not needed any more.
                self._native = _core.ArrayStore.of(self._shards[0]._open())
                for shard in self._shards:
                    self._native.add(shard._open())
        return _store, (self._shards,)

    @property
    def shards(self) -> list[Shard]:
        """What was put in."""
        return list(self._shards)

    def put(self, data: Any) -> None:
        """Copy rows into a new shard, or add the rows of a ``Shard`` without a copy.

        Args:
            data: A ``Shard``, or what makes one; in the same structure and of the same types and
                row shapes every time.

        Raises:
            InvalidArgumentError: The structure, a type, a shape or the number of rows differs.
        """
        shard = data if isinstance(data, Shard) else Shard(data)
        native = shard._open()
        if self._native is None:
            self._native = _core.ArrayStore.of(native)
        else:
            first = self._shards[0]
            shard = _as(first, shard)
            native = shard._open()
        self._native.add(native)
        self._shards.append(shard)
        self._has_parts = self._has_parts or any(
            kind in ("string", "bytes") or may_miss for _, kind, may_miss in native.describe()
        )

    def view(self, shard: int = 0) -> Any:
        """Give the arrays of a shard; see ``Shard.view``."""
        if not 0 <= shard < len(self._shards):
            raise InvalidArgumentError(
                f"shard is {shard}; give 0 to {len(self._shards) - 1}"
                if self._shards
                else "the store is empty; put arrays into it first"
            )
        return self._shards[shard].view()

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        ranks: int = 1,
        least_rows: int = 0,
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
            ranks: How many ranks from ``rank`` on, whose shares of a step are one batch.
            least_rows: A rank has so many rows of a step or none; 0: any number.
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
        if self._native is None:
            raise FailedPreconditionError("the store is empty; put arrays into it first")
        names, structure = self._shards[0]._names, self._shards[0]._structure
        wanted = dict(convert or {})
        if unknown := [name for name in wanted if name not in names]:
            raise InvalidArgumentError(f"convert names {unknown}; the arrays are {names}")
        if framework != "numpy":
            for shard in self._shards:
                _refuse_missing(shard._open(), framework)
        numbers = {
            "batch_size": _number("batch_size", batch_size, 2**63),
            "seed": operator.index(seed) & (2**64 - 1),
            "epoch": _number("epoch", epoch, 2**63),
            "rank": _number("rank", rank, 2**31),
            "world_size": _number("world_size", world_size, 2**31),
            "ranks": _number("ranks", ranks, 2**31),
            "least_rows": _number("least_rows", least_rows, 2**63),
            "start": _number("start", start, 2**63),
            "block_rows": _number("block_rows", block_rows, 2**63),
            "window_blocks": _number("window_blocks", window_blocks, 2**63),
            "ahead": _number("ahead", ahead, 2**31),
            "threads": _number("threads", threads, 2**31),
        }
        conversions = [
            (wanted[name].scale, wanted[name].shift) if name in wanted else None for name in names
        ]
        loader = self._native.batches(numbers, bool(shuffle), conversions, _from_dlpack(framework))
        build = _builder(structure, names)
        if self._has_parts:
            plain = build

            def build(arrays: tuple[Any, ...]) -> Any:
                return plain(tuple(map(_unpack, arrays)))

        return Batches(loader, build, numbers["start"])


_stored: weakref.WeakValueDictionary[int, Shard] = weakref.WeakValueDictionary()  # by number


def _store(shards: list[Shard]) -> ArrayStore:
    """A store that another process has sent; its shards that are in one here already are not mapped again."""
    store = ArrayStore()
    for shard in shards:
        number = shard._hold.id
        known = _stored.get(number)
        if known is not None and known._hold.lives_in(_home()):
            shard._native, shard._hold = known._native, known._hold
        store.put(shard)
        _stored[number] = shard
    return store


def _as(first: Shard, shard: Shard) -> Shard:
    """The shard, if it can stand beside the first one; the keys of a dict may come in any order."""
    if shard._structure != first._structure or set(shard._names) != set(first._names):
        raise InvalidArgumentError(
            f"the first put had the arrays {first._names}, this one has {shard._names}; "
            "put the same structure every time"
        )
    if shard._names != first._names:
        # The same structure, flattened in another order.
        shard = Shard(
            _builder(first._structure, shard._names)(tuple(map(_unpack, shard._open().view(None))))
        )
    for (name, was, _), (_, now, _) in zip(
        first._open().describe(), shard._open().describe(), strict=True
    ):
        if was != now:
            raise InvalidArgumentError(
                f"{name!r} has another dtype or shape than in the first put: {now}, not {was}; "
                "convert it"
            )
    return shard
