"""DataFrames into shards, and predictions back into DataFrames.

Spark's Python processes are guests of the agent: rows travel from the JVM to them as Arrow batches, and from them
into memory that the workers read. Nothing passes the driver.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from orca import guests
from orca.adapters.spark.xshards import arrow_schema, broadcast
from orca.data import columns
from orca.data.arrays import Shard
from orca.errors import InvalidArgumentError

_log = logging.getLogger("orca")
# Bytes that a task holds before it puts them into a shard. Little memory that is used again costs less than fresh
# pages; a share of what it has put so far, so that large frames do not become too many shards.
_LEAST, _SHARE, _MOST = 4 << 20, 8, 64 << 20
_ROWS = 1 << 16  # Rows that a task sends to a worker at a time.


def check_columns(frame: DataFrame, features: Any, labels: Any, wants_target: bool) -> None:
    """Refuses what cannot be trained on, before anything runs."""
    if not features:
        raise InvalidArgumentError("feature_col must be provided if data is a spark dataframe")
    if wants_target and not labels:
        raise InvalidArgumentError("label_cols must be provided if data is a spark dataframe")
    for name in _listed(features) + (_listed(labels) if wants_target else []):
        if name not in frame.columns:
            raise InvalidArgumentError(
                f"there is no column {name!r} in the DataFrame, which has {frame.columns}"
            )
        kind = frame.schema[name].dataType
        if not _is_supported(kind):
            raise InvalidArgumentError(
                f"unsupported field {name!r} of the type {kind.simpleString()}; give numbers, arrays of "
                "numbers or vectors: convert it, or leave it out"
            )


def pull(frame: DataFrame, features: Any, labels: Any = None) -> list[Shard]:
    """The rows of a DataFrame as shards ``{"x": ..., "y": ...}`` in the agent's memory, in order."""
    began = time.monotonic()
    wanted = {"x": _listed(features)} | ({} if labels is None else {"y": _listed(labels)})
    names = list(dict.fromkeys(name for listed in wanted.values() for name in listed))
    groups = _groups(frame, names)
    door = guests.open_door()
    with guests.Basket() as basket:
        number = basket.number

        def put(chunk: Any) -> bytes:
            return guests.pack(door, number, lambda: Shard(_to_arrays(chunk, wanted, groups)))

        job = _mapped(
            frame.select(*_selected(names, groups)),
            lambda batches: (_package(put(chunk)) for chunk in _chunks(batches)),
            StructType([StructField("package", BinaryType())]),
        )
        shards: list[Shard] = basket.unpack(bytes(row[0]) for row in job.collect())
    _check_shapes(shards, wanted)
    _log.info("%d rows came from Spark in %.1f s", sum(map(len, shards)), time.monotonic() - began)
    return shards


def _check_shapes(shards: list[Shard], wanted: dict[str, list[str]]) -> None:
    """Rows of one column have one shape, whatever their partition."""
    seen: dict[str, tuple[int, ...]] = {}
    for shard in shards:
        view = shard.view()
        for key, names in wanted.items():
            parts = [view[key]] if len(names) == 1 else view[key]
            for name, part in zip(names, parts, strict=True):
                shape = getattr(part, "shape", (0,))[1:]
                if seen.setdefault(name, shape) != shape:
                    raise InvalidArgumentError(
                        f"column {name!r} has rows of the shapes {seen[name]} and {shape}. Elements in the "
                        "same column must have the same shape, please drop, pad or truncate the columns that "
                        "do not meet this requirement."
                    )


