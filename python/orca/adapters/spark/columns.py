"""Columns of pandas frames as Arrow batches that Spark takes, and what Spark gives as pandas frames."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from orca.data.cells import class_name
from orca.data.frames import FRAME
from orca.errors import InvalidArgumentError

__all__ = ["as_batches", "as_frames", "as_rows", "describe", "merged", "quiet"]

BATCH_ROWS = 10_000  # What Spark itself puts into a batch.


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Spark says at every turn that it does not know pandas 3 well; what is used of it here is tested."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "PySpark does not yet fully support pandas", FutureWarning
        )
        yield


# --- frames to Spark


def describe(shards: list[Any]) -> tuple[list[str], list[str], Any]:
    """Kinds of a partition's shards, and names and types of the columns of the frame that it is."""
    kinds = [class_name(shard) for shard in shards]
    if kinds != [FRAME]:
        return kinds, [], None
    return kinds, [str(name) for name in shards[0].columns], _schema(shards[0])


def _schema(frame: Any) -> Any:
    """The types that Spark gets for a frame's columns; None if Arrow has none for one of them."""
    import pyarrow

    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"the columns {names} do not all differ; rename some")
    try:
        columns = [_natural(frame.iloc[:, i]).type for i in range(len(names))]
        return pyarrow.schema(
            [pyarrow.field(*pair) for pair in zip(names, map(_known, columns), strict=True)]
        )
    except _arrow_errors():
        return None


def merged(schemas: Iterable[Any]) -> Any:
    """Types that fit the columns of all frames; None if there are none."""
    import pyarrow

    found = list(schemas)
    if any(schema is None for schema in found):
        return None
    try:
        return pyarrow.unify_schemas(found, promote_options="permissive")
    except _arrow_errors():
        return None


def as_batches(frame: Any, schema: Any, zone: str) -> Iterator[Any]:
    """A frame's rows with the types of ``schema``; times without a zone are of ``zone``."""
    import pyarrow

    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    for begin in range(0, len(frame), BATCH_ROWS):
        part = frame.iloc[begin : begin + BATCH_ROWS]
        columns = [
            _typed(part[field.name], field.type, zone)
            if field.name in part.columns
            else pyarrow.nulls(len(part), field.type)
            for field in schema
        ]
        yield pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def as_rows(frame: Any) -> Iterator[tuple[Any, ...]]:
    """A frame's rows as Python values, for what Arrow has no types for."""
    return zip(*([_plain(v) for v in frame.iloc[:, i]] for i in range(frame.shape[1])), strict=True)


def _arrow_errors() -> tuple[type[Exception], ...]:
    from pyarrow import lib

    return (lib.ArrowInvalid, lib.ArrowTypeError, lib.ArrowNotImplementedError)


def _natural(series: Any) -> Any:
    import pyarrow

    try:
        found = pyarrow.array(series, from_pandas=True)
    except OverflowError:  # Whole numbers beyond 64 bits.
        found = pyarrow.array(series, pyarrow.decimal128(38, 0), from_pandas=True)
    return found.combine_chunks() if isinstance(found, pyarrow.ChunkedArray) else found


def _known(kind: Any) -> Any:
    """The type of Spark's that holds all values of an Arrow type."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(kind):
        return _known(kind.value_type)
    if types.is_timestamp(kind):
        return pyarrow.timestamp("us", tz="UTC")
    if types.is_duration(kind):
        return pyarrow.duration("us")
    if types.is_time(kind):
        return pyarrow.time64("us")
    if types.is_date(kind):
        return pyarrow.date32()
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pyarrow.string()
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pyarrow.binary()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pyarrow.list_(_known(kind.value_type))
    if types.is_struct(kind):
        return pyarrow.struct([pyarrow.field(f.name, _known(f.type)) for f in kind])
    wider = {
        pyarrow.uint8(): pyarrow.int16(),
        pyarrow.uint16(): pyarrow.int32(),
        pyarrow.uint32(): pyarrow.int64(),
        pyarrow.uint64(): pyarrow.decimal128(20, 0),
        pyarrow.float16(): pyarrow.float32(),
    }
    return wider.get(kind, kind)


def _typed(series: Any, kind: Any, zone: str) -> Any:
    import pyarrow
    from pyarrow import compute, types

    if not types.is_timestamp(kind):
        try:
            found = pyarrow.array(series, type=kind, from_pandas=True)
            if isinstance(found, pyarrow.ChunkedArray):
                found = found.combine_chunks()
            return found
        except _arrow_errors():
            return _natural(series).cast(kind, safe=False)
    found = _natural(series)
    if types.is_timestamp(found.type) and found.type.tz is None:
        # Of an hour that is there twice the second one, as Spark has it.
        found = compute.assume_timezone(found, zone, ambiguous="latest", nonexistent="latest")
    return found.cast(kind, safe=False)  # Spark has no nanoseconds.


def _plain(value: Any) -> Any:
    import numpy
    import pandas

    if isinstance(value, numpy.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    if isinstance(value, numpy.generic):
        value = value.item()
    if not isinstance(value, str | bytes | dict) and pandas.api.types.is_scalar(value):
        if pandas.isna(value):
            return None
        if isinstance(value, pandas.Timestamp):
            return value.to_pydatetime()
        if isinstance(value, pandas.Timedelta):
            return value.to_pytimedelta()
    return value


# --- Spark to frames


def as_frames(
    batches: Iterable[Any], schema: Any, arrow_schema: Any, zone: str, rows: int | None
) -> Iterator[Any]:
    """Frames of so many rows each, or one of all; at least one, be it without rows.

    Args:
        batches: With the columns of ``arrow_schema``, whatever they are called.
        schema: Spark's types and the frame's names.
        arrow_schema: The same for Arrow.
        zone: Of times.
        rows: Of a frame.
    """
    waiting: list[Any] = []
    count = made = 0
    for batch in batches:
        while rows is not None and count + batch.num_rows >= rows:
            yield _frame([*waiting, batch.slice(0, rows - count)], schema, arrow_schema, zone)
            batch = batch.slice(rows - count)
            waiting, count, made = [], 0, made + 1
        if batch.num_rows:
            waiting.append(batch)
            count += batch.num_rows
    if waiting or not made:
        yield _frame(waiting, schema, arrow_schema, zone)


def _frame(batches: list[Any], schema: Any, arrow_schema: Any, zone: str) -> Any:
    import pandas
    import pyarrow
    from pyspark.sql.pandas.types import _create_converter_to_pandas

    rows = sum(batch.num_rows for batch in batches)
    made = []
    for i, field in enumerate(schema.fields):
        kind = batches[0].schema.field(i).type if batches else arrow_schema.field(i).type
        column = pyarrow.chunked_array([batch.column(i) for batch in batches], type=kind)
        # As toPandas() does it.
        series = column.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True)
        convert = _create_converter_to_pandas(
            field.dataType,
            field.nullable,
            timezone=zone,
            struct_in_pandas="dict",
            error_on_duplicated_field_names=False,
        )
        with quiet():
            made.append(convert(series))
    frame = pandas.concat(made, axis="columns") if made else pandas.DataFrame(index=range(rows))
    return frame.set_axis([field.name for field in schema.fields], axis=1)
