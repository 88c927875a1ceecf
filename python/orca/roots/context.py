"""``init_orca_context`` and its kin, for the roots that keep the originals' arguments."""

from __future__ import annotations

import atexit
import functools
import logging
import sys
from typing import Any

from orca import context as engine
from orca.adapters import spark
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.generations import ORCA, Cores, Generation, once_raised_as
from orca.roots.settings import Settings

__all__ = ["DEFAULT_MEMORY", "ContextFacade", "begin", "start", "stop"]

_log = logging.getLogger("orca")

_CLUSTER_MODES = (
    "local",
    "yarn",
    "yarn-client",
    "yarn-cluster",
    "k8s",
    "k8s-client",
    "k8s-cluster",
    "standalone",
    "spark-submit",
    "bigdl-submit",
)
_RUNTIMES = ("spark", "ray")
_FOR_SPARK = frozenset(
    [
        "conf",
        "driver_memory",
        "extra_python_lib",
        "jars",
        "python_location",
        "redirect_spark_log",
        "spark_log_level",
    ]
)
# What the originals handed on to clusters and Ray. Nothing here starts either.
_FOR_CLUSTERS_AND_RAY = frozenset(
    [
        "additional_archive",
        "container_image",
        "driver_cores",
        "enable_numa_binding",
        "extra_executor_memory_for_ray",
        "hadoop_conf",
        "hadoop_user_name",
        "master",
        "penv_archive",
        "spark_yarn_archive",
        "address",
        "env",
        "extra_params",
        "include_webui",
        "num_ray_nodes",
        "object_store_memory",
        "password",
        "ray_node_cpu_cores",
        "redis_password",
        "redis_port",
        "system_config",
        "verbose",
        "init_executor_gateway",
        "init_ray_on_spark",
    ]
)


class _NotGiven(str):
    """A default that reads as the originals' and can be told from what a user gives."""


DEFAULT_MEMORY = _NotGiven("2g")


class ContextFacade(engine.OrcaContext, metaclass=Settings):
    """The base of a root's ``OrcaContext``: the context of this program, and settings of the class.

    What ``init_orca_context`` returns, too. The originals returned a SparkContext, so an object of this
    class stands for one: it has its attributes, and the first use of one starts Spark.
    """

    generation = ORCA

    @classmethod
    def get_spark_context(cls) -> Any:
        """The SparkContext; starts Spark."""
        with cls.generation.errors(zoo=Exception):
            return super().get_spark_context()

    @classmethod
    def get_sql_context(cls) -> Any:
        """The SQLContext; starts Spark."""
        with cls.generation.errors(zoo=Exception):
            return super().get_sql_context()

    @classmethod
    def get_spark_session(cls) -> Any:
        """The SparkSession; starts Spark."""
        with cls.generation.errors(zoo=Exception):
            return super().get_spark_session()

    @classmethod
    def get_ray_context(cls) -> Any:
        """Ray is not in this release."""
        raise cls.generation.translate(
            FailedPreconditionError(
                "there is no Ray context: Ray is not in this release, and Orca's workers need none"
            ),
            zoo=Exception,
        )

    # --- a stand-in for the SparkContext

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Spark's, so that ``isinstance(sc, SparkContext)`` holds; our own is found before."""
        return getattr(sys.modules.get("pyspark"), "SparkContext", type(self))

    def stop(self) -> None:
        """Ends the context, Spark with it."""
        stop()

    def __getattr__(self, name: str) -> Any:
        # Notebooks and libraries ask all objects for names like these; that is no use of Spark.
        if name.startswith(("__", "_repr_", "_ipython_")) and spark.active() is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name == "_jsc" and engine.active_context() is None and spark.active() is None:
            return None  # As a SparkContext that has been stopped; pyspark asks for this.
        return getattr(self.get_spark_context(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.get_spark_context(), name, value)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(spark.active())})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) or (other is not None and other is spark.active())

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        found = spark.active()
        if found is not None:
            return repr(found)
        if engine.active_context() is None:
            return "<Orca context, stopped>"
        return f"<Orca context cores={self.cores()}, Spark starts when it is used>"

    def __reduce__(self) -> Any:
        return type(self), ()


def start(
    facade: type[ContextFacade],
    cluster_mode: str | None,
    cores: int | str | None,
    memory: str | None,
    num_nodes: int,
    others: dict[str, Any],
) -> ContextFacade:
    """Starts a context, or gives the one that is there.

    Args:
        facade: The root's ``OrcaContext``.
        cluster_mode: As the user gave it.
        cores: As the user gave it.
        memory: As the user gave it, or ``DEFAULT_MEMORY``.
        num_nodes: As the user gave it.
        others: All other arguments.

    Returns:
        The context.
    """
    print("Initializing orca context")
    begin(facade, cluster_mode, cores, memory, num_nodes, others)
    # The engine stops in any case; this says so, as the originals did.
    atexit.unregister(stop)
    atexit.register(stop)
    return facade()


