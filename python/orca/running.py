"""Functions on workers: ``run`` and ``submit``, and what a function asks where it runs.

Example:
    >>> import orca
    >>> _ = orca.init_orca_context("local", cores=2)
    >>> orca.run(lambda x: (orca.rank(), orca.world_size(), x), args=(7,), workers=2)
    [(0, 2, 7), (1, 2, 7)]
    >>> orca.stop_orca_context()
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orca import guests, progress
from orca.context import active_context, current_context
from orca.errors import (
    ContextLostError,
    FailedPreconditionError,
    InvalidArgumentError,
    WaitTimeoutError,
    WorkerFailedError,
)
from orca.pickles import dumps, loads

if TYPE_CHECKING:  # It imports numpy, which a driver may never need.
    from orca.comm import Array, Communicator, ReduceOp

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "communicator",
    "gather",
    "local_rank",
    "local_world_size",
    "rank",
    "reduce",
    "reduce_scatter",
    "report",
    "run",
    "submit",
    "world_size",
]


# --- on the driver

_LOOK = 0.05  # Seconds between looks for signals: two interrupts are two, unless closer than that.
_PROBE = 2.0  # Seconds that the question may take whether functions can run.


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    workers: int | None = None,
    threads: int | None = None,
    on_failure: str = "raise",
    max_restarts: int = 3,
    oversubscribe: bool = False,
) -> list[Any]:
    """Runs ``fn(*args, **kwargs)`` on every worker and returns their results by rank.

    What ``fn`` captures travels with it; large arrays are one copy a machine, whatever the number
    of workers.

    Args:
        fn: Any function. Inside it ``orca.rank()``, ``orca.allreduce()`` and so on work.
        args: Its arguments.
        kwargs: Its keyword arguments.
        workers: How many processes run it; by default one a core.
        threads: Compute threads of a worker; by default the cores divided among the workers.
        on_failure: When a worker dies: ``"raise"``, ``"restart"`` (a new worker takes its place
            and all ranks begin anew) or ``"shrink"`` (the others begin anew without it). An
            exception of ``fn`` is always raised at once.
        max_restarts: How often ``"restart"`` begins anew.
        oversubscribe: Permits more than four workers per core.

    Returns:
        One result a rank.

    Raises:
        WorkerFailedError: ``fn`` raised on some rank, or a worker died; names the rank and has its
            traceback.

    Example:
        >>> import orca
        >>> _ = orca.init_orca_context("local", cores=2)
        >>> orca.run(pow, args=(2, 5), workers=1)
        [32]
        >>> orca.stop_orca_context()
    """
    call = _begin(fn, args, kwargs, workers, threads, on_failure, max_restarts, oversubscribe)
    return _ended(fn, *call)


def run_alone(framework: str, threads: int, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Runs ``fn(*args)`` on one worker for a framework that cannot change its number of threads.

    Args:
        framework: Whose adapter the worker has loaded.
        threads: Of that worker, for as long as it lives.
        fn: The function.
        args: Its arguments.

    Returns:
        What ``fn`` returned.
    """
    kind = current_context().own_kind(framework, threads)
    return _ended(fn, *_begin(fn, args, None, 1, threads, "raise", 0, kind=kind))[0]


def _ended(fn: Callable[..., Any], home: Any, call: Any) -> list[Any]:
    """Waits for a call of ``fn``; its results."""
    limit = _limit.get()
    is_late = False
    try:
        if (other_work := _meanwhile.get()) is not None:
            other_work()
        while not call.wait(_LOOK):
            if limit is not None and not is_late and time.monotonic() >= limit:
                is_late = True
                call.cancel("its time is over")  # What does not stop is killed.
    except BaseException:  # An interrupt.
        call.cancel("it was interrupted")
        # The functions tidy up, and what does not stop is killed. A second interrupt ends this wait.
        while not call.wait(_LOOK):
            pass
        raise
    if is_late and call.failure() is not None:
        raise WaitTimeoutError(f"{getattr(fn, '__name__', fn)} was ended: its time is over")
    return _results(home, call)


def context_is_lost() -> bool:
    """Whether no function can run in the context any more; asks by running one."""
    try:
        home, call = _begin(int, (), None, 1, 1, "raise", 0)
        if call.wait(_PROBE):
            _results(home, call)
        else:  # All workers are busy: there are some.
            call.cancel("it was a question that took too long")
    except (ContextLostError, FailedPreconditionError):
        return True
    return False