def with_predictions(
    frame: DataFrame,
    features: Any,
    outputs: Sequence[str] | None,
    model: Any,
    nbytes: int,
    *,
    can_be_opened: bool,
) -> DataFrame:
    """The same rows in the same order with what a model predicts, computed when an action asks for it.

    Args:
        frame: The rows.
        features: The columns that the model takes.
        outputs: Names of a column for each output; None: one column "prediction".
        model: Predicts ``on_workers``, and after ``open`` where it is; see ``Inference``.
        nbytes: What it takes to keep it.
        can_be_opened: Whether Spark's processes may open it.
    """
    listed = _listed(features)
    first = frame.select(*map(_column, listed)).take(1)
    kind: Any = None  # Nobody knows without a row.
    if first:
        kind = columns.kind_of(model.on_workers(_row_of(first[0], frame.schema, listed))[0].view())
    if outputs is not None:
        kinds = kind if isinstance(kind, list) else [kind] * (1 if first else len(outputs))
        if len(kinds) != len(outputs):
            raise InvalidArgumentError(
                f"output_cols has {len(outputs)} names and the model gives {len(kinds)} outputs; give a "
                "name for each"
            )
        fields = [StructField(c, _spark_type(k)) for c, k in zip(outputs, kinds, strict=True)]
    else:
        fields = [StructField("prediction", _spark_type(kind))]
    if taken := [field.name for field in fields if field.name in frame.columns]:
        raise InvalidArgumentError(
            f"the DataFrame has a column {taken[0]!r} already; rename it, or give output_cols="
        )
    listener = guests.listen(lambda asked: model if asked is None else model.on_workers(asked))
    told = broadcast(frame.sparkSession.sparkContext, listener.name, listener, nbytes)
    door, is_split = guests.open_door(), outputs is not None
    in_one = len(fields) == 1 and hasattr(functions, "arrow_udf")  # Since Spark 4.1.
    groups = _groups(frame, listed) if in_one else {}

    def predicted(chunks: Iterator[list[Any]]) -> Iterator[tuple[list[Any], list[list[Any]]]]:
        """Chunks of batches, each with the columns that are predicted, in pieces."""
        predict = _Predictor(door, told.value, can_be_opened)
        for chunk in chunks:
            made = predict(_to_arrays(chunk, {"x": listed}, groups))
            parts = ([f] if not (is_split and isinstance(f, list | tuple)) else f for f in made)
            yield chunk, [[columns.from_array(part) for part in piece] for piece in parts]

    if in_one:
        return _with_column(frame, fields[0], listed, groups, predicted)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for chunk, pieces in predicted(_chunks(batches, _ROWS)):
            table = columns.pyarrow().Table.from_batches(chunk).combine_chunks()
            at = 0
            for made in pieces:
                piece = table.slice(at, len(made[0]))
                at += len(made[0])
                for field, part in zip(fields, made, strict=True):
                    piece = piece.append_column(field.name, part)
                yield from piece.combine_chunks().to_batches()

    return _mapped(frame, task, StructType([*frame.schema.fields, *fields]))


def _with_column(
    frame: DataFrame,
    field: StructField,
    features: list[str],
    groups: dict[str, list[str]],
    predicted: Callable[[Iterator[list[Any]]], Iterator[tuple[list[Any], list[list[Any]]]]],
) -> DataFrame:
    """Only the features travel; Spark keeps the other columns where they are."""
    grouped = {member for members in groups.values() for member in members}
    features = list(dict.fromkeys(features))
    names = [*(feature for feature in features if feature not in grouped), *groups]

    def predict(parts: Iterator[Any]) -> Iterator[Any]:
        arrow = columns.pyarrow()
        batches = (
            arrow.RecordBatch.from_arrays([part] if len(names) == 1 else list(part), names)
            for part in parts
        )
        for _, pieces in predicted(_chunks(batches, _ROWS)):
            for (piece,) in pieces:
                yield piece

    with warnings.catch_warnings():
        # Of a pandas that it does not use here, and of a function without types.
        warnings.simplefilter("ignore")
        udf = functions.arrow_udf(
            predict, field.dataType, functionType=functions.ArrowUDFType.SCALAR_ITER
        )
        return frame.withColumn(field.name, udf(*_selected(features, groups)))


def arrays_of_row(row: Any, schema: StructType, names: Sequence[str]) -> list[Any]:
    """Columns of one row that is in the driver, each with a first dimension of 1."""
    arrow = columns.pyarrow()
    types = arrow_schema(StructType([schema[name] for name in names])).types
    arrays = []
    for name, type_ in zip(names, types, strict=True):
        kind, value = schema[name].dataType, row[name]
        if isinstance(kind, VectorUDT):
            value = dict(zip(columns.VECTOR, kind.serialize(value), strict=True))
        elif isinstance(kind, MapType):
            value = list(value.items())
        arrays.append(columns.to_array(name, arrow.array([value], type_)))
    return arrays


def _row_of(row: Any, schema: StructType, names: list[str]) -> Shard:
    arrays = arrays_of_row(row, schema, names)
    return Shard({"x": arrays[0] if len(arrays) == 1 else arrays})


# --- in Spark's Python processes

_IMPORT = 1.0  # Seconds that an import of torch takes.
_OPENED = 4  # Models that a process keeps open.
_waited = 0.0  # Seconds that this process has waited for predictions of workers.
_opened: dict[tuple[guests.Door, str], Callable[[dict[str, Any]], Any]] = {}


