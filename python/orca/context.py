"""The context: what a program may use of the machine, and the processes that serve it.

Example:
    >>> import orca
    >>> _ = orca.init_orca_context("local", cores=2)
    >>> orca.OrcaContext.cores()
    2
    >>> orca.stop_orca_context()
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import re
import sys
import threading
from pathlib import Path
from typing import Any

from orca import progress
from orca._native import _core
from orca.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["OrcaContext", "current_context", "init_orca_context", "stop_orca_context"]

FRAMEWORKS = ("torch",)
_TRAINING = {"torch": "orca.learn.pytorch"}
UNSHOWN = "orca.unshown"
"""The logger whose records are in the run's log, and are not shown."""

_log = logging.getLogger("orca")
_current: _Context | None = None
_absence = "there is no Orca context; call orca.init_orca_context() first"
_of_parents: list[_Context] = []  # of processes that this one was forked from; never used
_lock = threading.Lock()


def init_orca_context(
    cluster_mode: str = "local",
    cores: int | str | None = None,
    memory: int | str | None = None,
    *,
    num_nodes: int = 1,
    address: str = "",
    secret_file: str | os.PathLike[str] = "",
    timeout: float = 60.0,
) -> OrcaContext:
    """Starts the processes that run the program's functions.

    Args:
        cluster_mode: ``"local"``: this machine. ``"join"``: machines whose agents join this
            program: ``orca agent --join HOST:PORT --secret-file F`` on each.
        cores: How many cores to use; ``"*"`` or None: all that this process may use.
        memory: How much memory shards may take, in bytes or as ``"10g"``; None: half of what is free.
            More of them go to files, in the folder ``ORCA_SPILL`` if that is set.
        num_nodes: For ``"join"``: how many agents to wait for.
        address: For ``"join"``: where to wait, ``"host:port"``.
        secret_file: For ``"join"``: a file of mode 0600 with 64 hex digits, the same on all
            machines.
        timeout: Seconds for the agents to join.

    Returns:
        The context; there is one at a time.

    Raises:
        FailedPreconditionError: There is one already.
        InvalidArgumentError: An argument cannot work.

    Example:
        >>> import orca
        >>> context = orca.init_orca_context("local", cores=1, memory="2g")
        >>> context.cores()
        1
        >>> orca.stop_orca_context()
    """
    global _current
    if cluster_mode not in ("local", "join"):
        raise InvalidArgumentError(
            f'cluster_mode="{cluster_mode}" is not in this release; give "local" or "join"'
        )
    joining = cluster_mode == "join"
    if joining and num_nodes < 1:
        raise InvalidArgumentError(
            f"num_nodes {num_nodes} is not positive; give how many to wait for"
        )
    if not joining:
        others = {"num_nodes": num_nodes != 1, "address": address, "secret_file": secret_file}
        if given := [name for name, value in others.items() if value]:
            raise InvalidArgumentError(
                f'{" and ".join(given)} have no effect with cluster_mode="local"; leave them out, or give "join"'
            )
    with _lock:
        if _current is not None:
            raise FailedPreconditionError(
                "there is an Orca context already; call orca.stop_orca_context() first"
            )
        _current = _Context(
            _core.Context.start(
                _read_cores(cores),
                _read_memory(memory),
                _read_silence(),
                num_nodes if joining else 0,
                address,
                os.fspath(secret_file),
                timeout,
            ),
            num_nodes if joining else 0,
        )
    return OrcaContext()


def stop_orca_context() -> None:
    """Ends every process of the context. Without a context it does nothing."""
    global _current
    with _lock:
        last, _current = _current, None
    try:
        if "orca.adapters.spark" in sys.modules:
            sys.modules["orca.adapters.spark"].stop()
    finally:
        if last is not None:
            last.stop()


class OrcaContext:
    """The context of this program."""

    @staticmethod
    def cores() -> int:
        """How many cores it uses."""
        return int(current_context().native.cores)

    @staticmethod
    def memory() -> int:
        """How many bytes of memory it uses at most."""
        return int(current_context().native.memory)

    @classmethod
    def get_spark_context(cls) -> Any:
        """The SparkContext of this process; starts Spark on this machine when there is none."""
        return _spark_context()

    @classmethod
    def get_sql_context(cls) -> Any:
        """The SQLContext; starts Spark."""
        context = _spark_context()
        from orca.adapters.spark import session

        return session.sql_context(context)

    @classmethod
    def get_spark_session(cls) -> Any:
        """The SparkSession; starts Spark."""
        context = _spark_context()
        from orca.adapters.spark import session

        return session.spark_session(context)

    def __enter__(self) -> OrcaContext:
        return self

    def __exit__(self, *_: object) -> None:
        stop_orca_context()


def current_context() -> _Context:
    """The context, for the other modules of this package."""
    if _current is None:
        raise FailedPreconditionError(_absence)
    return _current


def active_context() -> _Context | None:
    """The context, if there is one."""
    return _current


def explain_absence(text: str) -> None:
    """Says why this process has no context, for errors of calls that need one."""
    global _absence
    _absence = text


