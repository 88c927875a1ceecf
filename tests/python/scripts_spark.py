"""What a program does with Spark, each in a process of its own: what is imported when is what matters.

python scripts_spark.py NAME [ARGUMENT...]
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
import time
import warnings
from typing import Any

import pytest

import orca
from processes import command, descendants


def jvms() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if "java" in command(pid)]


def of(root: str) -> Any:
    return importlib.import_module(f"{root}.orca")


def check_no_spark_yet(sc: Any) -> None:
    assert "pyspark" not in sys.modules
    assert "Spark starts when it is used" in repr(sc)
    assert not hasattr(sc, "_repr_html_")
    assert not hasattr(sc, "__array__")
    assert orca.run(orca.world_size, workers=2) == [2, 2]
    assert sc.cores() == 2
    assert not jvms()
    assert "pyspark" not in sys.modules


def first_call(root: str) -> None:
    """``col`` is the first use of Spark."""
    package = of(root)
    conf = {"spark.sql.shuffle.partitions": 3, "spark.x": True}
    sc = package.init_orca_context(
        "local", cores=2, memory="1g", conf=conf, extra_python_lib=__file__
    )
    check_no_spark_yet(sc)

    from pyspark.sql.functions import col

    assert str(col("x")) == "Column<'x'>"
    assert len(jvms()) == 1

    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

    assert isinstance(sc, SparkContext)
    assert isinstance(sc, package.OrcaContext)
    real = SparkContext.getOrCreate()
    assert sc == real == sc
    assert package.OrcaContext.get_spark_context() is real
    assert sc.master == "local[2]"
    assert sc.pythonExec == sys.executable
    wanted = {
        "spark.sql.shuffle.partitions": "3",
        "spark.x": "true",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.shuffle.reduceLocality.enabled": "false",
    }
    assert {name: sc.getConf().get(name) for name in wanted} == wanted
    assert real._jvm.java.lang.Runtime.getRuntime().maxMemory() <= 1 << 30
    check_constructors(package, sc, real, RDD, SparkSession)
    assert sc.parallelize([1], 1).map(lambda _: sys.executable).collect() == [sys.executable]
    assert "scripts_spark" in sc.parallelize([1], 1).map(_names_of_added).collect()[0]
    check_it_can_be_sent(sc)
    package.stop_orca_context()
    check_it_is_stopped(sc, SparkContext, SparkSession)


def _names_of_added(_: int) -> list[str]:
    from pyspark import SparkFiles

    return [entry.removesuffix(".py") for entry in os.listdir(SparkFiles.getRootDirectory())]  # noqa: PTH208


def check_constructors(package: Any, sc: Any, real: Any, rdd: Any, session: Any) -> None:
    """Pyspark takes the stand-in where it wants a SparkContext."""
    spark = session(sc)
    assert spark.createDataFrame([(1, "a")], ["n", "t"]).collect()[0].t == "a"
    assert session.builder.getOrCreate().sparkContext == sc
    assert package.OrcaContext.get_spark_session().range(3).count() == 3
    assert package.OrcaContext.get_sql_context().range(2).count() == 2
    made = sc.parallelize(range(10), 2)
    again = rdd(made._jrdd, sc, made._jrdd_deserializer)
    assert again.map(lambda x: x + 1).sum() == 55
    assert made.context == sc
    assert sc._jvm.org.apache.spark.api.java.JavaSparkContext.toSparkContext(sc._jsc) is not None
    assert sc.broadcast([1]).value == [1]
    sc.anything = 5
    assert real.anything == 5
    assert "parallelize" in dir(sc)


def check_it_can_be_sent(sc: Any) -> None:
    again = pickle.loads(pickle.dumps(sc))
    assert type(again) is type(sc)
    assert orca.run(_has_no_spark, (sc,), workers=1) == ["No active SparkContext"]


def _has_no_spark(sc: Any) -> str:
    try:
        return str(sc.master)
    except Exception as error:
        return str(error).partition(".")[0]


def check_it_is_stopped(sc: Any, context: Any, session: Any) -> None:
    assert context._active_spark_context is None
    assert sc._jsc is None
    assert "stopped" in repr(sc)
    own = session.builder.master("local[1]").getOrCreate()
    assert own.sparkContext.getConf().get("spark.x") is None
    own.stop()


def attribute(root: str) -> None:
    """An attribute of what init returned is the first use."""
    package = of(root)
    with package.init_orca_context("local", cores=2) as sc:
        check_no_spark_yet(sc)
        assert sc.parallelize([1, 2, 3]).sum() == 6
        from pyspark import SparkContext

        assert SparkContext._active_spark_context is not None
    assert SparkContext._active_spark_context is None
    sc = package.init_orca_context("local", cores=1)
    assert isinstance(sc, SparkContext)
    assert SparkContext.getOrCreate().master == "local[1]"
    sc.stop()
    assert SparkContext._active_spark_context is None
    assert package.init_orca_context("local", cores=2).master == "local[2]"
    SparkContext.getOrCreate().stop()  # Not through us.
    assert package.init_orca_context("local", cores=1).master == "local[1]"
    assert package.OrcaContext.cores() == 1
    (jvm,) = jvms()
    os.kill(jvm, signal.SIGKILL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, on a JVM that is gone.
        package.stop_orca_context()
    assert package.init_orca_context("local", cores=1).parallelize([1, 2]).count() == 2


def of_the_user() -> None:
    """A SparkContext that is there before is used."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    build = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false")
    for root in ("bigdl", "zoo"):
        own = build.getOrCreate().sparkContext
        sc = of(root).init_orca_context("local")
        assert SparkContext.getOrCreate() is own
        assert of(root).OrcaContext.get_spark_context() is own
        assert (sc.master, sc.cores()) == ("local[3]", 3)
        of(root).stop_orca_context()
        assert own._jsc is None  # As the originals did.
    own = build.getOrCreate().sparkContext
    orca.init_orca_context("local", cores=1)
    assert orca.OrcaContext.get_spark_context() is own
    orca.stop_orca_context()
    assert own._jsc is not None
    own.stop()
    orca.init_orca_context("local", cores=1)
    assert (
        SparkContext._active_spark_context is None
    )  # Here pyspark is not asked for by its import.
    session = orca.OrcaContext.get_spark_session()
    assert session.sparkContext.master == "local[1]"
    orca.stop_orca_context()
    assert SparkContext._active_spark_context is None


