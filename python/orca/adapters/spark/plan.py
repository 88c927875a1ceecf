"""What Spark is started with."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orca.errors import InvalidArgumentError

__all__ = ["SparkPlan", "cores_of"]

_LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")
# Of the originals: shuffles without regard to place, and no job before all executors are there.
_DEFAULTS = {
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.serializer": "org.apache.spark.serializer.JavaSerializer",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@dataclass(frozen=True)
class SparkPlan:
    """What Spark is started with.

    Attributes:
        master: Where it runs, such as ``"local[2]"``.
        memory: Of the driver, as Spark writes it.
        conf: The user's own; before everything else.
        app_name: Its name.
        log_level: The least that is logged.
        redirects_log: Whether only errors are shown on the screen.
        shows_output: Whether what the JVM prints goes through ``sys.stderr``, as notebooks want.
        python: What runs Python functions; None: this interpreter.
        python_files: Files of Python for the workers.
        stops_others: Whether ``stop`` also stops a SparkContext that was there before.
    """

    master: str
    memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    app_name: str = "orca"
    log_level: str = "WARN"
    redirects_log: bool = True
    shows_output: bool = False
    python: str | None = None
    python_files: tuple[str, ...] = ()
    stops_others: bool = False

    @staticmethod
    def read(master: str, memory: str | None, given: Mapping[str, Any], **others: Any) -> SparkPlan:
        """A plan from arguments of ``init_orca_context``; what is for Ray is left out.

        Example:
            >>> SparkPlan.read("local[2]", "2g", {"conf": {"spark.x": 1}}).settings()["spark.x"]
            '1'
        """
        conf = _read_conf(given.get("conf"))
        if given.get("jars"):
            conf.setdefault("spark.jars", str(given["jars"]))
        files = given.get("extra_python_lib")
        return SparkPlan(
            master=conf.get("spark.master", master),
            memory=_spark_memory(given.get("driver_memory") or memory),
            conf=conf,
            app_name=conf.get("spark.app.name", others.pop("app_name", "orca")),
            log_level=_read_level(given.get("spark_log_level", "WARN")),
            redirects_log=bool(given.get("redirect_spark_log", True)),
            python=given.get("python_location"),
            python_files=tuple(str(files).split(",")) if files else (),
            **others,
        )

    def settings(self) -> dict[str, str]:
        """All of Spark's configuration."""
        memory = {} if self.memory is None else {"spark.driver.memory": self.memory}
        loopback = _LOOPBACK if self.master.startswith("local") else {}
        return {
            **_DEFAULTS,
            **loopback,
            **memory,
            "spark.app.name": self.app_name,
            **self.conf,
            "spark.master": self.master,
        }


def cores_of(master: str) -> int | None:
    """How many cores a local master has; None for clusters.

    Example:
        >>> cores_of("local[3]"), cores_of("local[2, 4]"), cores_of("spark://host:7077")
        (3, 2, None)
    """
    match = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?", master)
    if match is None:
        return None
    if match[1] == "*":
        return len(os.sched_getaffinity(0))
    return int(match[1] or 1)


def _read_conf(conf: Any) -> dict[str, str]:
    if conf is None:
        return {}
    if hasattr(conf, "getAll"):  # A SparkConf.
        conf = dict(conf.getAll())
    if not isinstance(conf, Mapping):
        raise InvalidArgumentError(
            f"conf {conf!r} is no configuration of Spark; give a dict such as "
            '{"spark.driver.maxResultSize": "4g"}'
        )
    return {str(key): _text(value) for key, value in conf.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_level(level: Any) -> str:
    name = str(level).upper()
    if name not in _LEVELS:
        raise InvalidArgumentError(
            f"spark_log_level {level!r} is not known; give one of {', '.join(_LEVELS)}"
        )
    return name


def _spark_memory(memory: Any) -> str | None:
    if memory is None:
        return None
    text = str(memory).strip().lower()
    if text.isdigit():
        return f"{max(1, int(text) >> 10)}k"
    return re.sub(r"\s+", "", re.sub(r"i?b$", "", text))
