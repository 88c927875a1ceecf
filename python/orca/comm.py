"""Collectives on arrays, without any framework.

Arrays are numpy arrays or anything else in CPU memory that speaks DLPack (torch tensors too). They
must be contiguous. Every rank makes the same calls in the same order.

Example:
    >>> import numpy as np
    >>> from orca.comm import Communicator
    >>> with Communicator.connect(rank=0, world=1) as comm:
    ...     comm.allreduce(np.ones(3, dtype=np.float32))
    array([1., 1., 1.], dtype=float32)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from orca._native import _core
from orca.errors import InvalidArgumentError
from orca.options import as_text

__all__ = ["Array", "Communicator", "ReduceOp", "Store", "Work"]

Array: TypeAlias = Any
"""A numpy array, or another array in CPU memory that speaks DLPack."""

ReduceOp: TypeAlias = Literal[
    "sum", "average", "product", "min", "max", "bitand", "bitor", "bitxor", "premulsum"
]
"""How elements of several ranks become one."""

# The numbers of orca::comm::ReduceOp and orca::comm::Op.
_REDUCE: dict[str, int] = {
    name: number
    for number, name in enumerate(
        ["sum", "average", "product", "min", "max", "bitand", "bitor", "bitxor", "premulsum"]
    )
}
_BARRIER, _ALLREDUCE, _REDUCE_TO, _BROADCAST, _ALLGATHER, _REDUCE_SCATTER, _ALLTOALL = range(7)
_GATHER, _SCATTER = 7, 8
_ANY_SOURCE = -1


def _operator(op: str) -> int:
    if op not in _REDUCE:
        raise InvalidArgumentError(f"unknown reduction {op!r}; known: {', '.join(_REDUCE)}")
    return _REDUCE[op]


def _list(arrays: Array | Sequence[Array]) -> list[Array]:
    return list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]


class Store:
    """Where the ranks of a group find each other while it forms.

    Example:
        >>> store = Store.memory()
        >>> store.set("key", "value")
        >>> store.get("key", timeout=1)
        'value'
    """

    def __init__(self, native: Any, address: str | None = None) -> None:
        self._native = native
        self.address = address
        """Where a store that this process serves is reached, ``"host:port"``."""

    @classmethod
    def memory(cls) -> Store:
        """A store for ranks that are threads of this process."""
        return cls(_core.Store.memory())

    @classmethod
    def file(cls, directory: str | os.PathLike[str]) -> Store:
        """A store in a directory that all ranks see."""
        return cls(_core.Store.file(os.fspath(directory)))

    @classmethod
    def serve(cls, address: str, secret_file: str | os.PathLike[str]) -> Store:
        """A store that this process serves as long as the object lives.

        Args:
            address: ``"host:port"``; port 0 takes a free one, see ``address`` of the result.
            secret_file: A file of mode 0600 with 64 hex digits that all ranks hold.
        """
        return cls(*_core.Store.serve(address, os.fspath(secret_file)))

    @classmethod
    def connect(
        cls, address: str, secret_file: str | os.PathLike[str], timeout: float = 60.0
    ) -> Store:
        """Connects to a served store; tries again for ``timeout`` seconds."""
        return cls(_core.Store.connect(address, os.fspath(secret_file), timeout))

    def set(self, key: str, value: str) -> None:
        """Makes ``value`` visible to every rank."""
        self._native.set(key, value)

    def get(self, key: str, timeout: float) -> str:
        """Waits up to ``timeout`` seconds for ``key`` and returns its value."""
        return str(self._native.get(key, timeout))


def _open_store(
    store: Store | str | None, rank: int, secret_file: str | None, timeout: float
) -> Store | None:
    if store is None or isinstance(store, Store):
        return store
    scheme, _, rest = store.partition("://")
    if scheme == "file" and rest:
        return Store.file(rest)
    if scheme == "tcp" and rest:
        if secret_file is None:
            raise InvalidArgumentError(
                f"store {store!r} needs secret_file (or ORCA_SECRET_FILE): a file of mode 0600 "
                "with 64 hex digits, the same on every rank"
            )
        if rank == 0:
            return Store.serve(rest, secret_file)
        return Store.connect(rest, secret_file, timeout)
    raise InvalidArgumentError(
        f'store {store!r} is neither "file:///directory" nor "tcp://host:port"'
    )


class Work:
    """A call that is under way. The engine holds its arrays until it has ended.

    Example:
        >>> import numpy as np
        >>> with Communicator.connect(rank=0, world=1) as comm:
        ...     work = comm.start_allreduce(np.ones(2))
        ...     work.wait()
        array([1., 1.])
    """

    def __init__(self, native: Any, result: Any = None) -> None:
        self._native = native
        self._result = result

    def done(self) -> bool:
        """Whether the call has ended, well or not."""
        return bool(self._native.done())

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the end and returns the result.

        Args:
            timeout: Seconds; without it, the call's own limit is the only one.

        Returns:
            What the blocking form returns.

        Raises:
            OrcaError: What the call failed with; ``WaitTimeoutError`` when ``timeout`` passes.
        """
        self._native.wait(0.0 if timeout is None else max(timeout, 0.001))
        return self._result

    @property
    def source(self) -> int:
        """The rank that a message came from; -1 before, and for other calls."""
        return int(self._native.source())