def many(count: str) -> None:
    """One context after the other."""
    import pyspark  # noqa: F401

    seen = []
    for i in range(int(count)):
        package = of(("bigdl", "zoo")[i % 2])
        begin = time.monotonic()
        sc = package.init_orca_context("local", cores=1 + i % 2, conf={f"spark.x.{i}": i})
        assert sc.master == f"local[{1 + i % 2}]"
        assert sc.getConf().get(f"spark.x.{i}") == str(i)
        assert sc.getConf().get(f"spark.x.{i - 1}") is None
        if i % 5 == 0:
            assert sc.parallelize([1, 2], 1).sum() == 3
        package.stop_orca_context()
        took = time.monotonic() - begin
        seen.append((len(sys.path), len(os.listdir("/proc/self/fd")), len(jvms())))  # noqa: PTH208
        print(i, f"{took:.1f} s", seen[-1])
    assert seen[-1][0] == seen[0][0]
    assert seen[-1][1] <= seen[1][1] + 3
    assert seen[-1][2] == 1


def loud() -> None:
    """Another log means another JVM."""
    bigdl = of("bigdl")
    sc = bigdl.init_orca_context("local", cores=1)
    assert sc.parallelize([1], 1).count() == 1
    (first,) = jvms()
    bigdl.stop_orca_context()
    print("now it may speak", file=sys.stderr, flush=True)
    bigdl.OrcaContext.log_output = True
    given = {"spark_log_level": "info", "redirect_spark_log": False}
    sc = bigdl.init_orca_context("local", cores=1, **given)
    assert sc.parallelize([1], 1).count() == 1
    (second,) = jvms()
    assert first != second


STAR = """np os sys tempfile SparkContext SparkConf SQLContext DataFrame RDD create_tmp_path
get_spark_context get_node_and_core_number invalidInputError JTensor Sample init_nncontext init_spark_on_local
init_spark_on_yarn init_spark_on_yarn_cluster init_spark_standalone init_spark_on_k8s
init_spark_on_k8s_cluster stop_spark_standalone init_spark_conf getOrCreateSparkContext OrcaContext ZooContext"""


def starred(module: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(f"from {module} import *", names)
    assert not set(STAR.split()) - set(names)
    return names


def head_of_seed_002() -> None:
    """What star imports bring, and Spark from the first line on."""
    names = starred("zoo.common.nncontext")
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import SparkSession

    sc = names["init_spark_on_local"](cores=1)
    assert type(sc) is names["SparkContext"]
    assert sc.master == "local[1]"
    assert names["get_node_and_core_number"]() == (1, 1)
    assert orca.run(orca.world_size, workers=1) == [1]
    spark = SparkSession.builder.getOrCreate()
    assert spark.sparkContext is sc
    df = spark.createDataFrame([(Vectors.dense([2.0, 1.0]), 1.0)], ["features", "label"])
    assert isinstance(df, names["DataFrame"])
    assert df.collect()[0].label == 1.0
    assert names["get_spark_context"]() is sc
    sc.stop()
    names = starred("bigdl.dllib.nncontext")
    conf = names["init_spark_conf"]({"spark.y": 4}).setMaster("local[2]").setAppName("mine")
    sc = names["init_nncontext"](conf)
    assert (sc.master, sc.appName, sc.getConf().get("spark.y")) == ("local[2]", "mine", "4")
    assert names["get_node_and_core_number"]() == (1, 2)
    assert names["init_nncontext"]() is sc
    assert names["getOrCreateSparkContext"]() is sc
    orca.stop_orca_context()
    import zoo

    assert zoo.init_nncontext("by name").appName == "by name"


def left_to_itself(how: str) -> None:
    """Ends in a hard way; says before which JVM it had."""
    sc = of("zoo").init_orca_context("local", cores=1)
    assert sc.parallelize([1], 1).count() == 1
    print("jvm", *jvms(), flush=True)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise KeyError(how)


def missing() -> None:
    """No Java: the import of pyspark goes well, its use does not."""
    for root, kind in (("bigdl", RuntimeError), ("zoo", Exception)):
        sc = of(root).init_orca_context("local", cores=1)
        import pyspark  # noqa: F401

        with pytest.raises(Exception, match="Spark needs Java") as caught:
            sc.parallelize([1])
        assert type(caught.value) is kind
        print(caught.value)
        of(root).stop_orca_context()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
