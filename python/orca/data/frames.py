"""Operations on XShards of pandas frames: each partition works on its rows, rows that belong together meet first.

Rows are exchanged between the workers through shared memory; the driver sees numbers of shards alone.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.errors import InvalidArgumentError
from orca.generations import once_raised_as

if TYPE_CHECKING:
    from orca.data.xshards import SparkXShards

FRAME = "pandas.core.frame.DataFrame"
SERIES = "pandas.core.series.Series"


class FrameOperations:
    """What an XShards of frames can do beside what every XShards can."""

    # --- rows to other partitions

    def partition_by(self: Any, cols: Any, num_partitions: int | None = None) -> SparkXShards:
        """Rows with the same value in a column land in the same partition."""
        with self._generation.errors():
            if self._get_class_name() != FRAME:
                raise InvalidArgumentError(
                    "Currently only support partition by for XShards of Pandas DataFrame"
                )
            self._check_frames("partition_by()")
            name = cols[0] if isinstance(cols, list | tuple) and len(cols) == 1 else cols
            if not isinstance(name, str):
                raise InvalidArgumentError("Only support partition by a column name")
            if name not in self.get_schema()["columns"]:
                raise InvalidArgumentError("The partition column is not in the DataFrame")
            made = self._shuffled([name], num_partitions or self.num_partitions())
            self._give_up()
            return made

    def sort_values(self: Any, col_names: Any = None, ascending: Any = True) -> SparkXShards:
        """All rows in the order of some columns; missing values come first, or last when descending."""
        with self._generation.errors():
            self._check_frames("sort()")
            columns = list(self.get_schema()["columns"])
            names = columns if col_names is None else _listed(col_names)
            self._check_columns(names, "col_names")
            if not names:
                raise InvalidArgumentError("col_names is empty; give at least one column")
            ups = ascending if isinstance(ascending, list | tuple) else [ascending] * len(names)
            if len(ups) != len(names):
                raise InvalidArgumentError(
                    f"ascending has {len(ups)} values for {len(names)} columns; give one each"
                )
            first, count = names[0], self.num_partitions()
            found = [part for part in self._ask(functools.partial(_quantiles, name=first)) if part]
            # Categories have an order of their own, which frames with other categories do not share.
            by_value = len({kind for kind, _ in found}) > 1
            if by_value:
                ask = functools.partial(_quantiles, name=first, by_value=True)
                found = [part for part in self._ask(ask) if part]
            known = [values for _, values in found if len(values)]
            bounds = _bounds(np.sort(np.concatenate(known)), count) if known else np.array([])
            cut = functools.partial(
                _by_range, name=first, bounds=bounds, count=count, up=ups[0], by_value=by_value
            )
            order = functools.partial(_sorted, names=names, ups=list(map(bool, ups)))
            return self._exchanged(cut, count, order)

    def deduplicates(self: Any) -> SparkXShards:
        """Distinct rows."""
        with self._generation.errors():
            self._check_frames("dedup()")
            names = list(self.get_schema()["columns"])
            return self._shuffled(names, self.num_partitions(), _distinct)

    def group_by(self: Any, columns: Any = (), agg: Any = "count", join: bool = False) -> Any:
        """Aggregates of rows with equal values in some columns.

        Args:
            columns: To group by; none: all rows are one group.
            agg: A name, a list of names (for all other columns), or a dict of such by column; the names
                are Spark's.
            join: Whether every row gets the aggregates of its group instead.
        """
        with self._generation.errors():
            self._check_frames("group_by()")
            names = _listed(columns)
            every = list(self.get_schema()["columns"])
            self._check_columns(names, "columns")
            wanted = _aggregates(agg, [name for name in every if name not in names])
            self._check_columns([c for c, _ in wanted if c != "*"], "agg")
            if join and not names:
                raise InvalidArgumentError("columns can not be empty if join is True")
            count = self.num_partitions() if names else 1
            work = functools.partial(_aggregate, names=names, wanted=wanted, join=join)
            return self._shuffled(names, count, work)

    def merge(self: Any, right: Any, how: str = "inner", on: Any = None) -> SparkXShards:
        """A join of two XShards of frames, as a database makes it."""
        with self._generation.errors():
            if not hasattr(right, "_partitions"):
                raise InvalidArgumentError("right should be a SparkXShards")
            self._check_frames("merge()")
            right._check_frames("merge()")
            mine = list(self.get_schema()["columns"])
            theirs = list(right.get_schema()["columns"])
            names = [n for n in mine if n in theirs] if on is None else _listed(on)
            self._check_columns(names, "on")
            right._check_columns(names, "on")
            if not names:
                raise InvalidArgumentError("the frames have no column in common; give on=")
            count = max(self.num_partitions(), right.num_partitions())
            left_parts = self._shuffled(names, count)._partitions()
            right_parts = right._shuffled(names, count)._partitions()
            pairs = [[*a, *b] for a, b in zip(left_parts, right_parts, strict=True)]
            work = functools.partial(_merged, how=how, names=names)
            return type(self)._of(pairs)._mapped(work)

    # --- within shards

    def select(self: Any, cols: Any) -> SparkXShards:
        """Some columns of every frame."""
        with self._generation.errors():
            self._check_frames("select()")
            if not isinstance(cols, str | list):
                raise InvalidArgumentError("cols should be str or list")
            self._check_columns(_listed(cols), "cols")
            return self._transformed(Each(_take_columns, _listed(cols)))

    def sample(
        self: Any, frac: float, replace: bool = False, weights: Any = None, random_state: Any = None
    ) -> SparkXShards:
        """A part of the rows of every frame."""
        with self._generation.errors():
            self._check_frames("sample()")
            return self._transformed(Each(_sampled, frac, replace, weights, random_state))

    def drop_missing_value(self: Any) -> SparkXShards:
        """Without the columns that have missing values anywhere."""
        with self._generation.errors():
            missing = self.get_null_sum()
            bad = list(missing[missing["total"] > 0]["col"])
            return self._transformed(Each(_drop_columns, bad))

    def assembleFeatureLabelCols(  # noqa: N802
        self: Any,
        featureCols: Any,  # noqa: N803
        labelCols: Any,  # noqa: N803
    ) -> SparkXShards:
        """An XShards of ``{"x": (rows, features), "y": (rows, labels)}``."""
        with self._generation.errors():
            self._check_frames("assembleFeatureLabelCols()")
            for name, given in (("featureCols", featureCols), ("labelCols", labelCols)):
                if not isinstance(given, list):
                    raise InvalidArgumentError(f"{name} should be a list of column names")
                self._check_columns(given, name)
            return self._transformed(Each(_assembled, featureCols, labelCols))

    def stack_feature_labels(self: Any) -> SparkXShards:
        """Pairs of a feature and a label, stacked to one ``{"x", "y"}`` of float32 a partition."""
        with self._generation.errors():
            if self._get_class_name().removeprefix("builtins.") != "tuple":
                raise InvalidArgumentError(
                    "Currently only support stack_feature_labels() on XShards of tuple of features "
                    "and labels"
                )
            return self._transformed(_stacked_pairs)

    # --- answers to the driver

    def unique(self: Any) -> np.ndarray[Any, Any]:
        """The distinct values of Series."""
        with self._generation.errors():
            if self._get_class_name() != SERIES:
                raise InvalidArgumentError(
                    "Currently only support unique() on XShards of Pandas Series"
                )
            found = [part for part in self._ask(_uniques) if part is not None]
            values: np.ndarray[Any, Any] = _pandas().unique(np.concatenate(found))
            return values

    def max_values(self: Any, col_name: str) -> Any:
        """The largest value of a column."""
        with self._generation.errors():
            self._check_frames("max()")
            self._check_columns([col_name], "col_name")
            found = self._ask(functools.partial(_largest, name=col_name))
            return max(itertools.chain.from_iterable(found), default=None)

    def get_null_sum(self: Any) -> Any:
        """A frame with the number of missing values (``total``) of every column (``col``)."""
        with self._generation.errors():
            self._check_frames("get_null_sum()")
            total = sum(self._ask(_null_counts))
            return _pandas().DataFrame({"col": total.index, "total": total.to_numpy()})

    def describe(self: Any, cols: Any = None) -> Any:
        """A frame with count, mean, stddev, min and max of columns of numbers and texts."""
        with self._generation.errors():
            self._check_frames("describe()")
            names = _listed(cols) if cols else list(self.get_schema()["columns"])
            self._check_columns(names, "cols")
            parts = self._ask(functools.partial(_moments, names=names))
            rows: dict[str, Any] = {"summary": ["count", "mean", "stddev", "min", "max"]}
            for i, name in enumerate(names):
                rows[name] = _summary([part[i] for part in parts if part])
            return _pandas().DataFrame(rows)

    def head(self: Any, n: int = 5) -> Any:
        """The first rows of the first shard."""
        return self.first().head(n)

    def concat_to_pdf(self: Any, axis: int = 0) -> Any:
        """All frames as one, in the driver."""
        with self._generation.errors():
            self._check_frames("concat_to_pdf()")
            return _pandas().concat(self.collect(), axis=axis)

    def sample_to_pdf(
        self: Any,
        frac: float,
        replace: bool = False,
        weights: Any = None,
        random_state: Any = None,
        axis: int = 0,
    ) -> Any:
        """``sample`` of every frame, as one in the driver."""
        with self._generation.errors():
            return self.sample(frac, replace, weights, random_state).concat_to_pdf(axis)

    # --- inside

    def _check_frames(self: Any, what: str) -> None:
        kinds = list(dict.fromkeys(cell.kind for cell in self.cells()))
        if kinds != [FRAME]:
            others = f"; there are {', '.join(kinds)}" if len(kinds) > 1 else ""
            raise InvalidArgumentError(
                f"Currently only support {what} on XShards of Pandas DataFrame{others}"
            )
        columns = self.get_schema()["columns"]
        if columns.nlevels > 1:
            raise InvalidArgumentError(
                f"{what} wants columns with one name each, and these have {columns.nlevels}: give "
                'frame.set_axis(["_".join(map(str, names)) for names in frame.columns], axis=1)'
            )
        if not columns.is_unique:
            twice = list(columns[columns.duplicated()])
            raise InvalidArgumentError(
                f"{what}: several columns have the names {twice}; rename some"
            )

    def _check_columns(self: Any, names: Sequence[Any], what: str) -> None:
        known = list(self.get_schema()["columns"])
        for name in names:
            if name not in known:
                raise once_raised_as(
                    InvalidArgumentError(f"{name} in {what} does not exist in SparkXShards"),
                    AssertionError,
                )

    def _shuffled(self: Any, names: list[str], count: int, then: Any = None) -> SparkXShards:
        """Rows with equal values in ``names`` together, one frame a partition."""
        cut = functools.partial(_by_hash, names=names, count=count)
        return self._exchanged(cut, count, then or _joined)

    def _exchanged(self: Any, cut: Any, count: int, then: Any) -> SparkXShards:
        """``cut`` makes ``count`` pieces of each partition; piece i of all becomes partition i."""
        pieces = self._pieces(cut)
        width = range(count)
        parts = [list(itertools.chain.from_iterable(p[i : i + 1] for p in pieces)) for i in width]
        made: SparkXShards = type(self)._of(parts)._mapped(then)
        return made


# --- what workers do


def _pandas() -> Any:
    return importlib.import_module("pandas")


def _listed(names: Any) -> list[Any]:
    return [names] if isinstance(names, str) else list(names or ())


class Each:
    """A function of each shard."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments

    def __call__(self, values: list[Any]) -> list[Any]:
        """What it makes of a partition's shards."""
        return [self._function(value, *self._arguments) for value in values]


