"""XShards and Spark, both ways: shards of an RDD or a DataFrame in the agent's memory, and shards as RDD or DataFrame.

Spark's Python processes are guests of the agent (``orca.guests``): they put shards into its memory and read them there, so
rows never pass the driver.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from orca import guests, pickles, running
from orca.adapters import spark
from orca.adapters.spark import columns
from orca.adapters.spark.plan import SparkPlan
from orca.adapters.spark.session import spark_session
from orca.context import OrcaContext, active_context, current_context
from orca.data.cells import Cell, Partition
from orca.data.frames import FRAME
from orca.data.readers import _finisher
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.generations import Generation

__all__ = [
    "FrameSource",
    "RddSource",
    "export",
    "export_frames",
    "from_data_frame",
    "to_ray_dataset",
]


def _spark() -> SparkSession:
    """The session; starts Spark when there is none."""
    if running.is_inside():
        raise FailedPreconditionError(
            "a worker has no Spark; use .rdd and DataFrames in the program that called Orca"
        )
    if active_context() is not None:
        return OrcaContext.get_spark_session()
    return spark_session(spark.start(SparkPlan("local[*]")))


def _map_in_arrow(data: DataFrame, function: Any, schema: Any) -> DataFrame:
    with columns.quiet():
        return data.mapInArrow(function, schema)


# --- from Spark


class RddSource:
    """An RDD whose items are shards; they are in Spark until they are pulled."""

    def __init__(self, rdd: Any, class_name: str | None = None) -> None:
        self.rdd, self.class_name = rdd, class_name

    def num_partitions(self) -> int:
        """As Spark has it."""
        return int(self.rdd.getNumPartitions())

    def pull(self) -> list[Partition]:
        """All shards, in the agent's memory."""
        return _pulled(lambda pack: self.rdd.mapPartitions(pack).collect(), _to_cells)

    def to_df(self) -> DataFrame:
        """A DataFrame of the rows of frames."""
        found = self.rdd.mapPartitions(_describe_partition).collect()
        schema = _check_frames(found)
        if schema is None:
            return _from_rows(self.rdd, _names(found))
        zone, struct = _zone(), _struct(schema)
        packed = self.rdd.mapPartitions(functools.partial(_write_batches, schema, zone))
        batches = _spark().createDataFrame(
            packed.map(_in_a_row), "batch binary", verifySchema=False
        )
        return _map_in_arrow(batches, functools.partial(_read_batches, schema), struct)


class FrameSource:
    """A DataFrame whose rows become shards of pandas frames.

    Args:
        data: The DataFrame.
        finish: What is done to each frame.
        rows: Of a frame; all of a partition unless given.
    """

    class_name: str | None = None

    def __init__(
        self, data: DataFrame, finish: Callable[[Any], Any] | None, rows: int | None
    ) -> None:
        self._data, self._finish, self._rows = data, finish, rows
        if finish is None:
            self.class_name = FRAME
        self._zone = _zone()
        self._arrow = arrow_schema(data.schema)
        self._rdd: Any = None

    @property
    def rdd(self) -> Any:
        """An RDD of the frames."""
        if self._rdd is None:
            written = _map_in_arrow(self._numbered(), _write_as_they_are, "batch binary")
            self._rdd = written.rdd.mapPartitions(functools.partial(_read_frames, self._frames()))
        return self._rdd

    def num_partitions(self) -> int:
        """As Spark has it."""
        return int(self.rdd.getNumPartitions())

    def pull(self) -> list[Partition]:
        """All frames, in the agent's memory."""

        def job(pack: Any) -> list[Any]:
            packed = functools.partial(_in_a_batch, pack)
            rows = _map_in_arrow(self._numbered(), packed, "package binary").collect()
            return [row[0] for row in rows]

        return _pulled(job, functools.partial(_frames_to_cells, self._frames()))

    def to_df(self) -> DataFrame:
        """The DataFrame itself, unless its frames are others."""
        return self._data if self._finish is None else RddSource(self.rdd).to_df()

    def _numbered(self) -> DataFrame:
        # Names may be there twice, and a dot in one would mean a part of a column.
        return self._data.toDF(*(f"c{i}" for i in range(len(self._data.columns))))

    def _frames(self) -> Callable[[Iterable[Any]], Iterator[Any]]:
        return functools.partial(
            _finished_frames,
            functools.partial(
                columns.as_frames,
                schema=self._data.schema,
                arrow_schema=self._arrow,
                zone=self._zone,
                rows=self._rows,
            ),
            self._finish,
        )


