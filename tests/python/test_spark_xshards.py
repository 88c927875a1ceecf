"""XShards from RDDs and DataFrames of Spark, and as those."""

from __future__ import annotations

import datetime
import decimal
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pandas as pd
import pytest

import orca
from orca import guests
from orca.data import SparkXShards, XShards
from orca.errors import InvalidArgumentError
from processes import agent_of, descriptors

pyspark = pytest.importorskip("pyspark")

from orca.adapters.spark import xshards as spark_xshards  # noqa: E402

pytestmark = pytest.mark.slow

ROOTS = ["orca", "bigdl.orca", "zoo.orca"]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One that tries a task four times."""
    from pyspark.sql import SparkSession

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        session = (
            SparkSession.builder.master("local[2,4]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "America/New_York")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")
        session.range(2).rdd.count()
        yield session
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)


@pytest.fixture(scope="module", autouse=True)
def _context(spark: Any) -> Iterator[None]:
    with orca.init_orca_context("local", cores=2):
        orca.run(int, workers=2)
        yield


@pytest.fixture(params=ROOTS)
def root(request: Any) -> Any:
    return importlib.import_module(f"{request.param}.data")


def equal(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, pd.DataFrame):
        pd.testing.assert_frame_equal(mine, theirs)
        return True
    if isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(mine, theirs)
        return mine.dtype == theirs.dtype
    if isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(equal(mine[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list | tuple):
        return (
            type(mine) is type(theirs)
            and len(mine) == len(theirs)
            and all(equal(a, b) for a, b in zip(mine, theirs, strict=True))
        )
    return bool(mine == theirs)


PARTITIONS: list[list[Any]] = [
    [{"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)}],
    [],
    [pd.DataFrame({"n": [1, 2], "s": ["grün", None]}), pd.DataFrame({"n": [], "s": []})],
    [np.zeros((0, 4), np.float32), np.array(["ß", "c"])],
    ["text", None, ("a", [1, 2.5]), {3: "d"}],
]


def rdd_of(spark: Any, partitions: list[list[Any]]) -> Any:
    made = spark.sparkContext.parallelize(range(len(partitions)), len(partitions))
    return made.flatMap(lambda i: partitions[i])


# --- from Spark


def test_an_rdd_becomes_shards_and_they_an_rdd_again(spark: Any, root: Any) -> None:
    made = root.SparkXShards(rdd_of(spark, PARTITIONS))
    assert isinstance(made, root.XShards)
    assert made.num_partitions() == 5
    assert not made.is_cached()
    flat = [shard for part in PARTITIONS for shard in part]
    assert equal(made.collect(), flat)
    assert made.is_cached()
    assert made.num_partitions() == 5
    rdd = made.rdd
    assert isinstance(rdd, pyspark.RDD)
    assert rdd.getNumPartitions() == 5
    assert rdd.count() == len(flat)
    assert equal(rdd.glom().collect(), PARTITIONS)
    assert rdd.map(lambda shard: type(shard).__name__).collect() == [type(s).__name__ for s in flat]
    assert made.rdd is rdd
    assert equal(root.SparkXShards(rdd).collect(), flat)


def test_what_is_not_used_yet_is_spark_s_own(spark: Any, root: Any) -> None:
    rdd = rdd_of(spark, PARTITIONS)
    for made in (
        root.SparkXShards(rdd),
        root.SparkXShards(rdd, transient=True),
        root.SparkXShards.lazy(rdd),
    ):
        assert made.rdd is rdd
        assert made.num_partitions() == 5
        assert not made.is_cached()
    named = root.SparkXShards(rdd, class_name="builtins.dict")
    assert named._get_class_name().endswith("dict")
    assert not named.is_cached()


def test_operations_work_on_what_came_from_spark(spark: Any) -> None:
    lazy = SparkXShards.lazy(rdd_of(spark, [[{"x": np.arange(i)}] for i in range(4)]))
    longer = lazy.transform_shard(lambda shard: {"x": np.append(shard["x"], 7)})
    assert not lazy.is_cached()
    assert not longer.is_cached()
    assert longer.num_partitions() == 4
    assert [len(shard["x"]) for shard in longer.collect()] == [1, 2, 3, 4]
    assert lazy.is_cached()
    assert longer.rdd.map(lambda shard: int(shard["x"][-1])).collect() == [7, 7, 7, 7]


def test_a_function_of_workers_gets_what_was_in_spark(spark: Any) -> None:
    made = SparkXShards(rdd_of(spark, [[np.arange(3)], [np.arange(4)]]))
    assert orca.run(lambda: int(sum(s.sum() for s in made.collect())), workers=2) == [9, 9]


def test_the_driver_gets_numbers_of_shards_alone(spark: Any, monkeypatch: Any) -> None:
    sizes = []
    unpack = guests.Basket.unpack

    def look(self: Any, packages: Any) -> Any:
        sizes.extend(map(len, packages))
        return unpack(self, packages)

    monkeypatch.setattr(guests.Basket, "unpack", look)
    made = SparkXShards(
        spark.sparkContext.parallelize([1, 2], 2).map(lambda i: np.ones((1000, 1000)))
    )
    assert len(made) == 2000
    assert len(sizes) == 2
    assert max(sizes) < 1000


def residue_of(work: Any) -> int:
    """How many descriptors the agent has more after doing it three times more than after once."""
    agent = agent_of(os.getpid())
    work()
    gc.collect()
    before = descriptors(agent)
    for _ in range(3):
        work()
        gc.collect()
    return descriptors(agent) - before


def test_a_task_that_fails_after_it_has_packed_brings_its_shards_once(
    spark: Any, monkeypatch: Any
) -> None:
    pack = spark_xshards.pack_partition

    def fail_once(*arguments: Any) -> Iterator[bytes]:
        package = list(pack(*arguments))
        if pyspark.TaskContext.get().attemptNumber() == 0:
            raise OSError("the first attempt")
        return iter(package)

    monkeypatch.setattr(spark_xshards, "pack_partition", fail_once)
    rdd = rdd_of(spark, [[np.full((64, 1024), i)] * 8 for i in range(2)])

    def pull() -> None:
        found = SparkXShards(rdd).collect()
        assert [int(shard[0, 0]) for shard in found] == [0] * 8 + [1] * 8

    assert residue_of(pull) < 16


def test_spark_s_own_error_comes_with_its_cause_and_leaves_nothing(spark: Any) -> None:
    def make(i: int) -> Iterator[Any]:
        yield from [np.ones((64, 1024))] * 8
        if i == 1:
            raise LookupError("no such shard")

    rdd = spark.sparkContext.parallelize(range(2), 2).flatMap(make)

    def pull() -> None:
        made = SparkXShards(rdd)
        with pytest.raises(Exception, match="LookupError: no such shard"):
            made.collect()
        assert not made.is_cached()

    assert residue_of(pull) < 16


@pytest.mark.parametrize("attempts", [1, 9])
def test_a_killed_python_process_of_spark_is_tried_again_or_told(spark: Any, attempts: int) -> None:
    def make(i: int) -> Iterator[Any]:
        yield from [np.full((64, 1024), i)] * 8
        if i == 1 and pyspark.TaskContext.get().attemptNumber() < attempts:
            os.kill(os.getpid(), signal.SIGKILL)

    rdd = spark.sparkContext.parallelize(range(2), 2).flatMap(make)

    def pull() -> None:
        if attempts == 1:
            assert len(SparkXShards(rdd).collect()) == 16
            return
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            SparkXShards(rdd).collect()

    assert residue_of(pull) < 16


def test_a_shard_that_cannot_be_sent_is_named(spark: Any) -> None:
    made = SparkXShards(spark.sparkContext.parallelize([1], 1).map(lambda _: {"lock": Lock()}))
    with pytest.raises(Exception, match=r"a shard\['lock'\] \(_thread.lock\) cannot be sent"):
        made.collect()


# --- to Spark


def test_shards_of_any_origin_are_an_rdd(root: Any, tmp_path: Path) -> None:
    arrays = root.XShards.partition({"x": np.arange(10), "y": (np.arange(10.0),)}, num_shards=3)
    total = arrays.rdd.map(lambda shard: int(shard["x"].sum() + shard["y"][0].sum())).sum()
    assert total == 90
    pd.DataFrame({"a": [1, 2], "b": ["x", "ÿ"]}).to_csv(tmp_path / "a.csv", index=False)
    read = importlib.import_module(f"{root.__name__}.pandas").read_csv(str(tmp_path / "a.csv"))
    (frame,) = read.rdd.collect()
    assert frame["b"].tolist() == ["x", "ÿ"]
    assert arrays["x"].rdd.first().tolist() == [0, 1, 2, 3]
    assert root.SparkXShards([]).rdd.collect() == []


def test_functions_of_spark_change_their_own_copy(spark: Any) -> None:
    made = XShards.partition(np.arange(4), num_shards=2)

    def zero(shard: Any) -> int:
        shard[:] = 0
        return int(shard.sum())

    assert made.rdd.map(zero).collect() == [0, 0]
    assert made.rdd.map(lambda shard: int(shard.sum())).collect() == [1, 5]


def test_an_rdd_outlives_the_xshards_and_the_objects_that_it_was_made_of(spark: Any) -> None:
    derived = XShards.partition(np.arange(8), num_shards=4).rdd.flatMap(list).repartition(3)
    frame = pd.DataFrame({"a": [1, 2, 3]})
    data = SparkXShards([[frame]]).to_spark_df().filter("a > 1")
    gc.collect()
    spark._jvm.System.gc()
    spark_xshards._sweep()
    assert sorted(derived.collect()) == list(range(8))
    assert [row.a for row in data.collect()] == [2, 3]


def test_shards_go_when_spark_needs_them_no_more(spark: Any) -> None:
    def use() -> Any:
        made = XShards.partition(np.zeros((64, 1024)), num_shards=8)
        assert made.rdd.count() == 8
        return weakref.ref(made.cells()[0])

    cell = use()
    for _ in range(20):
        gc.collect()
        spark_xshards._collected[:] = [0, 0]
        spark_xshards._sweep()
        if cell() is None:
            return
    pytest.fail("the shards are kept")


def test_a_worker_has_no_spark(spark: Any) -> None:
    made = XShards.partition(np.arange(4), num_shards=2)
    with pytest.raises(Exception, match="a worker has no Spark"):
        orca.run(lambda: made.rdd, workers=1)


# --- DataFrames


TYPES = pd.DataFrame(
    {
        "int": np.array([1, -2, 3], np.int32),
        "byte": np.array([1, 2, 255], np.uint8),
        "float": np.array([0.5, np.nan, 1], np.float32),
        "half": np.array([0.5, 1, 2], np.float16),
        "flag": [True, False, True],
        "maybe": pd.array([1, None, 3], "Int64"),
        "text": ["a", None, "ß漢🐋"],
        "bytes": [b"1", None, b""],
        "kind": pd.Categorical(["u", "v", "u"]),
        "day": [datetime.date(2020, 2, 29), None, datetime.date(1900, 1, 1)],
        "time": pd.to_datetime(
            ["2020-07-01 12:00:00.123456", None, "2020-01-01"], format="ISO8601"
        ),
        "zoned": pd.to_datetime(["2020-07-01", None, "2020-01-01"]).tz_localize("Asia/Tokyo"),
        "price": [decimal.Decimal("1.50"), None, decimal.Decimal("-2")],
        "list": [[1, 2], None, []],
        "array": [np.array([1.0, 2.0]), np.array([]), np.array([3.0])],
        "record": [{"a": 1, "b": "x"}, None, {"a": 2, "b": None}],
    }
)


@pytest.mark.parametrize("through", ["memory", "rdd"])
def test_a_data_frame_has_the_frames_rows_and_types(spark: Any, root: Any, through: str) -> None:
    parts = [[TYPES.iloc[:1]], [], [TYPES.iloc[1:1]], [TYPES.iloc[1:]]]
    made = root.SparkXShards(parts if through == "memory" else rdd_of(spark, parts))
    data = made.to_spark_df()
    assert made.is_cached() == (through == "memory")
    assert data.rdd.getNumPartitions() == 4
    assert dict(data.dtypes) == {
        "int": "int",
        "byte": "smallint",
        "float": "float",
        "half": "float",
        "flag": "boolean",
        "maybe": "bigint",
        "text": "string",
        "bytes": "binary",
        "kind": "string",
        "day": "date",
        "time": "timestamp",
        "zoned": "timestamp",
        "price": "decimal(3,2)",
        "list": "array<bigint>",
        "array": "array<double>",
        "record": "struct<a:bigint,b:string>",
    }
    assert all(field.nullable for field in data.schema)
    first, second, third = data.collect()
    assert (first.int, second.int, third.byte) == (1, -2, 255)
    assert (first.float, second.float, first.half) == (0.5, None, 0.5)
    assert (second.maybe, third.maybe) == (None, 3)
    assert (first.text, second.text, third.text) == ("a", None, "ß漢🐋")
    assert (first.bytes, second.bytes, third.bytes, second.kind) == (b"1", None, b"", "v")
    assert (first.day, second.day) == (datetime.date(2020, 2, 29), None)
    assert (first.price, second.price) == (decimal.Decimal("1.50"), None)
    assert (first.list, second.list, third.list, third.array) == ([1, 2], None, [], [3.0])
    assert (first.record.asDict(), second.record) == ({"a": 1, "b": "x"}, None)
    times = data.selectExpr("cast(time as string) t", "cast(zoned as string) z").collect()
    assert times[0].t == "2020-07-01 12:00:00.123456"
    assert times[0].z == "2020-06-30 11:00:00"  # In New York.
    assert times[1].t is None


def test_rows_of_large_frames_keep_their_order(spark: Any) -> None:
    frames = [pd.DataFrame({"a": np.arange(25_000) + 25_000 * i}) for i in range(2)]
    made = SparkXShards([[frame] for frame in frames]).to_spark_df()
    found = made.rdd.map(lambda row: row.a).collect()
    assert found == list(range(50_000))


def test_whole_numbers_beyond_64_bits_are_decimals(spark: Any) -> None:
    values = [[1, -5], [2**63, float("nan")], [2**64, 10**38 - 1]]
    frames = [pd.DataFrame({"a": pd.Series(v, dtype=object), "b": "x"}) for v in values]
    found = SparkXShards([[frame] for frame in frames]).to_spark_df()
    assert found.schema["a"].dataType.simpleString() == "decimal(38,0)"
    expected = [None if v != v else decimal.Decimal(v) for part in values for v in part]
    assert [row.a for row in found.collect()] == expected


def test_columns_have_the_type_that_fits_all_partitions(spark: Any) -> None:
    parts = [
        [pd.DataFrame({"a": [1], "b": [None], "c.d": [1]})],
        [pd.DataFrame({"a": [0.5], "b": ["x"], "c.d": [2], "more": [True]})],
    ]
    data = SparkXShards(parts).to_spark_df()
    assert dict(data.dtypes) == {"a": "double", "b": "string", "c.d": "bigint", "more": "boolean"}
    assert [tuple(row) for row in data.collect()] == [(1.0, None, 1, None), (0.5, "x", 2, True)]


@pytest.mark.parametrize("through", ["memory", "rdd"])
def test_what_arrow_has_no_type_for_goes_row_by_row(spark: Any, through: str) -> None:
    from pyspark.ml.linalg import Vectors

    frame = pd.DataFrame(
        {
            "v": [Vectors.dense([1, 2]), Vectors.dense([3, 4])],
            "n": [1, 2],
            "t": pd.to_datetime(["2020-07-01", None]),
            "m": [np.eye(2), np.zeros((1, 1))],
        }
    )
    parts = [[frame.iloc[:1]], [frame.iloc[1:]]]
    made = SparkXShards(parts if through == "memory" else rdd_of(spark, parts))
    first, second = made.to_spark_df().collect()
    assert first.v == Vectors.dense([1, 2])
    assert (second.n, second.t, second.m) == (2, None, [[0.0]])
    assert first.t == datetime.datetime(2020, 7, 1)


@pytest.mark.parametrize("through", ["memory", "rdd"])
def test_only_xshards_of_one_frame_a_partition_are_a_data_frame(
    spark: Any, root: Any, through: str
) -> None:
    kinds = {"orca": InvalidArgumentError, "zoo": ValueError}
    kind = kinds.get(root.__name__.split(".")[0], RuntimeError)

    def made(parts: list[list[Any]]) -> Any:
        return root.SparkXShards(parts if through == "memory" else rdd_of(spark, parts))

    frame = pd.DataFrame({"a": [1]})
    with pytest.raises(kind, match="only 1 pandas dataframe for each partition, but got 2"):
        made([[frame], [frame, frame]]).to_spark_df()
    for others in ([[1]], [[]], [[frame], [{"x": np.ones(1)}]]):
        with pytest.raises(kind, match="only support to_spark_df"):
            made(others).to_spark_df()


def test_columns_of_the_same_name_are_refused(spark: Any) -> None:
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(Exception, match="do not all differ; rename some"):
        SparkXShards([[frame]]).to_spark_df()


def test_a_data_frame_becomes_frames_as_to_pandas_makes_them(spark: Any, root: Any) -> None:
    utils = importlib.import_module(f"{root.__name__}.utils")
    data = SparkXShards([[TYPES.iloc[:1]], [], [TYPES.iloc[1:]]]).to_spark_df()
    made = utils.spark_df_to_pd_sparkxshards(data)
    assert isinstance(made, root.SparkXShards)
    assert made._get_class_name() == "pandas.core.frame.DataFrame"
    assert made.to_spark_df() is data
    assert made.num_partitions() == 3
    of_rdd = made.rdd.collect()
    assert not made.is_cached()
    assert [len(frame) for frame in of_rdd] == [1, 0, 2]
    pulled = made.collect()
    assert [len(frame) for frame in pulled] == [1, 0, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = data.toPandas()
    for frames in (pulled, of_rdd, utils.spark_df_to_rdd_pd(data).collect()):
        for name in TYPES.columns:
            joined = pd.concat([frame[name] for frame in frames if len(frame)])
            assert repr(joined.tolist()) == repr(whole[name].tolist()), name
    for name in ("int", "flag", "text", "time", "float"):
        assert pulled[1][name].dtype == whole[name].dtype, name


def test_frames_of_a_data_frame_are_shaped_as_asked(spark: Any) -> None:
    from bigdl.orca import OrcaContext
    from bigdl.orca.data.utils import spark_df_to_pd_sparkxshards as to_frames

    data = spark.createDataFrame([(i, str(i)) for i in range(7)], "n long, s string").coalesce(1)
    (frame,) = to_frames(data, index_col="s", dtype={"n": "float32"}).collect()
    assert frame.index.tolist() == list("0123456")
    assert frame["n"].dtype == np.float32
    (frame,) = to_frames(data, dtype={0: "str"}, index_map={0: "n"}).collect()
    assert frame["n"].tolist() == list("0123456")
    (series,) = to_frames(data.select("n"), squeeze=True).collect()
    assert isinstance(series, pd.Series)
    with pytest.raises(RuntimeError, match="column to be set type is not in current dataframe"):
        to_frames(data, dtype={"q": "int32"})
    with pytest.raises(RuntimeError, match="give a DataFrame of Spark"):
        to_frames([1])
    OrcaContext._shard_size = 3
    try:
        made = to_frames(data)
        assert [len(frame) for frame in made.rdd.collect()] == [3, 3, 1]
        assert [len(frame) for frame in made.collect()] == [3, 3, 1]
    finally:
        OrcaContext._shard_size = None


def test_vectors_and_names_of_any_kind_come_from_data_frames(spark: Any) -> None:
    from pyspark.ml.linalg import Vectors

    from orca.data.utils import spark_df_to_pd_sparkxshards

    rows = [(Vectors.dense([1, 2]), {"k": 1.0}, 1), (None, None, 2)]
    data = spark.createDataFrame(rows, ["v", "m", "n"]).toDF("v", "v", "a.b").coalesce(1)
    (frame,) = spark_df_to_pd_sparkxshards(data).collect()
    assert list(frame.columns) == ["v", "v", "a.b"]
    assert frame.iloc[0, 0] == Vectors.dense([1, 2])
    assert frame.iloc[0, 1] == {"k": 1.0}
    assert frame.iloc[1, 0] is None
    assert frame["a.b"].tolist() == [1, 2]


def test_ray_is_asked_for_by_name(spark: Any) -> None:
    from orca.data.utils import spark_df_to_ray_dataset

    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is there")
    with pytest.raises(ImportError, match="run 'pip install \"ray"):
        spark_df_to_ray_dataset(spark.range(3))


# --- contexts


def test_what_needs_no_spark_does_not_import_it() -> None:
    code = """
