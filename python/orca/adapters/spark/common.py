"""What ``bigdl.dllib.utils.common`` and ``bigdl.util.common`` hold, for star imports, too."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from pyspark import RDD, SparkConf, SparkContext
from pyspark.sql import DataFrame, SQLContext

from orca.adapters import spark
from orca.adapters.spark.plan import SparkPlan, cores_of
from orca.context import active_context
from orca.roots.log4error import invalidInputError, invalidOperationError
from orca.roots.samples import JTensor, Sample

__all__ = [
    "RDD",
    "DataFrame",
    "JTensor",
    "SQLContext",
    "Sample",
    "SparkConf",
    "SparkContext",
    "create_spark_conf",
    "create_tmp_path",
    "get_dtype",
    "get_node_and_core_number",
    "get_spark_context",
    "init_engine",
    "invalidInputError",
    "invalidOperationError",
    "to_list",
]


def get_spark_context(conf: Any = None) -> SparkContext:
    """The SparkContext that is there, or a new one with ``conf`` on this machine."""
    if spark.is_planned():
        return spark.start()
    return spark.start(SparkPlan.read("local[*]", None, {"conf": conf}))


def get_node_and_core_number(bigdl_type: str = "float") -> tuple[int, int]:
    """How many machines and how many cores of each the program uses."""
    context = active_context()
    if context is not None:
        return context.nodes, int(context.native.cores)
    found = spark.start()
    return 1, cores_of(found.master) or int(found.defaultParallelism)


def init_engine(bigdl_type: str = "float") -> None:
    """Accepted: Orca's engine is ready when the context is."""


def create_spark_conf() -> SparkConf:
    """A SparkConf with what Orca sets."""
    conf = SparkConf()
    for name, value in SparkPlan("local[*]").settings().items():
        if name not in ("spark.master", "spark.app.name"):
            conf.set(name, value)
    return conf


def create_tmp_path() -> str:
    """A path that is not there yet, in a new folder that no other user can change."""
    return str(Path(tempfile.mkdtemp()) / "tmp")


def get_dtype(bigdl_type: str) -> str:
    """The name of numpy's type for ``"float"`` or ``"double"``."""
    return np.dtype(np.float32 if bigdl_type == "float" else np.float64).name


def to_list(a: Any) -> list[Any]:
    """``a`` itself when it is a list, else a list of it.

    Example:
        >>> to_list(1)
        [1]
    """
    return a if isinstance(a, list) else [a]