class _Predictor:
    """What a task predicts with: warm workers, or the model in this process.

    Workers have imported torch already, but rows have to go there and come back. So they are asked until that
    took as long as the import takes; from then on no more than twice what is best is lost.
    """

    def __init__(self, door: guests.Door, name: str, can_be_opened: bool) -> None:
        self._door, self._name, self._can_be_opened = door, name, can_be_opened
        self._model: Callable[[dict[str, Any]], Any] | None = None

    def __call__(self, features: dict[str, Any]) -> list[Any]:
        global _waited
        is_worth_it = "torch" in sys.modules or _waited >= _IMPORT
        if self._model is None and self._can_be_opened and is_worth_it:
            self._model = self._open()
        if self._model is not None:
            return [self._model(features)]
        began = time.monotonic()
        found = guests.ask(self._door, self._name, Shard(features))
        _waited += time.monotonic() - began
        return [shard.view() for shard in found]

    def _open(self) -> Callable[[dict[str, Any]], Any] | None:
        key = (self._door, self._name)
        if any(door != self._door for door, _ in _opened):
            _opened.clear()  # Of a context that has ended.
        try:
            model = guests.ask(self._door, self._name, None)  # Also whether the context is there.
            if key not in _opened:
                _opened[key] = model.open()
        except (
            ImportError,
            AttributeError,
        ):  # Only the driver and its workers find the model's code.
            self._can_be_opened = False
            return None
        for old in list(_opened)[:-_OPENED]:
            del _opened[old]
        return _opened[key]


def _mapped(
    frame: DataFrame, work: Callable[[Iterator[Any]], Iterator[Any]], schema: StructType
) -> DataFrame:
    """What ``work`` makes of the Arrow batches of each partition, in Spark's Python processes."""
    names = frame.columns

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        return work(batch.rename_columns(names) for batch in batches)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Of a pandas that it does not use here.
        # By numbers: mapInArrow takes a dot in a name for a path.
        return frame.toDF(*map(str, range(len(names)))).mapInArrow(task, schema)


def _chunks(batches: Iterator[Any], most_rows: int = 1 << 62) -> Iterator[list[Any]]:
    """Batches in lists that are not too large."""
    chunk: list[Any] = []
    size = rows = done = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        chunk.append(batch)
        size, rows = size + batch.nbytes, rows + batch.num_rows
        if size >= min(max(_LEAST, done // _SHARE), _MOST) or rows >= most_rows:
            yield chunk
            done += size
            chunk, size, rows = [], 0, 0
    if chunk:
        yield chunk


def _to_arrays(
    chunk: list[Any], wanted: dict[str, list[str]], groups: dict[str, list[str]] | None = None
) -> dict[str, Any]:
    table = columns.pyarrow().Table.from_batches(chunk)
    found: dict[str, Any] = {}
    for group, members in (groups or {}).items():
        found |= zip(members, columns.to_arrays(members, table.column(group)), strict=True)
    made = {}
    for key, names in wanted.items():
        arrays = [
            found[name] if name in found else columns.to_array(name, table.column(name))
            for name in names
        ]
        made[key] = arrays[0] if len(arrays) == 1 else arrays
    return made


def _package(data: bytes) -> Any:
    arrow = columns.pyarrow()

    return arrow.RecordBatch.from_pydict({"package": arrow.array([data], arrow.binary())})


# --- many columns at a time

_GROUP = 4  # Columns of one type that are worth it.
_GROUPED = ("boolean", "byte", "short", "integer", "long", "float", "double")


def _groups(frame: DataFrame, names: list[str]) -> dict[str, list[str]]:
    """Columns of numbers by their type, where there are many.

    The JVM writes one array a row faster than as many columns.
    """
    by_type: dict[str, list[str]] = {}
    for name in names:
        kind = frame.schema[name].dataType.typeName()
        if kind in _GROUPED:
            by_type.setdefault(kind, []).append(name)
    many = [members for members in by_type.values() if len(members) >= _GROUP]
    return {f"_orca_{i}": members for i, members in enumerate(many)}


def _selected(names: list[str], groups: dict[str, list[str]]) -> list[Any]:
    grouped = {member for members in groups.values() for member in members}
    plain = [functions.col(_column(name)) for name in names if name not in grouped]
    return plain + [
        functions.array(*(functions.col(_column(member)) for member in members)).alias(name)
        for name, members in groups.items()
    ]


# --- types


def _listed(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _column(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"  # A dot in a name is no path.


def _is_supported(kind: DataType) -> bool:
    if isinstance(kind, VectorUDT):
        return True
    if isinstance(kind, ArrayType):
        return not isinstance(kind.elementType, MapType) and _is_supported(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and _is_supported(kind.valueType)
    return kind.typeName() in (
        "boolean",
        "byte",
        "short",
        "integer",
        "long",
        "float",
        "double",
        "decimal",
        "timestamp",
        "timestamp_ntz",
    )


def _spark_type(kind: Any) -> DataType:
    if isinstance(kind, dict):
        return MapType(StringType(), _spark_type(next(iter(kind.values()))))
    if isinstance(kind, list):
        return ArrayType(_spark_type(kind[0]))
    if kind in ("number", None):
        return DoubleType()
    if kind == "vector":
        return VectorUDT()
    nested: DataType = DoubleType()
    for _ in range(kind[1]):
        nested = ArrayType(nested)
    return nested