def from_data_frame(
    generation: Generation,
    data: DataFrame,
    *,
    squeeze: bool = False,
    index_col: Any = None,
    dtype: Any = None,
    index_map: dict[int, str] | None = None,
    rows: int | None = None,
) -> FrameSource:
    """What ``spark_df_to_pd_sparkxshards`` makes its XShards of."""
    with generation.errors():
        if not isinstance(data, DataFrame):
            raise InvalidArgumentError(f"df is a {type(data).__name__}; give a DataFrame of Spark")
        if index_map and isinstance(dtype, dict):
            dtype = {index_map.get(k, k) if isinstance(k, int) else k: v for k, v in dtype.items()}
        rest = {"names": None, "usecols": None, "dtype": dtype, "index_col": index_col}
        return FrameSource(data, _finisher(list(data.columns), rest, squeeze), rows)


def _pulled(
    job: Callable[[Any], list[Any]], make: Callable[[Iterable[Any]], Any]
) -> list[Partition]:
    """What a job of Spark brings whose tasks call the function that it is given, one package a partition."""
    _sweep()
    door = guests.open_door()
    with guests.Basket() as basket:
        pack = functools.partial(pack_partition, door, basket.number, make)
        return basket.unpack(job(pack))


# --- in Spark's Python processes


def pack_partition(
    door: guests.Door, basket: int, make: Callable[[Iterable[Any]], Any], items: Iterable[Any]
) -> Iterator[bytes]:
    """The package of one partition."""
    yield guests.pack(door, basket, lambda: make(items))


def _to_cells(shards: Iterable[Any]) -> Partition:
    return [Cell(shard) for shard in shards]


def _frames_to_cells(
    frames: Callable[[Iterable[Any]], Iterator[Any]], batches: Iterable[Any]
) -> Partition:
    return _to_cells(frames(batches))


def _finished_frames(make: Any, finish: Any, items: Iterable[Any]) -> Iterator[Any]:
    return make(items) if finish is None else map(finish, make(items))


def _in_a_row(value: Any) -> tuple[Any]:
    return (value,)