_limit: contextvars.ContextVar[float | None] = contextvars.ContextVar("limit", default=None)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Functions that this thread runs inside are ended when that time is over: ``run`` raises a WaitTimeoutError."""
    token = _limit.set(None if seconds is None else time.monotonic() + seconds)
    try:
        yield
    finally:
        _limit.reset(token)


_meanwhile: contextvars.ContextVar[Callable[[], None] | None] = contextvars.ContextVar(
    "meanwhile", default=None
)


@contextmanager
def meanwhile(other_work: Callable[[], None]) -> Iterator[None]:
    """``other_work`` is called while workers are at the functions that this thread runs inside."""
    token = _meanwhile.set(other_work)
    try:
        yield
    finally:
        _meanwhile.reset(token)


_lets_go: contextvars.ContextVar[bool] = contextvars.ContextVar("lets_go", default=False)


@contextmanager
def fresh_workers(wanted: bool = True) -> Iterator[None]:
    """Workers end with the functions that this thread runs inside: the next ones get new workers."""
    token = _lets_go.set(wanted)
    try:
        yield
    finally:
        _lets_go.reset(token)


def has_fresh_workers() -> bool:
    """Whether what this thread runs finds nothing that was kept."""
    return _lets_go.get()


def submit(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    workers: int | None = None,
    threads: int | None = None,
    on_failure: str = "raise",
    max_restarts: int = 3,
    oversubscribe: bool = False,
) -> concurrent.futures.Future[list[Any]]:
    """As ``run``, without waiting.

    Returns:
        A future of the list of results. Its ``cancel()`` stops the function on all workers.

    Example:
        >>> import orca
        >>> _ = orca.init_orca_context("local", cores=2)
        >>> orca.submit(max, args=(3, 4), workers=2).result()
        [4, 4]
        >>> orca.stop_orca_context()
    """
    return _Future(
        *_begin(fn, args, kwargs, workers, threads, on_failure, max_restarts, oversubscribe)
    )


class _Future(concurrent.futures.Future[list[Any]]):
    """Filled by a thread that waits for the call."""

    def __init__(self, home: Any, call: Any) -> None:
        super().__init__()
        self._home, self._call = home, call
        threading.Thread(target=self._watch, name="orca-submit", daemon=True).start()

    def _watch(self) -> None:
        while not self._call.wait(1.0):
            pass
        if not self.set_running_or_notify_cancel():
            return
        try:
            self.set_result(_results(self._home, self._call))
        except BaseException as error:
            self.set_exception(error)

    def cancel(self) -> bool:
        """Stops the function on all workers; False when it has ended."""
        if not super().cancel():
            return False
        self._call.cancel("its future was cancelled")
        return True

    def running(self) -> bool:
        return not self.done()


def _begin(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    workers: int | None,
    threads: int | None,
    on_failure: str,
    max_restarts: int,
    oversubscribe: bool = False,
    kind: str | None = None,
) -> tuple[Any, Any]:
    """The home of the call's shards, and the call."""
    _check(fn, args, kwargs, on_failure, max_restarts)
    for name, value in (("workers", workers), ("threads", threads)):
        if value is not None and (not _is_whole(value) or value < 1):
            raise InvalidArgumentError(
                f"{name} {value!r} is not positive; give a whole number from 1, or leave it out"
            )
    context = current_context()
    home = context.native.shards
    whole = (fn, tuple(args), dict(kwargs or {}))
    parts, shards = dumps(whole, names=("fn", "args", "kwargs"), home=home)
    return home, context.native.submit(
        kind or context.kind(),
        [context.setting(), *parts],
        shards,
        workers or 0,
        threads or 0,
        on_failure,
        max_restarts,
        _lets_go.get(),
        bool(oversubscribe),
    )


