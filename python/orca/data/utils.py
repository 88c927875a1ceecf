"""Batches of arrays, and what partitions of ``{"x", "y"}`` hold, as libraries beside Orca import it.

Example:
    >>> import numpy as np
    >>> combine([{"a": np.zeros(2)}, {"a": np.ones(1)}])["a"].tolist()
    [0.0, 0.0, 1.0]
    >>> get_size((np.zeros(3), np.ones(3)))
    3
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from orca.data import file
from orca.data.xshards import SparkXShards, _with_spark, bind_root
from orca.errors import InvalidArgumentError
from orca.generations import ORCA, Generation
from orca.roots.samples import Sample

__all__ = [
    "Sample",
    "check_type_and_convert",
    "combine",
    "extract_one_path",
    "flatten_xy",
    "get_class_name",
    "get_size",
    "get_spec",
    "index_data",
    "partition_get_data_label",
    "partitions_get_data_label",
    "partitions_get_tf_dataset",
    "process_spark_xshards",
    "read_pd_file",
    "row_to_sample",
    "spark_df_to_pd_sparkxshards",
    "spark_df_to_ray_dataset",
    "spark_df_to_rdd_pd",
    "spark_xshards_to_ray_dataset",
    "xshard_to_sample",
]

# --- batches: an array, or a dict, list or tuple of arrays


def combine(data_list: Sequence[Any]) -> Any:
    """Batches of one structure, joined row by row."""
    first = data_list[0]
    if isinstance(first, dict):
        return {key: np.concatenate([data[key] for data in data_list]) for key in first}
    if isinstance(first, list | tuple):
        parts = [np.concatenate([data[i] for data in data_list]) for i in range(len(first))]
        return tuple(parts) if isinstance(first, tuple) else parts
    if isinstance(first, np.ndarray):
        return np.concatenate(data_list)
    raise _no_batch(first)


def index_data(x: Any, i: int) -> Any:
    """Row ``i`` of a batch; that of a tuple is a list."""
    if isinstance(x, np.ndarray):
        return x[i]
    if isinstance(x, dict):
        return {key: value[i] for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [part[i] for part in x]
    raise _no_batch(x)


def get_size(x: Any) -> int:
    """The number of rows of a batch."""
    if isinstance(x, np.ndarray):
        return len(x)
    if isinstance(x, dict) and x:
        return len(next(iter(x.values())))
    if isinstance(x, list | tuple) and x:
        return len(x[0])
    raise _no_batch(x)


def _no_batch(value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        "data should be an ndarray, a dict of ndarrays, a tuple of ndarrays or a list of ndarrays, "
        f"please check your input: it is a {type(value).__name__}"
    )


# --- shards of {"x", "y"}


def partition_get_data_label(
    partition_data: Iterable[dict[str, Any]],
    allow_tuple: bool = True,
    allow_list: bool = True,
    has_label: bool = True,
) -> tuple[Any, Any]:
    """The "x" and the "y" of all shards of a partition, joined.

    Args:
        partition_data: The shards.
        allow_tuple: Whether several arrays may be a tuple; else they become a list.
        allow_list: Whether they may be a list; else they become a tuple.
        has_label: Whether there is a "y"; the second result is None without.
    """
    shards = list(partition_data)
    data = _as_allowed(combine([shard["x"] for shard in shards]), allow_tuple, allow_list)
    if not has_label:
        return data, None
    return data, _as_allowed(combine([shard["y"] for shard in shards]), allow_tuple, allow_list)


def partitions_get_data_label(
    partition_list: Iterable[Iterable[dict[str, Any]]],
    allow_tuple: bool = True,
    allow_list: bool = True,
    has_label: bool = True,
) -> tuple[Any, Any]:
    """As ``partition_get_data_label``, of several partitions."""
    shards = itertools.chain.from_iterable(partition_list)
    return partition_get_data_label(shards, allow_tuple, allow_list, has_label)


def partitions_get_tf_dataset(
    partition_list: Iterable[Iterable[dict[str, Any]]],
    allow_tuple: bool = True,
    allow_list: bool = True,
    has_label: bool = True,
) -> Any:
    """As ``partitions_get_data_label``, as a ``tf.data.Dataset`` of rows: features, or features and label.

    Raises:
        ImportError: TensorFlow is not installed.
    """
    try:
        tensorflow = importlib.import_module("tensorflow")
    except ModuleNotFoundError as error:
        raise ImportError(
            "partitions_get_tf_dataset needs TensorFlow; run 'pip install tensorflow'"
        ) from error
    data, label = partitions_get_data_label(partition_list, allow_tuple, allow_list, has_label)
    # TensorFlow takes a list for one tensor of all.
    parts = [tuple(part) if isinstance(part, list) else part for part in (data, label)]
    rows = tuple(parts) if has_label else parts[0]
    return tensorflow.data.Dataset.from_tensor_slices(rows)


def process_spark_xshards(spark_xshards: SparkXShards, num_workers: int) -> SparkXShards:
    """The same rows in at least a partition a worker.

    The original's went into Ray's memory; these are where Orca's workers read them.
    """
    if not isinstance(num_workers, int) or isinstance(num_workers, bool) or num_workers < 1:
        raise InvalidArgumentError(
            f"num_workers {num_workers!r} is not positive; give the number of workers"
        )
    if spark_xshards.num_partitions() >= num_workers:
        return spark_xshards
    return spark_xshards.repartition(num_workers)


def _as_allowed(data: Any, allow_tuple: bool, allow_list: bool) -> Any:
    if isinstance(data, list) and allow_tuple and not allow_list:
        return tuple(data)
    if isinstance(data, tuple) and allow_list and not allow_tuple:
        return list(data)
    return data


def check_type_and_convert(
    data: Any, allow_tuple: bool = True, allow_list: bool = True
) -> dict[str, Any]:
    """The shard with lists (or tuples) of arrays as its "x" and "y"."""
    if not isinstance(data, dict):
        raise InvalidArgumentError("each shard should be an dict")
    if "x" not in data:
        raise InvalidArgumentError("key x should in each shard")
    made = {}
    for key in ("x", "y") if "y" in data else ("x",):
        value = [data[key]] if isinstance(data[key], np.ndarray) else data[key]
        if not isinstance(value, list | tuple) or not all(isinstance(v, np.ndarray) for v in value):
            raise InvalidArgumentError(
                "value of x and y should be a ndarray, a tuple of ndarrays or a list of ndarrays"
            )
        made[key] = _as_allowed(value, allow_tuple, allow_list)
    return made


def get_spec(allow_tuple: bool = True, allow_list: bool = True) -> Callable[[Any], tuple[Any, Any]]:
    """What gives dtypes and shapes of rows of a shard's features, and of its labels or None."""

    def spec(data: Any) -> tuple[Any, Any]:
        shard = check_type_and_convert(data, allow_tuple, allow_list)
        found = {key: [(a.dtype, a.shape[1:]) for a in arrays] for key, arrays in shard.items()}
        return found["x"], found.get("y")

    return spec