class _Context:
    def __init__(self, native: Any, joined: int = 0) -> None:
        from orca import worker

        self.is_local = joined == 0  # One machine, the driver's.
        self.nodes = max(joined, 1)

        self._worker = worker
        self._kinds: set[str] = set()
        self.native = native
        self._began = dict(os.environ)
        self._setting: tuple[Any, bytes] = (None, b"")
        self._stopped = threading.Event()
        self._printer = threading.Thread(target=self._print_events, name="orca-events", daemon=True)
        self._printer.start()
        self.kind()
        _log.info(self.native.plan)

    def kind(self) -> str:
        """The nursery that suits what the program has imported so far; starts it."""
        frameworks = [name for name in FRAMEWORKS if name in sys.modules]
        # Who has imported Estimators will train.
        frameworks += [f"{name}-training" for name in frameworks if _TRAINING[name] in sys.modules]
        return self._prepared("+".join(["python", *frameworks]), frameworks)

    def own_kind(self, framework: str, threads: int) -> str:
        """A nursery of workers that always compute with so many threads: some frameworks cannot change that."""
        return self._prepared(f"python+{framework}:{threads}", [framework])

    def _prepared(self, kind: str, frameworks: list[str]) -> str:
        if kind not in self._kinds:
            self.native.prepare(
                kind,
                self._worker.nursery_command(),
                self._worker.nursery_environment(frameworks),
                str(Path.cwd()),
                self._worker.versions(frameworks),
            )
            self._kinds.add(kind)
        return kind

    def setting(self) -> bytes:
        """What of the driver a worker needs beside the function, pickled."""
        # A Path takes ten times as long.
        now = (_environment(), list(sys.path), os.getcwd(), logging.getLogger().level)  # noqa: PTH109
        seen, setting = self._setting
        if now != seen:
            setting = self._describe()
            self._setting = (now, setting)  # Both at once: several threads may ask.
        return setting

    def _describe(self) -> bytes:
        now = dict(os.environ)
        changed = {name: value for name, value in now.items() if self._began.get(name) != value}
        gone = {name: None for name in self._began if name not in now}
        return pickle.dumps(
            {
                "environment": {**changed, **gone},
                "path": list(sys.path),
                "directory": str(Path.cwd()),
                "log_level": logging.getLogger().level,
            }
        )

    def stop(self) -> None:
        self.native.stop()
        self._stopped.set()
        if threading.current_thread() is not self._printer:
            self._printer.join(timeout=5)

    def _print_events(self) -> None:
        while True:
            event: Any = self.native.next_event(0.5)
            if event is not None:
                _show(*event)
            elif self._stopped.is_set():
                return


def _spark_context() -> Any:
    from orca.adapters import spark

    if spark.active() is None and _current is not None and not spark.is_planned():
        spark.prepare(
            spark.SparkPlan(f"local[{_current.native.cores}]"),
            now=False,
        )
    return spark.start()


def _environment() -> Any:
    # A copy of the mapping below os.environ, where there is one, is twenty times as fast.
    return dict(getattr(os.environ, "_data", os.environ))


def _show(kind: int, rank: int, level: int, stream: int, logger: str, text: str) -> None:
    if logger == progress.LOGGER:
        progress.show(text)
    elif logger == UNSHOWN:
        pass
    elif kind == 0:
        out = sys.stderr if stream else sys.stdout
        mark = f"[rank {rank}] " if rank >= 0 else ""
        out.write("".join(f"{mark}{line}\n" for line in text.splitlines()))
        out.flush()
    else:
        name = logger if logger and logger != "root" else "orca"
        where = logging.getLogger(name)
        if where.isEnabledFor(level):
            where.log(level, "%s%s", f"[rank {rank}] " if rank >= 0 else "", text)


def _read_cores(cores: int | str | None) -> int:
    if cores is None or cores == "*":
        return 0
    if not isinstance(cores, int) or isinstance(cores, bool) or cores < 1:
        raise InvalidArgumentError(
            f'cores {cores!r} is not a positive whole number; give how many cores to use, or "*"'
        )
    return cores


def _read_memory(memory: int | str | None) -> int:
    if memory is None:
        return 0
    units = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", str(memory).strip().lower())
    size = int(float(match[1]) * units[match[2]]) if match else 0
    if size <= 0:
        raise InvalidArgumentError(
            f'memory {memory!r} is not an amount of memory; give bytes, or a text such as "10g"'
        )
    return size


def _read_silence() -> float:
    text = os.environ.get("ORCA_SILENCE", "5")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0.01 <= seconds <= 86400:
        raise InvalidArgumentError(
            f"ORCA_SILENCE={text!r} is not a number of seconds from 0.01 to 86400; give how long a "
            "worker may be silent"
        )
    return seconds


def _forget_after_fork() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _of_parents.append(_current)
        _current = None
        explain_absence(
            "this process was forked from one with an Orca context, which stays with its parent; "
            "call orca.run() there, or orca.init_orca_context() here"
        )


atexit.register(stop_orca_context)
os.register_at_fork(after_in_child=_forget_after_fork)
