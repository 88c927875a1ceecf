"""What ``bigdl.dllib.nncontext`` and ``zoo.common.nncontext`` hold, for star imports, too."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from pyspark import RDD, SparkConf, SparkContext
from pyspark.sql import DataFrame, SQLContext

from orca.adapters import spark
from orca.adapters.spark.common import create_tmp_path, get_node_and_core_number, get_spark_context
from orca.adapters.spark.plan import SparkPlan, cores_of
from orca.errors import FailedPreconditionError
from orca.roots import context
from orca.roots.log4error import invalidInputError
from orca.roots.samples import JTensor, Sample

__all__ = [
    "RDD",
    "DataFrame",
    "JTensor",
    "SQLContext",
    "Sample",
    "SparkConf",
    "SparkContext",
    "create_tmp_path",
    "get_node_and_core_number",
    "get_spark_context",
    "init_spark_conf",
    "invalidInputError",
    "np",
    "os",
    "stop_spark_standalone",
    "sys",
    "tempfile",
]

STARTERS = (
    "getOrCreateSparkContext",
    "init_nncontext",
    "init_spark_on_k8s",
    "init_spark_on_k8s_cluster",
    "init_spark_on_local",
    "init_spark_on_yarn",
    "init_spark_on_yarn_cluster",
    "init_spark_standalone",
)
"""What differs between the roots; see ``bind``."""


def init_spark_conf(conf: Any = None) -> SparkConf:
    """A SparkConf with what Orca sets, and the entries of ``conf``, a dict."""
    made = SparkConf()
    settings = SparkPlan.read("local[*]", None, {"conf": conf}).settings()
    for name, value in settings.items():
        # Where a program runs is not ours to say here.
        if name in (conf or {}) or name not in ("spark.master", "spark.app.name"):
            made.set(name, value)
    return made


def stop_spark_standalone() -> None:
    """Stops a cluster that ``init_spark_standalone`` started. There is none: does nothing."""


def bind(facade: type[context.ContextFacade]) -> dict[str, Callable[..., Any]]:
    """The functions of a root that start Spark, by their names."""
    starters = _Starters(facade)
    return {name: getattr(starters, name) for name in STARTERS}


class _Starters:
    """Functions that start Spark, and Orca's workers beside it."""

    def __init__(self, facade: type[context.ContextFacade]) -> None:
        self._facade = facade

    def init_nncontext(
        self,
        conf: Any = None,
        cluster_mode: str = "spark-submit",
        spark_log_level: str = "WARN",
        redirect_spark_log: bool = True,
        **kwargs: Any,
    ) -> SparkContext:
        """Starts Spark, or gives the SparkContext that is there.

        Args:
            conf: A SparkConf, a dict, or the name of the application.
            cluster_mode: ``"spark-submit"``: as ``conf`` says, else this machine; ``"local"``: this
                machine.
            spark_log_level: The least that is logged.
            redirect_spark_log: Whether only errors of Spark are shown on the screen.
            **kwargs: As those of ``init_orca_context``.

        Returns:
            The SparkContext.
        """
        mode = str(cluster_mode).lower()
        if mode not in ("spark-submit", "bigdl-submit", "local"):
            with self._facade.generation.errors():
                self._refuse(f'init_nncontext(cluster_mode="{mode}")')
        name = conf if isinstance(conf, str) else None
        settings = {} if isinstance(conf, str) else conf
        cores = kwargs.pop("cores", None)
        master = SparkPlan.read("local[*]", None, {"conf": settings}).master
        return self._start(
            "*" if cores is None and mode == "local" else (cores or cores_of(master) or "*"),
            kwargs.pop("memory", context.DEFAULT_MEMORY),
            {
                **kwargs,
                "conf": settings,
                "spark_log_level": spark_log_level,
                "redirect_spark_log": redirect_spark_log,
            },
            app_name=name,
        )

    def init_spark_on_local(
        self,
        cores: int | str = 2,
        conf: Any = None,
        python_location: str | None = None,
        spark_log_level: str = "WARN",
        redirect_spark_log: bool = True,
    ) -> SparkContext:
        """Starts Spark on this machine, or gives the SparkContext that is there.

        Args:
            cores: How many to use; ``"*"``: all.
            conf: Spark's configuration, a dict.
            python_location: What runs Python functions; None: this interpreter.
            spark_log_level: The least that is logged.
            redirect_spark_log: Whether only errors of Spark are shown on the screen.

        Returns:
            The SparkContext.
        """
        given = {
            "conf": conf,
            "python_location": python_location,
            "spark_log_level": spark_log_level,
            "redirect_spark_log": redirect_spark_log,
        }
        return self._start(cores, context.DEFAULT_MEMORY, given)

    def getOrCreateSparkContext(  # noqa: N802
        self,
        conf: Any = None,
        appName: str | None = None,  # noqa: N803
    ) -> SparkContext:
        """The SparkContext that is there, or a new one on this machine."""
        found = spark.active()
        if found is not None:
            return found
        return self.init_nncontext(conf if appName is None or conf is not None else appName)

    def init_spark_on_yarn(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not in this release."""
        self._no_cluster("init_spark_on_yarn")

    def init_spark_on_yarn_cluster(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not in this release."""
        self._no_cluster("init_spark_on_yarn_cluster")

    def init_spark_on_k8s(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not in this release."""
        self._no_cluster("init_spark_on_k8s")

    def init_spark_on_k8s_cluster(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not in this release."""
        self._no_cluster("init_spark_on_k8s_cluster")

    def init_spark_standalone(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not in this release."""
        self._no_cluster("init_spark_standalone")

    def _no_cluster(self, name: str) -> NoReturn:
        with self._facade.generation.errors():
            self._refuse(name)
        raise AssertionError("unreachable")

    @staticmethod
    def _refuse(what: str) -> NoReturn:
        raise FailedPreconditionError(
            f"{what} is not in this release; init_spark_on_local(cores=...) starts Spark on this "
            "machine"
        )

    def _start(
        self,
        cores: int | str,
        memory: str,
        given: dict[str, Any],
        app_name: str | None = None,
    ) -> SparkContext:
        others = {name: value for name, value in given.items() if value is not None}
        context.begin(self._facade, "local", cores, memory, 1, others, app_name=app_name or "orca")
        return self._facade.get_spark_context()