def flatten_xy(
    allow_tuple: bool = True, allow_list: bool = True
) -> Callable[[Any], Iterator[tuple[Any, ...]]]:
    """What gives the rows of a shard: lists of features, and of labels where there are any."""

    def rows(data: Any) -> Iterator[tuple[Any, ...]]:
        shard = check_type_and_convert(data, allow_tuple, allow_list)
        for i in range(len(shard["x"][0])):
            yield tuple([array[i] for array in arrays] for arrays in shard.values())

    return rows


def xshard_to_sample(data: Any) -> Iterator[Sample]:
    """The rows of a shard; the label of one without labels is -1."""
    for row in flatten_xy(allow_tuple=False)(data):
        yield Sample.from_ndarray(list(row[0]), list(row[1]) if len(row) > 1 else [-1])


# --- files and names


def extract_one_path(file_path: str, env: Any = None) -> list[str]:
    """The files at a path: itself, or those in the folder."""
    if file.is_file(file_path):
        return [file_path]
    if not file.exists(file_path):
        raise FileNotFoundError(f"No such file or directory: {file_path}")
    return [f"{file_path.rstrip('/')}/{name}" for name in file.listdir(file_path)]


def read_pd_file(path: Any, file_type: str, **kwargs: Any) -> Any:
    """A frame of a file, by pandas: ``"csv"`` or ``"json"``."""
    if file_type not in ("csv", "json"):
        raise InvalidArgumentError(
            f"Unsupported file type: {file_type}. Only csv and json files are supported for now"
        )
    return getattr(importlib.import_module("pandas"), f"read_{file_type}")(path, **kwargs)