def _check(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    on_failure: str,
    max_restarts: int,
) -> None:
    if not callable(fn):
        raise InvalidArgumentError(f"fn {fn!r} cannot be called; give a function")
    if isinstance(args, str) or not isinstance(args, Iterable):
        raise InvalidArgumentError(f"args {args!r} is not a list or tuple; give ({args!r},)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidArgumentError(f"kwargs {kwargs!r} is not a dict; give the names and values")
    if not isinstance(on_failure, str):
        raise InvalidArgumentError(
            f'on_failure {on_failure!r} is not a text; give "raise", "restart" or "shrink"'
        )
    if not _is_whole(max_restarts) or max_restarts < 0:
        raise InvalidArgumentError(
            f"max_restarts {max_restarts!r} is not a whole number from 0; 0 means never"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _results(home: Any, call: Any) -> list[Any]:
    if (failure := call.failure()) is not None:
        # Every failure of a function has a rank, and that of a cancelled call has its mark.
        is_lost = failure["rank"] < 0 and not failure["cancelled"]
        raise (ContextLostError if is_lost else WorkerFailedError)(**failure)
    return [loads(parts, home) for parts in call.results()]


# --- where a function runs

_task: Any = None
_native: Any = None
_group: Communicator | None = None
_before_collectives: Callable[[], None] | None = None


def enter(task: Any, native: Any) -> None:
    """This process runs a task of ``native`` now."""
    global _task, _native
    _task, _native = task, native


def leave() -> None:
    """The task has ended."""
    global _task, _group
    _task, _group = None, None


def shard_home() -> Any:
    """Where this process puts its shards: with the agent of its node (as a guest, too), or None."""
    if _native is not None:
        return _native.shards
    context = active_context()
    return guests.home() if context is None else context.native.shards


def is_inside() -> bool:
    """Whether this process is a worker that runs a function."""
    return _task is not None


def rank() -> int:
    """This worker's number among those that run the function; 0 outside of one."""
    return 0 if _task is None else int(_task.rank)


def world_size() -> int:
    """How many workers run the function; 1 outside of one."""
    return 1 if _task is None else int(_task.world)


def local_rank() -> int:
    """This worker's number among those of its machine."""
    return 0 if _task is None else int(_task.local_rank)


def local_world_size() -> int:
    """How many workers of this machine run the function."""
    return 1 if _task is None else int(_task.local_world)


def node() -> int:
    """The number of this worker's machine."""
    return 0 if _task is None else int(_task.node)


def attempt() -> int:
    """How often the call has begun anew."""
    return 0 if _task is None else int(_task.attempt)


def keep(basket: int, shards: list[int]) -> None:
    """Leaves shards in a basket of the driver's, in the place of what is in it: they outlive this worker."""
    _native.leave(basket, shards)


def report(step: int, **metrics: float) -> None:
    """Notes how far the function is, and what it measured, in the run's log; see ``orca logs``.

    At most ten a second are kept of a rank, and the last one in any case. Outside of a function of
    ``orca.run`` it does nothing.

    Args:
        step: The number of the step.
        **metrics: What was measured, by name.

    Example:
        >>> import orca
        >>> orca.report(1, loss=0.7)
    """
    if _task is not None:
        _native.report(step, {name: float(value) for name, value in metrics.items()})


def show_progress(fields: dict[str, Any]) -> None:
    """Shows the driver's user how far the function is; see ``orca.progress``."""
    log(progress.LOGGER, logging.INFO, json.dumps(fields))


def log(logger: str, level: int, text: str) -> None:
    """Sends a record to the logger of that name in the driver."""
    if _task is not None:
        _native.log(logger, level, text.encode("utf-8", "backslashreplace").decode())


def communicator() -> Communicator:
    """The group of all workers that run the function, with every collective; see ``orca.comm``."""
    global _group
    if _before_collectives is not None:
        _before_collectives()
    if _group is None:
        from orca.comm import Communicator

        _group = (
            Communicator.connect(rank=0, world=1)
            if _task is None
            else Communicator(_native.communicator())
        )
    return _group


@contextmanager
def before_collectives(call: Callable[[], None]) -> Iterator[None]:
    """Calls ``call`` before each collective that begins inside."""
    global _before_collectives
    _before_collectives = call
    try:
        yield
    finally:
        _before_collectives = None


def barrier() -> None:
    """Waits until every rank has called it."""
    communicator().barrier()


def allreduce(array: Array, op: ReduceOp = "sum") -> Array:
    """Reduces ``array`` over all ranks, in place; returns it."""
    return communicator().allreduce(array, op)


def reduce(array: Array, root: int = 0, op: ReduceOp = "sum") -> Array:
    """Reduces ``array`` of all ranks into ``array`` of ``root``; returns it."""
    return communicator().reduce(array, root, op)


def broadcast(array: Array, root: int = 0) -> Array:
    """Copies ``array`` of ``root`` into ``array`` of all ranks; returns it."""
    return communicator().broadcast(array, root)


def allgather(array: Array, output: Any = None) -> Any:
    """Collects every rank's ``array`` on every rank."""
    return communicator().allgather(array, output)


def gather(array: Array, root: int = 0) -> Any:
    """Collects every rank's ``array`` on ``root``: a list there, None elsewhere."""
    return communicator().gather(array, root)


def reduce_scatter(array: Any, output: Any = None, op: ReduceOp = "sum") -> Any:
    """Reduces ``array`` over all ranks and leaves part r on rank r."""
    return communicator().reduce_scatter(array, output, op)


def alltoall(array: Any, output: Any = None) -> Any:
    """Sends part r of ``array`` to rank r and collects what the ranks sent."""
    return communicator().alltoall(array, output)


def _forget_after_fork() -> None:
    global _group
    _group = None


os.register_at_fork(after_in_child=_forget_after_fork)