def _whole(frames: list[Any]) -> Any:
    return frames[0] if len(frames) == 1 else _pandas().concat(frames, ignore_index=True)


def _joined(frames: list[Any]) -> list[Any]:
    return [_whole(frames).reset_index(drop=True)] if frames else []


def _by_hash(frames: list[Any], names: list[str], count: int) -> list[Any]:
    if not frames:
        return []
    whole = _whole(frames)
    if not names or count == 1:
        return [whole, *(whole.iloc[:0] for _ in range(count - 1))]
    places = _hashes(whole[names[0]])
    for name in names[1:]:
        places = places * np.uint64(31) + _hashes(whole[name])
    places %= np.uint64(count)
    return [whole[places == i] for i in range(count)]


def _hashes(column: Any) -> np.ndarray[Any, Any]:
    """Equal values have equal ones, whatever types they have in other partitions."""
    column = _comparable(column)
    found: np.ndarray[Any, Any] = _pandas().util.hash_pandas_object(column, index=False).to_numpy()
    return np.where(column.isna().to_numpy(), np.uint64(0), found)


_NUMBERS = ("boolean", "decimal", "floating", "integer", "mixed-integer-float")


def _comparable(column: Any) -> Any:
    """The same values in a type that all partitions have in common."""
    pandas = _pandas()
    if isinstance(column.dtype, pandas.CategoricalDtype):
        column = column.astype(object)
    if isinstance(column.dtype, pandas.DatetimeTZDtype):
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    if column.dtype.kind in "mM":
        return column.astype(f"{column.dtype.kind}8[us]")
    is_object = column.dtype == object
    if column.dtype.kind in "iufb" or (
        is_object and pandas.api.types.infer_dtype(column, skipna=True) in _NUMBERS
    ):
        return column.astype("float64") + 0.0  # There is a zero with a sign.
    return column


