"""The context with the arguments, defaults and errors of BigDL 2.x."""

from __future__ import annotations

from typing import Any

from orca.generations import BIGDL
from orca.roots import context, safe_pickle

__all__ = ["OrcaContext", "SafePickle", "init_orca_context", "stop_orca_context"]


class OrcaContext(context.ContextFacade):
    """The context of this program; settings are properties of the class."""

    generation = BIGDL


class SafePickle(safe_pickle.SafePickle):
    """Pickles with a digest."""

    generation = BIGDL


def init_orca_context(
    cluster_mode: str | None = None,
    runtime: str = "spark",
    cores: int | str | None = None,
    memory: str = context.DEFAULT_MEMORY,
    num_nodes: int = 1,
    init_ray_on_spark: bool = False,
    init_executor_gateway: bool = True,
    **kwargs: Any,
) -> context.ContextFacade:
    """Starts the processes of the program, or gives the context that is there.

    Args:
        cluster_mode: ``"local"`` in any case, or None, which is the same with 2 cores.
        runtime: ``"spark"``.
        cores: How many cores to use; ``"*"``: all.
        memory: How much memory shards may take, and Spark's driver, e.g. ``"10g"``; without it
            what the cgroup allows, and 2g for Spark.
        num_nodes: 1.
        init_ray_on_spark: Accepted; Orca's workers need no Ray.
        init_executor_gateway: Accepted.
        **kwargs: For Spark: ``conf``, ``driver_memory``, ``extra_python_lib``, ``jars``,
            ``python_location``, ``redirect_spark_log``, ``spark_log_level``. What the original handed
            on to clusters and Ray is accepted.

    Returns:
        The context. It stands for the SparkContext, too: the first use as one starts Spark.

    Raises:
        RuntimeError: An argument cannot work, or not in this release.

    Example:
        >>> from bigdl.orca import init_orca_context, stop_orca_context
        >>> context = init_orca_context("local", cores=1)
        Initializing orca context
        >>> stop_orca_context()
        Stopping orca context
    """
    others = {**kwargs, "runtime": runtime, "init_ray_on_spark": init_ray_on_spark}
    others["init_executor_gateway"] = init_executor_gateway
    return context.start(OrcaContext, cluster_mode, cores, memory, num_nodes, others)


def stop_orca_context() -> None:
    """Ends every process of the context. Without a context it does nothing."""
    context.stop()