class Communicator:
    """A group of ranks that reduce, gather and exchange arrays together.

    Calls may come from several threads, but then the caller sees to it that their order is the
    same on every rank. After an error other than ``InvalidArgumentError`` the group is unusable:
    connect again with a higher ``generation``.

    Example:
        >>> import threading, numpy as np
        >>> store = Store.memory()
        >>> results = {}
        >>> def run(rank):
        ...     with Communicator.connect(rank=rank, world=2, store=store) as comm:
        ...         results[rank] = comm.allgather(np.array([rank], dtype=np.int32))
        >>> threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        >>> for thread in threads: thread.start()
        >>> for thread in threads: thread.join()
        >>> results[0].tolist()
        [[0], [1]]
    """

    def __init__(self, native: Any) -> None:
        self._native = native

    @classmethod
    def connect(
        cls,
        rank: int,
        world: int,
        *,
        store: Store | str | None = None,
        group: str = "orca",
        generation: int = 0,
        secret_file: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> Communicator:
        """Joins a group; returns when all ranks have.

        Args:
            rank: This process's number, from 0.
            world: How many ranks there are.
            store: Where they meet: ``"file:///directory"``, ``"tcp://host:port"`` (rank 0 listens
                there; wants ``secret_file``) or a ``Store``. A group of one needs none.
            group: The name of the group; two groups on one store need two names.
            generation: A group that forms again after a failure takes a higher one.
            secret_file: A file of mode 0600 with 64 hex digits, the same on every rank. Without
                it ``ORCA_SECRET_FILE`` counts, and else rank 0 puts a key into the store.
            **settings: ``timeout``, ``connect_timeout``, ``peer_timeout``, ``warn_after``
                (seconds), ``transport``, ``host``, ``address``, ``streams``, ``wire_bf16``.

        Returns:
            The group.

        Raises:
            WaitTimeoutError: Ranks are missing; the message names them.
            InvalidArgumentError: An argument or setting is unknown or cannot work.

        Example:
            >>> Communicator.connect(rank=0, world=1).world
            1
        """
        texts = as_text(settings)
        secret = os.fspath(secret_file) if secret_file else os.environ.get("ORCA_SECRET_FILE")
        timeout = float(texts.get("connect_timeout", 60.0))
        met = _open_store(store, rank, secret, timeout)
        native = met._native if met else None
        return cls(
            _core.Communicator.connect(rank, world, native, group, generation, secret, texts)
        )

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the group. The other ranks' later calls fail."""
        self._native.close()

    def abort(self, reason: str) -> None:
        """Ends every pending and later call of the group, on all ranks, with ``reason``."""
        self._native.abort(reason)

    @property
    def rank(self) -> int:
        """This process's number."""
        return int(self._native.rank)

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return int(self._native.world)

    @property
    def sequence(self) -> int:
        """How many collectives this rank has begun."""
        return int(self._native.sequence)

    def describe(self) -> str:
        """One line for people, e.g. ``"2 ranks on 1 host, shared memory"``."""
        return str(self._native.describe())

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> Array:
        """An uninitialised numpy array in memory that the ranks of a host share.

        Collectives work on it in place, without a copy.

        Example:
            >>> with Communicator.connect(rank=0, world=1) as comm:
            ...     comm.empty((2, 3), dtype="int64").shape
            (2, 3)
        """
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        count = int(np.prod(sizes, dtype=np.int64)) * kind.itemsize
        return self._native.empty(count).view(kind).reshape(sizes)

    # --- the calls, as (arguments of the engine, result)

    def _allreduce(self, array: Array, op: str, factor: float) -> tuple[tuple[Any, ...], Any]:
        return (_ALLREDUCE, [array], [array], _operator(op), factor, 0), array

    def _reduce(
        self, array: Array, root: int, op: str, factor: float
    ) -> tuple[tuple[Any, ...], Any]:
        return (_REDUCE_TO, [array], [array], _operator(op), factor, root), array

    def _broadcast(self, array: Array, root: int) -> tuple[tuple[Any, ...], Any]:
        return (_BROADCAST, [array], [array], -1, 1.0, root), array

    def _allgather(
        self, array: Array, output: Array | Sequence[Array] | None
    ) -> tuple[tuple[Any, ...], Any]:
        if output is None:
            output = np.empty((self.world, *np.shape(array)), dtype=np.asarray(array).dtype)
        return (_ALLGATHER, [array], _list(output)), output

    def _reduce_scatter(
        self, array: Array | Sequence[Array], output: Array | None, op: str, factor: float
    ) -> tuple[tuple[Any, ...], Any]:
        inputs = _list(array)
        if output is None:
            own = np.asarray(inputs[self.rank] if len(inputs) > 1 else inputs[0])
            output = np.empty_like(own) if len(inputs) > 1 else np.empty_like(self._cut(own)[0])
        return (_REDUCE_SCATTER, inputs, [output], _operator(op), factor, 0), output

    def _alltoall(
        self, array: Array | Sequence[Array], output: Array | Sequence[Array] | None
    ) -> tuple[tuple[Any, ...], Any]:
        inputs = _list(array)
        if output is None:
            output = [np.empty_like(one) for one in inputs]
            output = output if isinstance(array, (list, tuple)) else output[0]
        return (_ALLTOALL, inputs, _list(output)), output

    def _gather(
        self, array: Array, root: int, outputs: Sequence[Array] | None
    ) -> tuple[tuple[Any, ...], Any]:
        if self.rank != root:
            return (_GATHER, [array], [], -1, 1.0, root), None
        if outputs is None:
            outputs = [np.empty_like(np.asarray(array)) for _ in range(self.world)]
        return (_GATHER, [array], list(outputs), -1, 1.0, root), outputs

    def _scatter(
        self, arrays: Sequence[Array] | None, output: Array, root: int
    ) -> tuple[tuple[Any, ...], Any]:
        inputs = list(arrays or ()) if self.rank == root else []
        return (_SCATTER, inputs, [output], -1, 1.0, root), output

    def _cut(self, array: Array) -> Array:
        if len(array) % self.world:
            raise InvalidArgumentError(
                f"{len(array)} rows cannot be cut into {self.world} equal parts; pass a list of "
                "arrays, one a rank"
            )
        return array.reshape(self.world, len(array) // self.world, *array.shape[1:])

    def _run(self, call: tuple[tuple[Any, ...], Any]) -> Any:
        self._native.run(*call[0])
        return call[1]

    def _start(self, call: tuple[tuple[Any, ...], Any]) -> Work:
        return Work(self._native.start(*call[0]), call[1])

    # --- blocking

    def barrier(self) -> None:
        """Returns when every rank has called it.

        Example:
            >>> with Communicator.connect(rank=0, world=1) as comm: comm.barrier()
        """
        self._native.run(_BARRIER, [], [])

    def allreduce(self, array: Array, op: ReduceOp = "sum", factor: float = 1.0) -> Array:
        """Reduces ``array`` over all ranks, in place.

        Args:
            array: As long on every rank.
            op: How elements become one.
            factor: For ``"premulsum"``: this rank's elements are multiplied by it first.

        Returns:
            ``array``.

        Example:
            >>> import numpy as np
            >>> with Communicator.connect(rank=0, world=1) as comm:
            ...     comm.allreduce(np.array([2.0]), op="premulsum", factor=3.0)
            array([6.])
        """
        return self._run(self._allreduce(array, op, factor))

    def reduce(
        self, array: Array, root: int = 0, op: ReduceOp = "sum", factor: float = 1.0
    ) -> Array:
        """Reduces ``array`` of all ranks into ``array`` of ``root``; the others' stays.

        Example:
            >>> import numpy as np
            >>> with Communicator.connect(rank=0, world=1) as comm:
            ...     comm.reduce(np.array([2, 3]), root=0, op="max")
            array([2, 3])
        """
        return self._run(self._reduce(array, root, op, factor))

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Copies ``array`` of ``root`` into ``array`` of all ranks.

        Example:
            >>> import numpy as np
            >>> with Communicator.connect(rank=0, world=1) as comm:
            ...     comm.broadcast(np.array([1, 2]))
            array([1, 2])
        """
        return self._run(self._broadcast(array, root))

    def allgather(self, array: Array, output: Array | Sequence[Array] | None = None) -> Any:
        """Collects every rank's ``array`` on every rank.

        Args:
            array: This rank's part.
            output: One array for all parts together, or a list of one array a rank, which may
                differ in length. Without it a new array: parts of equal shape, stacked.

        Returns:
            ``output``.

        Example:
            >>> import numpy as np
            >>> with Communicator.connect(rank=0, world=1) as comm:
            ...     comm.allgather(np.array([1, 2]))
            array([[1, 2]])
        """
        return self._run(self._allgather(array, output))

    def reduce_scatter(
        self,
        array: Array | Sequence[Array],
        output: Array | None = None,
        op: ReduceOp = "sum",
        factor: float = 1.0,
    ) -> Array:
        """Reduces ``array`` over all ranks and leaves part r on rank r.

        Args:
            array: All parts together, cut along the first axis; or a list of one array a rank,
                which may differ in length.
            output: Where this rank's part goes; without it a new array.
            op: How elements become one.
            factor: For ``"premulsum"``.

        Returns:
            ``output``.

        Example:
            >>> import numpy as np
            >>> with Communicator.connect(rank=0, world=1) as comm:
            ...     comm.reduce_scatter(np.array([1, 2]))
            array([1, 2])
        """
        return self._run(self._reduce_scatter(array, output, op, factor))

    def alltoall(
        self, array: Array | Sequence[Array], output: Array | Sequence[Array] | None = None
    ) -> Any:
        """Sends part r of ``array`` to rank r and collects what the ranks sent.

        Args:
            array: Equal parts together, or a list of one array a rank.
            output: As ``array``; a list where the sizes differ. Without it like ``array``.

        Returns:
            ``output``.

        Example:
            >>> import numpy as np
            >>> with Communicator.connect(rank=0, world=1) as comm:
            ...     comm.alltoall(np.array([1, 2]))
            array([1, 2])
        """
        return self._run(self._alltoall(array, output))

    def gather(
        self, array: Array, root: int = 0, outputs: Sequence[Array] | None = None
    ) -> Sequence[Array] | None:
        """Collects every rank's ``array`` on ``root``.

        Returns:
            The list of arrays on ``root`` (``outputs`` where given), None elsewhere.

        Example:
            >>> import numpy as np
            >>> with Communicator.connect(rank=0, world=1) as comm:
            ...     comm.gather(np.array([1, 2]))
            [array([1, 2])]
        """
        result: Sequence[Array] | None = self._run(self._gather(array, root, outputs))
        return result

    def scatter(self, arrays: Sequence[Array] | None, output: Array, root: int = 0) -> Array:
        """Sends ``arrays[r]`` of ``root`` to ``output`` of rank r; ``arrays`` is None elsewhere.

        Example:
            >>> import numpy as np
            >>> with Communicator.connect(rank=0, world=1) as comm:
            ...     comm.scatter([np.array([1, 2])], np.zeros(2, dtype=int))
            array([1, 2])
        """
        return self._run(self._scatter(arrays, output, root))

    def send(self, array: Array, peer: int, tag: int = 0) -> None:
        """Sends ``array`` to ``peer``; returns when it may be written again."""
        self._native.send(array, peer, tag)

    def recv(self, array: Array, peer: int | None = None, tag: int = 0) -> int:
        """Receives exactly ``array`` from ``peer``, or from any rank; returns the sender."""
        return int(self._native.recv(array, _ANY_SOURCE if peer is None else peer, tag))

    # --- started, to be waited for

    def start_barrier(self) -> Work:
        """As ``barrier``, without waiting."""
        return Work(self._native.start(_BARRIER, [], []))

    def start_allreduce(self, array: Array, op: ReduceOp = "sum", factor: float = 1.0) -> Work:
        """As ``allreduce``, without waiting."""
        return self._start(self._allreduce(array, op, factor))

    def start_reduce(
        self, array: Array, root: int = 0, op: ReduceOp = "sum", factor: float = 1.0
    ) -> Work:
        """As ``reduce``, without waiting."""
        return self._start(self._reduce(array, root, op, factor))

    def start_broadcast(self, array: Array, root: int = 0) -> Work:
        """As ``broadcast``, without waiting."""
        return self._start(self._broadcast(array, root))

    def start_allgather(self, array: Array, output: Array | Sequence[Array] | None = None) -> Work:
        """As ``allgather``, without waiting."""
        return self._start(self._allgather(array, output))

    def start_reduce_scatter(
        self,
        array: Array | Sequence[Array],
        output: Array | None = None,
        op: ReduceOp = "sum",
        factor: float = 1.0,
    ) -> Work:
        """As ``reduce_scatter``, without waiting."""
        return self._start(self._reduce_scatter(array, output, op, factor))

    def start_alltoall(
        self, array: Array | Sequence[Array], output: Array | Sequence[Array] | None = None
    ) -> Work:
        """As ``alltoall``, without waiting."""
        return self._start(self._alltoall(array, output))

    def start_gather(
        self, array: Array, root: int = 0, outputs: Sequence[Array] | None = None
    ) -> Work:
        """As ``gather``, without waiting."""
        return self._start(self._gather(array, root, outputs))

    def start_scatter(self, arrays: Sequence[Array] | None, output: Array, root: int = 0) -> Work:
        """As ``scatter``, without waiting."""
        return self._start(self._scatter(arrays, output, root))

    def start_send(self, array: Array, peer: int, tag: int = 0) -> Work:
        """As ``send``, without waiting."""
        return Work(self._native.start_send(array, peer, tag))

    def start_recv(self, array: Array, peer: int | None = None, tag: int = 0) -> Work:
        """As ``recv``, without waiting; ``source`` of the result has the sender."""
        native = self._native.start_recv(array, _ANY_SOURCE if peer is None else peer, tag)
        return Work(native, array)