def get_class_name(obj: Any) -> str:
    """The class with its module, unless it is a builtin."""
    kind = type(obj)
    is_builtin = kind.__module__ == "builtins"
    return kind.__name__ if is_builtin else f"{kind.__module__}.{kind.__name__}"


# --- with Spark, which these start


def bind(generation: Generation, settings: Any = None) -> tuple[Any, Any]:
    """``spark_df_to_pd_sparkxshards`` and ``spark_df_to_rdd_pd`` of an import root."""

    def source(df: Any, options: dict[str, Any]) -> Any:
        rows = getattr(settings, "_shard_size", None)
        return _with_spark().from_data_frame(generation, df, rows=rows, **options)

    def spark_df_to_pd_sparkxshards(
        df: Any,
        squeeze: bool = False,
        index_col: Any = None,
        dtype: Any = None,
        index_map: dict[int, str] | None = None,
    ) -> SparkXShards:
        """A DataFrame of Spark as XShards of pandas frames, one a partition, be it empty.

        They stay in Spark until an operation needs them. ``OrcaContext._shard_size`` makes frames of so
        many rows.

        Args:
            df: The DataFrame.
            squeeze: Whether frames of one column become Series.
            index_col: The column that is the index, by name or number.
            dtype: A type for all columns, or a dict of types by name or number.
            index_map: Names of the numbers in ``dtype``; those of the columns unless given.
        """
        options = {"squeeze": squeeze, "index_col": index_col, "dtype": dtype}
        return bind_root(generation)[1]._in_spark(source(df, options | {"index_map": index_map}))

    def spark_df_to_rdd_pd(
        df: Any,
        squeeze: bool = False,
        index_col: Any = None,
        dtype: Any = None,
        index_map: dict[int, str] | None = None,
    ) -> Any:
        """As ``spark_df_to_pd_sparkxshards``, as an RDD of Spark."""
        options = {"squeeze": squeeze, "index_col": index_col, "dtype": dtype}
        return source(df, options | {"index_map": index_map}).rdd

    return spark_df_to_pd_sparkxshards, spark_df_to_rdd_pd


spark_df_to_pd_sparkxshards, spark_df_to_rdd_pd = bind(ORCA)


def row_to_sample(
    row: Any, schema: Any, feature_cols: list[str], label_cols: list[str] | None
) -> Sample:
    """A row of a DataFrame of Spark; the label of one without labels is 0."""
    frames = importlib.import_module("orca.adapters.spark.frames")
    features = [array[0] for array in frames.arrays_of_row(row, schema, feature_cols)]
    labels = [array[0] for array in frames.arrays_of_row(row, schema, label_cols or [])]
    return Sample.from_ndarray(features, labels or [0.0])


def spark_xshards_to_ray_dataset(spark_xshards: SparkXShards) -> Any:
    """A Dataset of Ray of an XShards of frames, a block a frame."""
    return _with_spark().to_ray_dataset(spark_xshards.collect())


def spark_df_to_ray_dataset(df: Any) -> Any:
    """A Dataset of Ray of a DataFrame of Spark, a block a partition."""
    return spark_xshards_to_ray_dataset(bind(ORCA)[0](df))
