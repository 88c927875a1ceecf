"""Spark beside Orca's workers: started when somebody needs it, with what ``init_orca_context`` was told.

Nothing here imports pyspark until Spark is wanted; the modules below do.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from types import ModuleType
from typing import Any

from orca.adapters.spark.plan import SparkPlan, cores_of
from orca.errors import FailedPreconditionError

__all__ = [
    "SparkPlan",
    "active",
    "cores_of",
    "forget",
    "is_imported",
    "is_planned",
    "load",
    "prepare",
    "start",
    "stop",
    "was_stopped",
]

NO_CONTEXT = "No active SparkContext. Please create a SparkContext first"


class NoJavaError(FailedPreconditionError):
    """There is no Java."""


_plan: SparkPlan | None = None
_used: Any = None  # The SparkContext of the plan; another's when there was one already.
_lock = threading.RLock()


def is_imported() -> bool:
    """Whether the program has imported pyspark."""
    return sys.modules.get("pyspark") is not None


def active() -> Any:
    """The SparkContext of this process, whoever made it; None when there is none."""
    pyspark = sys.modules.get("pyspark")
    return getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)


def is_planned() -> bool:
    """Whether there is a plan for the first use of Spark."""
    return _plan is not None


def prepare(plan: SparkPlan, *, now: bool = True) -> None:
    """Keeps the plan for the first use of Spark; a SparkContext that is there already is used.

    Args:
        plan: What to start it with.
        now: Whether the import of pyspark is a use, also one that has been.
    """
    from orca.adapters.spark import hook

    global _plan
    with _lock:
        _plan = plan
    if not now:
        return
    if not is_imported():
        hook.install(_start_for_import)
        return
    try:
        start()
    except NoJavaError as error:
        _warn(error)  # Who imports pyspark need not use it.


def start(plan: SparkPlan | None = None) -> Any:
    """The SparkContext: the one of this process, or a new one of the plan.

    Args:
        plan: In the place of the one that ``prepare`` was given.

    Raises:
        FailedPreconditionError: There is no plan, or no Java, or Spark did not start.
        ImportError: pyspark is not installed.
    """
    global _used
    if plan is None and _plan is None and active() is None:
        raise FailedPreconditionError(f"{NO_CONTEXT}: call init_orca_context()")
    from orca.adapters.spark import hook

    hook.remove()  # No need to start it twice.
    _import()  # Before the lock: another thread may be at it, and start Spark itself.
    from orca.adapters.spark import session

    with _lock:
        found = active()
        if found is None:
            wanted = plan or _plan
            if wanted is None:
                raise FailedPreconditionError(f"{NO_CONTEXT}: call init_orca_context()")
            _used = found = session.start(wanted)
        elif _used is not found and _plan is not None:
            _used = found
        return found


def stop() -> None:
    """Stops the SparkContext that was started, and forgets the plan.

    A SparkContext that was there before is stopped when the plan says so.
    """
    global _plan, _used
    from orca.adapters.spark import hook

    hook.remove()
    with _lock:
        plan, used = _plan, _used
        _plan = _used = None
        if used is None or used is not active():
            return
        from orca.adapters.spark import session

        if session.is_ours(used) or (plan is not None and plan.stops_others):
            session.stop(used)


def forget() -> None:
    """In a forked child: the parent's Spark is not its own."""
    global _plan, _used, _lock
    _lock = threading.RLock()
    _plan = _used = None


def was_stopped() -> bool:
    """Whether somebody has stopped the SparkContext of the plan since it was started."""
    return _used is not None and _used is not active()


def load(name: str) -> ModuleType:
    """A module that imports pyspark; says what to install where there is none."""
    _import()
    return importlib.import_module(name)


def _import() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        if error.name not in ("pyspark", "py4j"):
            raise
        raise ImportError(
            f"this needs Spark, and there is no package {error.name}: pip install pyspark",
            name=error.name,
        ) from error


def _start_for_import() -> None:
    """After the first import of pyspark, which must not fail for want of Java."""
    if _plan is None:
        return
    try:
        start()
    except Exception as error:
        _warn(error)


def _warn(error: Exception) -> None:
    import logging

    logging.getLogger("orca").warning("Spark is not started: %s", error)


os.register_at_fork(after_in_child=forget)