def _in_a_batch(pack: Any, batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow

    for package in pack(batches):
        yield pyarrow.RecordBatch.from_pydict(
            {"package": pyarrow.array([package], pyarrow.binary())}
        )


def _bytes_of(batch: Any) -> bytes:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _batch_of(data: Any) -> Any:
    import pyarrow

    with pyarrow.ipc.open_stream(pyarrow.py_buffer(data)) as stream:
        return stream.read_next_batch()


def _write_as_they_are(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow

    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict(
            {"batch": pyarrow.array([_bytes_of(batch)], pyarrow.binary())}
        )


def _read_frames(frames: Any, rows: Iterable[Any]) -> Iterator[Any]:
    found: Iterator[Any] = frames(_batch_of(row[0]) for row in rows)
    return found


def _write_batches(schema: Any, zone: str, frames: Iterable[Any]) -> Iterator[bytearray]:
    for frame in frames:
        for batch in columns.as_batches(frame, schema, zone):
            yield bytearray(_bytes_of(batch))


def _read_batches(schema: Any, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        for data in batch.column(0):
            yield _batch_of(data.as_buffer())


def _describe_partition(shards: Iterable[Any]) -> Iterator[Any]:
    yield columns.describe(list(shards))


class _Opened:
    """Shards of the agent, where a task of Spark reads them."""

    def __init__(self, door: guests.Door, packages: Any) -> None:
        self._door, self._packages = door, packages

    def shards(self, index: int) -> Iterator[Any]:
        """The shards of a partition."""
        home = guests.enter(self._door)
        for cell in pickles.loads(self._packages.value[index], home=home):
            yield cell.value()

    def __call__(self, index: int, _: Iterable[int]) -> Iterator[Any]:
        return self.shards(index)


def _batches_of_shards(
    opened: _Opened, schema: Any, zone: str, numbers: Iterable[Any]
) -> Iterator[Any]:
    for batch in numbers:
        for index in batch.column(0).to_pylist():
            for frame in opened.shards(index):
                yield from columns.as_batches(frame, schema, zone)


# --- to Spark


def export(partitions: list[Partition]) -> Any:
    """An RDD of these shards, which its tasks read where they are."""
    context = _spark().sparkContext
    if not partitions:
        return context.emptyRDD()
    count = len(partitions)
    return context.parallelize(range(count), count).mapPartitionsWithIndex(_opened(partitions))


def export_frames(
    partitions: list[Partition], found: list[Any], rdd: Callable[[], Any]
) -> DataFrame:
    """A DataFrame of the rows of frames.

    Args:
        partitions: The shards.
        found: What ``describe`` says of each partition.
        rdd: Gives them as an RDD.
    """
    schema = _check_frames(found)
    if schema is None:
        return _from_rows(rdd(), _names(found))
    numbers = _spark().range(0, len(partitions), 1, len(partitions))
    read = functools.partial(_batches_of_shards, _opened(partitions), schema, _zone())
    return _map_in_arrow(numbers, read, _struct(schema))


def _opened(partitions: list[Partition]) -> _Opened:
    """What tasks read the shards by; they stay as long as Spark has anything that is made of it."""
    home = current_context().native.shards
    told = [[bytes(p) for p in pickles.dumps(cells, home=home)[0]] for cells in partitions]
    return _Opened(guests.open_door(), broadcast(_spark().sparkContext, told, partitions))


def broadcast(context: Any, told: Any, kept: Any, nbytes: int | None = None) -> Any:
    """What tasks are told; ``kept`` stays as long as Spark has anything that is made of it.

    Args:
        context: Spark's.
        told: A value that can be pickled.
        kept: Anything.
        nbytes: What it takes to keep it; None: much.
    """
    _sweep()
    made = context.broadcast(told)
    costs = _WORTH if nbytes is None else nbytes + _EACH
    _kept.append((context._jvm.java.lang.ref.WeakReference(made._jbroadcast), kept, costs))
    return made


# What Python has of an RDD or a DataFrame may be gone while others are made of it: Java knows. So a broadcast goes
# with all of them, and its shards are kept until Java has collected it.
_kept: list[tuple[Any, Any, int]] = []
_EACH = 4 << 20  # Bytes that the smallest counts for: there may be many.
_WORTH = 64 << 20  # Bytes that Java's collector is worth, which takes tenths of a second.
_collected = [0.0, 0.0]  # When Java's collector ran for us, and for how long.
_RESTS = 10  # Times as long as it ran.


def _sweep() -> None:
    """Lets go of the shards that nothing in Spark can ask for any more."""
    if not _kept:
        return
    context = spark.active()
    if context is None:  # Its Spark has been stopped.
        _kept.clear()
        return
    begin = time.monotonic()
    is_worth_it = sum(costs for _, _, costs in _kept) >= _WORTH
    if is_worth_it and begin - _collected[0] > _RESTS * _collected[1]:
        context._jvm.System.gc()
        end = time.monotonic()
        _collected[:] = [end, end - begin]
    _kept[:] = [kept for kept in _kept if _is_alive(kept[0])]


def _is_alive(reference: Any) -> bool:
    from py4j.protocol import Py4JError

    try:
        return reference.get() is not None
    except Py4JError:  # Of a Java that has ended.
        return False


# --- types


def _check_frames(found: list[Any]) -> Any:
    """Types that fit the frames of all partitions; None if Arrow has none."""
    kinds = {kind for partition, _, _ in found for kind in partition}
    if kinds != {FRAME}:
        raise InvalidArgumentError(
            "Currently only support to_spark_df() on XShards of Pandas DataFrame"
        )
    most = max(len(partition) for partition, _, _ in found)
    if most > 1:
        raise InvalidArgumentError(
            "to_spark_df() expects there is only 1 pandas dataframe for each partition, but got "
            f"{most}; make one of them with repartition()"
        )
    schema = columns.merged(schema for partition, _, schema in found if partition)
    return None if schema is None or _struct(schema) is None else schema


def _names(found: list[Any]) -> list[str]:
    return next(names for partition, names, _ in found if partition)


def _struct(schema: Any) -> Any:
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return from_arrow_schema(schema)
    except PySparkTypeError:
        return None


def arrow_schema(schema: Any) -> Any:
    """Arrow's types of a DataFrame, whose columns are called by their numbers."""
    from pyspark.sql.pandas import types

    numbered = types.StructType(
        [types.StructField(f"c{i}", field.dataType) for i, field in enumerate(schema.fields)]
    )
    # Spark 3 knows one zone only.
    has_zones = "timezone" in inspect.signature(types.to_arrow_schema).parameters
    return types.to_arrow_schema(numbered, **({"timezone": "UTC"} if has_zones else {}))


def _zone() -> str:
    return str(_spark().conf.get("spark.sql.session.timeZone"))


def _from_rows(rdd: Any, names: list[str]) -> DataFrame:
    """Row by row, with the types that Spark finds."""
    rows = rdd.flatMap(columns.as_rows)
    return _spark().createDataFrame(rows, names, samplingRatio=1.0)


# --- Ray


def to_ray_dataset(frames: list[Any]) -> Any:
    """A Dataset of Ray, a block a frame."""
    try:
        data = importlib.import_module("ray.data")
    except ModuleNotFoundError as error:
        raise ImportError("a Dataset of Ray needs Ray; run 'pip install \"ray[data]\"'") from error
    return data.from_pandas(frames)
