"""The context with the arguments, defaults and errors of Analytics Zoo."""

from __future__ import annotations

from typing import Any

from orca.generations import ZOO
from orca.roots import context, safe_pickle

__all__ = ["OrcaContext", "SafePickle", "init_orca_context", "stop_orca_context"]


class OrcaContext(context.ContextFacade):
    """The context of this program; settings are properties of the class."""

    generation = ZOO


class SafePickle(safe_pickle.SafePickle):
    """Pickles with a digest."""

    generation = ZOO


def init_orca_context(
    cluster_mode: str | None = "local",
    cores: int | str | None = 2,
    memory: str = context.DEFAULT_MEMORY,
    num_nodes: int = 1,
    init_ray_on_spark: bool = False,
    **kwargs: Any,
) -> context.ContextFacade:
    """Starts the processes of the program, or gives the context that is there.

    Args:
        cluster_mode: ``"local"`` in any case.
        cores: How many cores to use; ``"*"``: all.
        memory: How much memory shards may take, and Spark's driver, e.g. ``"10g"``; without it
            what the cgroup allows, and 2g for Spark.
        num_nodes: 1.
        init_ray_on_spark: Accepted; Orca's workers need no Ray.
        **kwargs: For Spark: ``conf``, ``driver_memory``, ``extra_python_lib``, ``jars``,
            ``python_location``, ``redirect_spark_log``, ``spark_log_level``. What the original handed
            on to clusters and Ray is accepted.

    Returns:
        The context. It stands for the SparkContext, too: the first use as one starts Spark.

    Raises:
        ValueError: An argument cannot work, or not in this release.
        AssertionError: ``num_nodes`` is not 1.

    Example:
        >>> from zoo.orca import init_orca_context, stop_orca_context
        >>> context = init_orca_context("local", cores=1)
        Initializing orca context
        >>> stop_orca_context()
        Stopping orca context
    """
    others = {**kwargs, "init_ray_on_spark": init_ray_on_spark}
    return context.start(OrcaContext, cluster_mode, cores, memory, num_nodes, others)


def stop_orca_context() -> None:
    """Ends every process of the context. Without a context it does nothing."""
    context.stop()
