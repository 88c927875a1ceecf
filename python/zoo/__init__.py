"""The import root of Analytics Zoo, on Orca: scripts written for ``zoo.orca`` run as they are.

See docs/migrating.md for what differs.
"""

import importlib
from typing import Any

from orca.roots.modules import add_root

add_root(__name__)

_OF_NNCONTEXT = (
    "ZooContext",
    "getOrCreateSparkContext",
    "init_nncontext",
    "init_spark_conf",
    "init_spark_on_k8s",
    "init_spark_on_local",
    "init_spark_on_yarn",
    "init_spark_standalone",
    "stop_spark_standalone",
)


def __getattr__(name: str) -> Any:
    """Imports pyspark only for the names that need it."""
    if name not in _OF_NNCONTEXT:
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")
    return getattr(importlib.import_module("zoo.common.nncontext"), name)