def begin(
    facade: type[ContextFacade],
    cluster_mode: str | None,
    cores: int | str | None,
    memory: str | None,
    num_nodes: int,
    others: dict[str, Any],
    *,
    app_name: str = "orca",
) -> None:
    """As ``start``, without a word."""
    generation = facade.generation
    with generation.errors():
        _check_runtime(others.pop("runtime", "spark"), cluster_mode)
        _check_cluster_mode(cluster_mode)
        _check_nodes(generation, num_nodes)
        _note_unused(others)
        if engine.active_context() is not None and spark.was_stopped():
            engine.stop_orca_context()  # Who stopped the SparkContext has stopped the context.
        if engine.active_context() is not None:
            _note_reuse(cores)
            return
        wanted = _choose_cores(generation, cluster_mode, cores)
        if (found := spark.active()) is not None:
            wanted = spark.cores_of(found.master) or wanted
            if cluster_mode is not None and not found.master.startswith("local"):
                _log.warning(
                    "there is a SparkContext already, with master %s, which is used; Orca's workers "
                    "run on this machine",
                    found.master,
                )
        given = None if isinstance(memory, _NotGiven) else memory
        # What cannot work is said before anything is started.
        plan = functools.partial(
            spark.SparkPlan.read,
            memory=memory,
            given=others,
            app_name=app_name,
            shows_output=facade.log_output,
            stops_others=True,
        )
        plan("local")
        engine.init_orca_context("local", cores=wanted, memory=given)
        try:
            spark.prepare(plan(f"local[{engine.OrcaContext.cores()}]"))
        except BaseException:
            engine.stop_orca_context()
            raise


def stop() -> None:
    """Ends every process of the context. Without a context it does nothing."""
    if engine.active_context() is not None:
        print("Stopping orca context")
        engine.stop_orca_context()


def _check_runtime(runtime: Any, cluster_mode: str | None) -> None:
    name = str(runtime).lower()
    if name not in _RUNTIMES:
        raise InvalidArgumentError(f"runtime can only be spark or ray, but got: {runtime}")
    if name == "ray" and cluster_mode is not None:
        raise InvalidArgumentError(
            f'cluster_mode must be None with runtime="ray", but got: {cluster_mode}'
        )
    if name == "ray":
        raise FailedPreconditionError('runtime="ray" is not in this release; leave it out')


def _check_cluster_mode(cluster_mode: Any) -> None:
    mode = "local" if cluster_mode is None else str(cluster_mode).lower()
    if mode == "local":
        return
    if mode in _CLUSTER_MODES or mode.startswith(("yarn", "k8s")):
        raise once_raised_as(
            FailedPreconditionError(
                f'cluster_mode="{mode}" is not in this release; give "local", or start agents and '
                'use orca.init_orca_context("join")'
            ),
            ValueError,
        )
    raise InvalidArgumentError(
        f"cluster_mode can only be {', '.join(_CLUSTER_MODES)}, but got: {cluster_mode}"
    )


def _check_nodes(generation: Generation, num_nodes: int) -> None:
    if num_nodes == 1:
        return
    if generation.refuses_local_nodes:
        raise once_raised_as(
            InvalidArgumentError(
                f"For Spark local mode, num_nodes should be 1, but got: {num_nodes}"
            ),
            AssertionError,
        )
    _log.warning("num_nodes=%s is ignored: local mode has one node", num_nodes)


def _choose_cores(
    generation: Generation, cluster_mode: str | None, cores: int | str | None
) -> int | str | None:
    if isinstance(cores, str) and cores.strip().isdigit():
        return int(cores)
    if cores is not None or generation.cores is Cores.ALL:
        return cores
    if generation.cores is Cores.TWO:
        return 2
    if cluster_mode is not None:
        return "*"
    _log.warning(
        'cores is not given, so 2 are used; give cores, or cluster_mode="local" for all of them'
    )
    return 2


def _note_unused(others: dict[str, Any]) -> None:
    unused = sorted(others.keys() & _FOR_CLUSTERS_AND_RAY)
    if unused:
        _log.debug("for clusters and Ray, which are not started: %s", ", ".join(unused))
    known = _FOR_SPARK | _FOR_CLUSTERS_AND_RAY
    unknown = sorted(others.keys() - known)
    if unknown:
        _log.warning(
            "init_orca_context ignores %s; it knows cluster_mode, runtime, cores, memory, "
            "num_nodes, and %s",
            ", ".join(unknown),
            ", ".join(sorted(known)),
        )


def _note_reuse(cores: int | str | None) -> None:
    has = engine.OrcaContext.cores()
    if cores not in (None, "*", has, str(has)):
        _log.warning(
            "there is a context already, with %d cores; cores=%s is ignored. Call "
            "stop_orca_context() first",
            has,
            cores,
        )
