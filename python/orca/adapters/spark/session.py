"""SparkContexts of ours: started by a plan, and stopped."""

from __future__ import annotations

import logging
import sys
import warnings
import weakref
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.sql import SparkSession, SQLContext

from orca.adapters.spark import jvm
from orca.adapters.spark.plan import SparkPlan
from orca.errors import FailedPreconditionError

__all__ = ["is_ours", "spark_session", "sql_context", "start", "stop"]

_log = logging.getLogger("orca")
_started: weakref.WeakSet[SparkContext] = weakref.WeakSet()


def start(plan: SparkPlan) -> SparkContext:
    """A new SparkContext of this process; there must be none."""
    jvm.ready(plan)
    with warnings.catch_warnings():
        # The first call of the JVM imports pyspark's tests, which have an opinion on pandas.
        warnings.simplefilter("ignore", FutureWarning)
        conf = SparkConf()
    for name, value in plan.settings().items():
        conf.set(name, value)
    try:
        with jvm.own_environment(plan):
            context = SparkContext(conf=conf)
    except Exception as error:
        raise FailedPreconditionError(
            f"Spark did not start with master {plan.master}: {_first_line(error)}"
        ) from error
    _started.add(context)
    context.setLogLevel(plan.log_level)
    for file in plan.python_files:
        context.addPyFile(file)
    _log.info("Spark %s, %s", context.version, plan.master)
    return context


def stop(context: SparkContext) -> None:
    """Stops it and the session on it; of a JVM that has died, forgets them."""
    try:
        files = SparkFiles.getRootDirectory()
        _stop(context)
        sys.path[:] = [folder for folder in sys.path if folder != files]
    except (Py4JError, OSError):
        _log.warning("Spark's JVM has died; another one is started when Spark is next used")
        jvm.abandon()


def _stop(context: SparkContext) -> None:
    session = SparkSession._instantiatedSession
    if session is not None and session._sc is not None and session._sc._jsc is context._jsc:
        session._sc = context  # A stand-in would stop everything else as well.
        session.stop()
    context.stop()


def is_ours(context: Any) -> bool:
    """Whether ``start`` has made it."""
    return context in _started


def spark_session(context: SparkContext) -> SparkSession:
    """The session of a context."""
    return SparkSession.builder.getOrCreate()


def sql_context(context: SparkContext) -> SQLContext:
    """What Spark 1 had in the place of a session."""
    found = SQLContext._instantiatedContext
    if found is not None and found._sc._jsc is context._jsc:
        return found
    return SQLContext(context, spark_session(context))


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java.toString() if java is not None else error)
    return text.splitlines()[0] if text else type(error).__name__
