"""The JVM that Spark runs in: one for the whole program, as pyspark has it."""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from orca.adapters.spark import NoJavaError
from orca.adapters.spark.plan import SparkPlan
from orca.errors import FailedPreconditionError

__all__ = ["abandon", "end", "own_environment", "ready"]

# What a JVM must know when it begins; everything else a SparkContext can bring.
_AT_LAUNCH = (
    "spark.archives",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraLibraryPath",
    "spark.driver.memory",
    "spark.files",
    "spark.jars",
    "spark.jars.excludes",
    "spark.jars.ivy",
    "spark.jars.ivySettings",
    "spark.jars.packages",
    "spark.jars.repositories",
)
_NOISE = ("WARNING: Using incubator modules",)
_REMEDY = "apt install openjdk-17-jre-headless, or set JAVA_HOME to a Java 17 or newer"
_PATIENCE = 10.0  # seconds for a JVM to end


@dataclass
class _Jvm:
    gateway: Any
    options: dict[str, str]
    reader: threading.Thread
    process: int


_ours: _Jvm | None = None


def ready(plan: SparkPlan) -> None:
    """Launches the JVM, unless one is there that will do."""
    options = _options(plan)
    if _ours is not None and (_ours.options != options or _has_ended(_ours.gateway)):
        end()
    if _has_ended(SparkContext._gateway):
        SparkContext._gateway = SparkContext._jvm = None
    if SparkContext._gateway is None:
        _launch(options, plan)


def abandon() -> None:
    """Forgets a JVM that has died, and all that pyspark had in it."""
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    end()
    SparkContext._gateway = SparkContext._jvm = None


def end() -> None:
    """Ends the JVM that we launched, with the SparkContext in it."""
    global _ours
    if _ours is None:
        return
    jvm, _ours = _ours, None
    if jvm.process != os.getpid():  # A fork of the program: the JVM is the parent's.
        return
    if SparkContext._gateway is jvm.gateway:
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()
        SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(Exception):
        jvm.gateway.shutdown()
    process = jvm.gateway.proc
    process.stdin.close()  # It ends when this does.
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    jvm.reader.join(1)


def _has_ended(gateway: Any) -> bool:
    process = getattr(gateway, "proc", None)  # None: it is our parent's.
    return process is not None and process.poll() is not None


def _options(plan: SparkPlan) -> dict[str, str]:
    """Of the command that launches it."""
    settings = plan.settings()
    options = {name: settings[name] for name in _AT_LAUNCH if name in settings}
    screen = "error" if plan.redirects_log else "all"
    ours = (
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
        f"-Dorca.spark.screen={screen}",
        f"-Dorca.spark.level={plan.log_level.lower()}",
    )
    java = options.get("spark.driver.extraJavaOptions", "")
    if "log4j" not in java:
        java = " ".join([*ours, java]).strip()
    # Of no meaning to Spark; a JVM without it is another one.
    output = {"orca.output": "shown"} if plan.shows_output else {}
    return {**options, **output, "spark.driver.extraJavaOptions": java}


def _launch(options: dict[str, str], plan: SparkPlan) -> None:
    global _ours
    _check_java()
    conf = SparkConf(loadDefaults=False)
    for name, value in options.items():
        if name.startswith("spark."):
            conf.set(name, value)
    write_end, said = _Said.open()
    streams: dict[str, Any] = {"stderr": write_end}
    if plan.shows_output:
        streams["stdout"] = write_end
    try:
        with own_environment(plan):
            gateway = launch_gateway(conf, streams)
    except Exception as error:
        os.close(write_end)
        said.thread.join(2)
        raise FailedPreconditionError(
            f"Spark's JVM ended before it was ready: {said.last()}; if that is about the version of "
            f"Java: {_REMEDY}"
        ) from error
    os.close(write_end)
    if gateway.proc is None:  # Launched by spark-submit, which is our parent.
        SparkContext._ensure_initialized(gateway=gateway)
        return
    _ours = _Jvm(gateway, options, said.thread, os.getpid())
    atexit.unregister(end)
    atexit.register(end)
    SparkContext._ensure_initialized(gateway=gateway)


def _check_java() -> None:
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    home = os.environ.get("JAVA_HOME")
    if home and not (Path(home) / "bin/java").exists():
        raise NoJavaError(f"Spark needs Java, and JAVA_HOME={home} has no bin/java: {_REMEDY}")
    if not home and shutil.which("java") is None:
        raise NoJavaError(f"Spark needs Java, and there is no java on the PATH: {_REMEDY}")


@contextlib.contextmanager
def own_environment(plan: SparkPlan) -> Iterator[None]:
    """What a JVM and a SparkContext read of the environment while they begin."""
    python = plan.python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    wanted = {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable,
    }
    # Its Python processes find Orca where this one did.
    folders = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[3])]
    wanted["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    if plan.master.startswith("local"):
        wanted["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Said:
    """What the JVM writes, on its way to the program's own output."""

    def __init__(self, source: IO[str]) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=20)
        self._source = source
        self.thread = threading.Thread(target=self._read, name="orca-spark-output", daemon=True)
        self.thread.start()

    @staticmethod
    def open() -> tuple[int, _Said]:
        """A descriptor to write to, and what reads from it."""
        read_end, write_end = os.pipe()
        return write_end, _Said(os.fdopen(read_end, errors="replace"))

    def last(self) -> str:
        """What was said last, in one line."""
        return " / ".join(line.strip() for line in self._lines if line.strip()) or "it said nothing"

    def _read(self) -> None:
        with self._source:
            for line in self._source:
                if line.startswith(_NOISE):
                    continue
                self._lines.append(line)
                with contextlib.suppress(Exception):  # A program may have closed its own.
                    sys.stderr.write(line)
                    sys.stderr.flush()