def _sort_key(column: Any, by_value: bool) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What decides the order of values that are not missing, and which are."""
    pandas = _pandas()
    missing = column.isna().to_numpy()
    if isinstance(column.dtype, pandas.CategoricalDtype):
        column = column.astype(object) if by_value else column.cat.codes
    if isinstance(column.dtype, pandas.DatetimeTZDtype):
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    return column[~missing].to_numpy(), missing


def _quantiles(frames: list[Any], name: str, by_value: bool = False) -> Any:
    """The dtype of a column, and values that divide its rows evenly."""
    if not frames:
        return None
    column = _whole(frames)[name].reset_index(drop=True)
    values = np.sort(_sort_key(column, by_value)[0])
    at = np.linspace(0, len(values) - 1, min(len(values), 256)).astype(int)
    kind = column.dtype
    is_category = isinstance(kind, _pandas().CategoricalDtype)
    return tuple(kind.categories) if is_category else "", values[at]


def _bounds(known: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    at = np.linspace(0, len(known), count + 1)[1:-1].astype(int)
    found: np.ndarray[Any, Any] = known[at[at < len(known)]]
    return found


def _by_range(
    frames: list[Any], name: str, bounds: Any, count: int, up: bool, by_value: bool
) -> list[Any]:
    if not frames:
        return []
    whole = _whole(frames).reset_index(drop=True)
    values, missing = _sort_key(whole[name], by_value)
    places = np.zeros(len(whole), int)
    places[~missing] = np.searchsorted(bounds, values, side="right")
    if not up:
        places = count - 1 - places
    return [whole[places == i] for i in range(count)]


def _sorted(frames: list[Any], names: list[str], ups: list[bool]) -> list[Any]:
    if not frames:
        return []
    whole = _whole(frames)
    for name, up in reversed(list(zip(names, ups, strict=True))):
        position = "first" if up else "last"
        whole = whole.sort_values(name, ascending=up, na_position=position, kind="stable")
    return [whole.reset_index(drop=True)]


def _distinct(frames: list[Any]) -> list[Any]:
    return [_whole(frames).drop_duplicates().reset_index(drop=True)] if frames else []


def _merged(frames: list[Any], how: str, names: list[str]) -> list[Any]:
    left, right = frames
    return [left.merge(right, how=how, on=names)]


def _take_columns(frame: Any, names: list[str]) -> Any:
    return frame[names]


def _drop_columns(frame: Any, names: list[str]) -> Any:
    return frame.drop(columns=names)


def _sampled(frame: Any, frac: float, replace: bool, weights: Any, seed: Any) -> Any:
    return frame.sample(frac=frac, replace=replace, weights=weights, random_state=seed)


def _assembled(frame: Any, features: list[str], labels: list[str]) -> dict[str, Any]:
    def stack(names: list[str]) -> np.ndarray[Any, Any]:
        return np.concatenate([_vectors(frame[name].to_numpy(), name) for name in names], axis=1)

    return {"x": stack(features), "y": stack(labels)}


def stacked_column(column: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """A column whose rows may be arrays or lists, as one array.

    Raises:
        InvalidArgumentError: Rows have different shapes.
    """
    if column.dtype != object or not len(column):
        return column
    parts = [np.asarray(row) for row in column]
    if len(shapes := {part.shape for part in parts}) > 1:
        raise InvalidArgumentError(
            f"column {name!r} has rows of the shapes {sorted(shapes)}; give all the same shape"
        )
    return np.stack(parts)


def _vectors(column: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """A column as a matrix; rows may be lists themselves."""
    column = stacked_column(column, name)
    return column.reshape(len(column), -1) if len(column) else column[:, None]


def _stacked_pairs(pairs: list[Any]) -> list[Any]:
    if not pairs:
        return []
    x, y = (np.array([pair[i] for pair in pairs]).astype(np.float32) for i in (0, 1))
    return [{"x": x, "y": y}]


def _uniques(values: list[Any]) -> np.ndarray[Any, Any] | None:
    parts = [np.asarray(series.unique()) for series in values]
    return np.concatenate(parts) if parts else None


def _largest(frames: list[Any], name: str) -> list[Any]:
    values = [frame[name].dropna() for frame in frames]
    return [column.max() for column in values if len(column)]


def _moments(frames: list[Any], names: list[str]) -> list[Any]:
    """Of each column: how many values, their sum, squares around its mean, least and largest."""
    found = []
    for name in names if frames else ():
        column = _whole(frames)[name].dropna()
        if isinstance(column.dtype, _pandas().CategoricalDtype):
            column = column.astype(object)
        total = squares = None
        if column.dtype.kind in "iufb":
            numbers = column.to_numpy(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                total = numbers.sum()
                squares = ((numbers - total / max(len(numbers), 1)) ** 2).sum()
        ends = (column.min(), column.max()) if len(column) else (None, None)
        found.append((len(column), total, squares, *ends))
    return found


def _summary(parts: list[Any]) -> list[Any]:
    """Count, mean, deviation and ends of a column, of those of its parts."""
    count = sum(part[0] for part in parts)
    ends = [
        choose(part[i] for part in parts if part[0]) if count else None
        for i, choose in ((3, min), (4, max))
    ]
    parts = [part for part in parts if part[0]] or parts
    if any(part[1] is None for part in parts):
        return [count, None, None, *ends]
    if not count:
        return [0, float("nan"), float("nan"), *ends]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = sum(part[1] for part in parts) / count
        squares = sum(part[2] + part[0] * (part[1] / part[0] - mean) ** 2 for part in parts)
        deviation = np.sqrt(squares / (count - 1)) if count > 1 else float("nan")
    return [count, mean, deviation, *ends]


def _null_counts(frames: list[Any]) -> Any:
    return sum(frame.isnull().sum() for frame in frames)


# --- aggregates, by Spark's names


def _skewness(values: Any) -> float:
    centred = values - values.mean()
    spread = float((centred**2).mean())
    return float((centred**3).mean() / spread**1.5) if spread else float("nan")


def _kurtosis(values: Any) -> float:
    centred = values - values.mean()
    spread = float((centred**2).mean())
    return float((centred**4).mean() / spread**2 - 3) if spread else float("nan")


_AGGREGATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "max": ("max({})", lambda s: s.max()),
    "min": ("min({})", lambda s: s.min()),
    "count": ("count({})", lambda s: s.count()),
    "sum": ("sum({})", lambda s: s.sum(min_count=1)),
    "avg": ("avg({})", lambda s: s.mean()),
    "mean": ("avg({})", lambda s: s.mean()),
    "sumDistinct": ("sum(DISTINCT {})", lambda s: s.drop_duplicates().sum(min_count=1)),
    "stddev": ("stddev({})", lambda s: s.std()),
    "stddev_pop": ("stddev_pop({})", lambda s: s.std(ddof=0)),
    "variance": ("variance({})", lambda s: s.var()),
    "var_pop": ("var_pop({})", lambda s: s.var(ddof=0)),
    "skewness": ("skewness({})", lambda s: _skewness(s.dropna())),
    "kurtosis": ("kurtosis({})", lambda s: _kurtosis(s.dropna())),
    "collect_list": ("collect_list({})", lambda s: s.dropna().tolist()),
    "collect_set": ("collect_set({})", lambda s: s.dropna().drop_duplicates().tolist()),
    "approx_count_distinct": ("approx_count_distinct({})", lambda s: s.nunique()),
    "first": ("first({})", lambda s: s.iloc[0]),
    "last": ("last({})", lambda s: s.iloc[-1]),
}


def _aggregates(agg: Any, others: list[Any]) -> list[tuple[Any, str]]:
    """Columns and what to make of each."""
    if isinstance(agg, str):
        found = [(column, agg) for column in others]
    elif isinstance(agg, list):
        found = [(column, name) for name in agg for column in others]
    elif isinstance(agg, dict):
        if not all(isinstance(names, str | list) for names in agg.values()):
            raise InvalidArgumentError("value in agg should be str or a list of str")
        found = [(column, name) for column, names in agg.items() for name in _listed(names)]
    else:
        raise InvalidArgumentError("agg should be str, list of str, or dict")
    for _, name in found:
        if name not in _AGGREGATES:
            raise InvalidArgumentError(
                f"aggregate {name!r} is not known; there are {', '.join(_AGGREGATES)}"
            )
    return found


def _aggregate(
    frames: list[Any], names: list[str], wanted: list[tuple[Any, str]], join: bool
) -> list[Any]:
    if not frames:
        return []
    pandas = _pandas()
    whole = _whole(frames).reset_index(drop=True)
    if not names:
        return [pandas.DataFrame([dict(_row(whole, wanted))])]
    if not len(whole):
        empty = whole[names].copy()
        for column, name in wanted:
            title = _row(None, [(column, name)])[0][0]
            empty[title] = np.array([], object) if column == "*" else whole[column]
            empty[title] = empty[title].astype(_result_type(name, whole, column))
        return [whole.join(empty.drop(columns=names)) if join else empty]
    groups = list(whole.groupby(names, dropna=False, sort=False))
    rows = [dict(zip(names, key, strict=True)) | dict(_row(f, wanted)) for key, f in groups]
    titles = [*names, *(title for title, _ in _row(None, wanted))]
    made = pandas.DataFrame(rows, columns=titles)
    for name in names:
        made[name] = made[name].astype(whole[name].dtype)
    return [whole.merge(made, how="left", on=names) if join else made]


_RESULTS = {
    "int64": ("count", "approx_count_distinct"),
    "object": ("collect_list", "collect_set"),
    "float64": (
        *("avg", "mean", "stddev", "stddev_pop", "variance", "var_pop", "skewness", "kurtosis"),
    ),
}


def _result_type(name: str, frame: Any, column: Any) -> Any:
    """The dtype of an aggregate, for frames without rows to see it from."""
    found = next((kind for kind, names in _RESULTS.items() if name in names), None)
    return found or frame[column].dtype


def _row(frame: Any, wanted: list[tuple[Any, str]]) -> list[tuple[str, Any]]:
    row = []
    for column, name in wanted:
        title, work = _AGGREGATES[name]
        if column == "*":
            row.append(("count(1)", None if frame is None else len(frame)))
        else:
            row.append((title.format(column), None if frame is None else work(frame[column])))
    return row
