"""The import root of Analytics Zoo, on Orca: scripts written for ``zoo.orca`` run as they are.

See docs/migrating.md for what differs.
"""

from typing import NoReturn

from orca.roots.modules import add_root

add_root(__name__)

_NOT_YET = {
    "ZooContext",
    "getOrCreateSparkContext",
    "init_nncontext",
    "init_spark_conf",
    "init_spark_on_k8s",
    "init_spark_on_local",
    "init_spark_on_yarn",
    "init_spark_standalone",
    "stop_spark_standalone",
}


def __getattr__(name: str) -> NoReturn:
    if name in _NOT_YET:
        raise ImportError(f"zoo.{name} is not in this release", name=f"zoo.{name}")
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")