import sys
import numpy as np, pandas as pd
import orca
import bigdl.orca.data.utils, zoo.orca.data.utils
from orca.data import SparkXShards, XShards
with orca.init_orca_context("local", cores=1):
    made = XShards.partition(np.arange(4), num_shards=2).transform_shard(lambda s: s + 1)
    made.repartition(1).collect()
    SparkXShards([[pd.DataFrame({"a": [1]})]]).sort_values("a").collect()
    assert orca.run(lambda: "pyspark" in sys.modules, workers=1) == [False]
print("pyspark" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("False\n"), done.stderr


def test_a_missing_pyspark_is_told_with_the_remedy() -> None:
    code = """
import sys
sys.modules["pyspark"] = None
import numpy as np
import orca
from orca.data import XShards
with orca.init_orca_context("local", cores=1):
    XShards.partition(np.arange(4), num_shards=2).rdd
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "there is no package pyspark: pip install pyspark" in done.stderr


# The last one: it ends the context.
def test_after_the_context_an_action_says_what_is_wrong(spark: Any) -> None:
    made = XShards.partition(np.arange(4), num_shards=2)
    rdd = made.rdd
    data = SparkXShards([[pd.DataFrame({"a": [1]})]]).to_spark_df()
    untouched = SparkXShards(rdd_of(spark, [[1]]))
    assert rdd.count() == 2
    orca.stop_orca_context()
    try:
        with pytest.raises(Exception, match="the Orca context that this data belongs to has ended"):
            rdd.count()
        with pytest.raises(Exception, match="the Orca context that this data belongs to has ended"):
            data.collect()
        with pytest.raises(Exception, match="there is no Orca context"):
            untouched.collect()
        assert untouched.rdd.collect() == [1]
    finally:
        orca.init_orca_context("local", cores=2)
    try:
        with pytest.raises(Exception, match="has ended"):
            rdd.count()
        assert untouched.collect() == [1]
        assert XShards.partition(np.arange(4), num_shards=2).rdd.count() == 2
    finally:
        orca.stop_orca_context()
