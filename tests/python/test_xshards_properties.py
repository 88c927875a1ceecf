"""What XShards do with any data is what pandas and numpy do with all of it at once."""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import orca
from orca.data import SparkXShards, XShards, readers
from orca.data.pandas import read_csv, read_json, read_parquet

pytestmark = pytest.mark.slow

wide = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with orca.init_orca_context("local", cores=2):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module", autouse=True)
def _small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "_CHUNK", 40)
        yield


# --- frames and how they are divided

TEXTS = st.text(alphabet="abÄ愛😀 ,;\"'\n\t0.-" + string.ascii_letters, max_size=6)
INTS = st.integers(-(2**53), 2**53)
FLOATS = st.floats(width=64, allow_infinity=False)
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "whole": INTS,
    "small": st.integers(-3, 3),
    "float": st.one_of(FLOATS, st.sampled_from([np.nan, 0.0, 1.5, -2.0])),
    "text": st.sampled_from(["", "a", "Ä", "愛", "x y", "b"]),
    "gap": st.sampled_from(["a", "b", None]),
    "flag": st.booleans(),
    "time": st.sampled_from(
        list(pd.date_range("2020-02-28", periods=4, freq="7h", tz="Europe/Berlin"))
    ),
    "kind": st.sampled_from(["low", "high", "none"]),
}


def column(name: str, values: list[Any]) -> pd.Series:
    if name == "time":
        made = pd.Series(values, dtype="datetime64[ns]") if not values else pd.Series(values)
        return made if values else made.dt.tz_localize("Europe/Berlin")
    if name == "kind":
        return pd.Series(pd.Categorical(values, ["low", "high", "none"]))
    kinds = {"whole": "int64", "small": "int32", "float": "float64", "flag": "bool"}
    return pd.Series(values, dtype=kinds.get(name, "str"))


@st.composite
def frames(draw: Any, names: tuple[str, ...] = tuple(CELLS), least: int = 0) -> pd.DataFrame:
    rows = draw(st.integers(least, 12))
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    made = {n: column(n, [draw(CELLS[n]) for _ in range(rows)]) for n in chosen}
    frame = pd.DataFrame(made)
    if rows and draw(st.booleans()):
        frame.index = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))  # type: ignore[assignment]
    return frame


@st.composite
def divided(draw: Any, **options: Any) -> tuple[pd.DataFrame, SparkXShards]:
    """A frame, and the same in shards, some of which may have no rows."""
    frame = draw(frames(**options))
    cuts = sorted(draw(st.lists(st.integers(0, len(frame)), max_size=4)))
    pieces = [frame.iloc[a:b] for a, b in itertools.pairwise([0, *cuts, len(frame)])]
    return frame, SparkXShards([[piece] for piece in pieces])


def whole(found: SparkXShards) -> pd.DataFrame:
    return pd.concat(found.collect(), ignore_index=True)


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.reset_index(drop=True)


def as_rows(frame: pd.DataFrame) -> list[Any]:
    """Rows in an order of their own; a missing value is like another."""
    return sorted(
        tuple("-" if pd.isna(v) else repr(v) for v in row) for row in frame.values.tolist()
    )


def same_rows(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert list(found.columns) == list(expected.columns)
    assert list(map(str, found.dtypes)) == list(map(str, expected.dtypes))
    assert as_rows(found) == as_rows(expected)


# --- files


@st.composite
def csv_frames(draw: Any) -> pd.DataFrame:
    rows = draw(st.integers(0, 15))
    kinds = draw(st.lists(st.sampled_from("itfbgnul"), min_size=1, max_size=4))
    cells = {
        "i": INTS,
        "t": TEXTS,
        "f": FLOATS,
        "b": st.booleans(),
        "g": st.one_of(st.none(), INTS),
        "n": st.one_of(st.none(), st.booleans()),
        "u": st.integers(0, 2**64 - 1),
        "l": st.integers(2**62, 2**70),
    }
    names = draw(st.lists(TEXTS, min_size=len(kinds), max_size=len(kinds), unique=True))
    return pd.DataFrame(
        {
            n: pd.Series([draw(cells[k]) for _ in range(rows)], dtype=object)
            for n, k in zip(names, kinds, strict=True)
        }
    )


def looks_like_time(value: Any) -> bool:
    return (
        isinstance(value, str)
        and any(c.isdigit() for c in value)
        and ("-" in value or ":" in value)
    )


@wide
@given(
    frame=csv_frames(),
    newline=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
    quoting=st.sampled_from([0, 1]),
    sep=st.sampled_from([",", ";", "\t"]),
)
def test_a_csv_file_is_what_pandas_reads(
    folder: Path, frame: pd.DataFrame, newline: str, mark: bool, quoting: int, sep: str
) -> None:
    path = folder / "a.csv"
    text = frame.to_csv(index=False, lineterminator=newline, quoting=quoting, sep=sep)
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + text.encode())
    options = {"sep": sep}
    expected = pd.read_csv(path, low_memory=False, **options)
    found = read_csv(str(path), **options)
    made = whole(found)
    assert list(made.columns) == list(expected.columns)
    pd.testing.assert_frame_equal(made, expected, check_dtype=bool(len(frame)))
    assert len({tuple(map(str, shard.dtypes)) for shard in found.collect()}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "a,b",
        "a,b\n",
        "a,b\r\n",
        "\ufeffa,b\n1,2",
        "a\n1\n\n2\n",
        '"a\nb",c\n1,"x\n\n""y"\n',
    ],
)
def test_small_csv_files_are_what_pandas_reads(folder: Path, text: str) -> None:
    path = folder / "s.csv"
    path.write_bytes(text.encode())
    try:
        expected = pd.read_csv(path)
    except pd.errors.EmptyDataError:
        with pytest.raises(orca.errors.InvalidArgumentError, match="has no columns"):
            read_csv(str(path))
        return
    pd.testing.assert_frame_equal(whole(read_csv(str(path))), expected)


JSONS = st.one_of(
    st.none(), st.booleans(), INTS, FLOATS.filter(np.isfinite), TEXTS, st.lists(INTS, max_size=3)
)


@wide
@given(
    rows=st.integers(0, 15),
    kinds=st.lists(st.sampled_from("itflg"), min_size=1, max_size=4),
    newline=st.sampled_from(["\n", "\r\n"]),
    data=st.data(),
)
def test_lines_of_json_are_what_pandas_makes_of_the_objects(
    folder: Path, rows: int, kinds: list[str], newline: str, data: Any
) -> None:
    cells = {
        "i": INTS,
        "t": TEXTS,
        "f": FLOATS.filter(np.isfinite),
        "l": st.lists(INTS, max_size=2),
        "g": st.one_of(st.none(), INTS),
    }
    made = [{f"{i}{k}": data.draw(cells[k]) for i, k in enumerate(kinds)} for _ in range(rows)]
    path = folder / "a.json"
    path.write_bytes(
        "".join(json.dumps(row, ensure_ascii=False) + newline for row in made).encode()
    )
    found = whole(read_json(str(path)))
    expected = pd.DataFrame(made)
    assert len(found) == rows
    for name in expected.columns:
        if name.endswith("l"):
            assert [list(x) for x in found[name]] == expected[name].tolist()
        elif expected[name].isna().all():
            assert found[name].isna().all()
        else:
            pd.testing.assert_series_equal(found[name], expected[name], check_dtype=name[-1] != "g")


@wide
@given(frame=frames(), size=st.integers(1, 5), named=st.booleans())
def test_a_parquet_file_is_what_pandas_reads(
    folder: Path, frame: pd.DataFrame, size: int, named: bool
) -> None:
    path = folder / "a.parquet"
    if named:
        frame = frame.rename_axis("row")
    frame.to_parquet(path, row_group_size=size)
    found = read_parquet(str(path))
    expected = pd.read_parquet(path)
    joined = pd.concat(found.collect())
    pd.testing.assert_frame_equal(plain(joined), plain(expected))
    if named and not isinstance(frame.index, pd.RangeIndex):
        assert joined.index.tolist() == expected.index.tolist()
    some = list(frame.columns[:1])
    pd.testing.assert_frame_equal(
        plain(pd.concat(read_parquet(str(path), columns=some).collect())), plain(expected[some])
    )


# --- operations on any shards

ARRAYS = st.sampled_from(
    ["int8", "int64", "uint16", "float16", "float32", "float64", "bool", "str", "M8[s]"]
)


@st.composite
def arrays(draw: Any, least: int = 0) -> np.ndarray[Any, Any]:
    rows = draw(st.integers(least, 9))
    shape = (rows, *draw(st.lists(st.integers(0, 2), max_size=2)))
    values = np.arange(int(np.prod(shape))).reshape(shape)
    kind = draw(ARRAYS)
    return values.astype("int64").astype(kind) if kind == "M8[s]" else values.astype(kind)


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert type(found) is type(expected)
        assert list(found) == list(expected)
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            same(*pair)
    elif isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


@wide
@given(array=arrays(1), shards=st.integers(1, 4), nested=st.booleans())
def test_partitions_are_those_of_array_split(
    array: np.ndarray[Any, Any], shards: int, nested: bool
) -> None:
    data = {"x": (array, [array[::-1]])} if nested else array
    if len(array) < shards:
        with pytest.raises(orca.errors.InvalidArgumentError, match="is smaller than the total"):
            XShards.partition(data, shards)
        return
    pieces = np.array_split(array, shards)
    back = np.array_split(array[::-1], shards)
    expected = [{"x": (a, [b])} for a, b in zip(pieces, back, strict=True)] if nested else pieces
    same(XShards.partition(data, shards).collect(), list(expected))


SHARDS = st.one_of(
    arrays(),
    st.builds(lambda a: {"x": a, "y": (a, a)}, arrays()),
    frames(),
    st.lists(st.integers(), max_size=3),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.none(),
    st.text(max_size=3),
    st.floats(allow_nan=False),
)


@wide
@given(parts=st.lists(st.lists(SHARDS, max_size=3), max_size=4), wanted=st.integers(1, 4))
def test_shards_of_any_kinds_stay_what_they_are(
    folder: Path, parts: list[list[Any]], wanted: int
) -> None:
    given_ = list(itertools.chain.from_iterable(parts))
    made = SparkXShards(parts)
    assert made.num_partitions() == len(parts)
    same(made.collect(), given_)
    same(made.take(2), given_[:2])
    assert len(made) == sum(len(s) if hasattr(s, "__len__") else 1 for s in given_)
    same(made.transform_shard(lambda shard: shard).collect(), given_)
    same(made.to_lazy().transform_shard(lambda shard: [shard]).collect(), [[s] for s in given_])
    same(made.zip(made).collect(), [(s, s) for s in given_])
    same(
        [s.collect() for s in made.zip(made).split()] or [[]], [given_, given_] if given_ else [[]]
    )
    path = folder / f"p{len(list(folder.iterdir()))}"
    made.save_pickle(str(path))
    same(XShards.load_pickle(str(path), trust=True).collect(), given_)
    if len({type(s) for s in given_}) > 1:
        moved = made.repartition(wanted)
        assert moved.num_partitions() == wanted
        same(moved.collect(), given_)


@wide
@given(array=arrays(), cuts=st.lists(st.integers(0, 9), max_size=3), wanted=st.integers(1, 6))
@example(array=np.zeros((0, 2)), cuts=[], wanted=3)
def test_rows_of_arrays_and_lists_are_divided_anew(
    array: np.ndarray[Any, Any], cuts: list[int], wanted: int
) -> None:
    pieces = np.split(array, sorted(min(cut, len(array)) for cut in cuts))
    moved = SparkXShards([[piece] for piece in pieces]).repartition(wanted)
    assert moved.num_partitions() == wanted
    same(np.concatenate(moved.collect()), array)
    dicts = SparkXShards([[{"a": piece, "b": piece}] for piece in pieces]).repartition(wanted)
    same(np.concatenate([shard["b"] for shard in dicts.collect()]), array)
    lists = SparkXShards([[list(piece)] for piece in pieces]).repartition(wanted)
    assert len(list(itertools.chain.from_iterable(lists.collect()))) == len(array)
    sizes = [sum(map(len, part)) for part in moved._ask(lambda values: values)]
    assert max(sizes) - min(sizes) <= 1


# --- operations on frames


@wide
@given(both=divided(), wanted=st.integers(1, 5))
def test_rows_of_frames_are_divided_anew(both: Any, wanted: int) -> None:
    frame, made = both
    moved = made.repartition(wanted)
    assert [len(part) for part in moved._partitions()] == [1] * wanted
    pd.testing.assert_frame_equal(moved.concat_to_pdf(), frame)
    pd.testing.assert_frame_equal(made.concat_to_pdf(), frame)
    pd.testing.assert_frame_equal(made.head(3), made.first().head(3))


@wide
@given(both=divided(), wanted=st.integers(1, 4), data=st.data())
def test_rows_with_equal_values_meet(both: Any, wanted: int, data: Any) -> None:
    frame, made = both
    name = data.draw(st.sampled_from(list(frame.columns)))
    found = made.partition_by(name, wanted)
    assert found.num_partitions() == wanted
    same_rows(whole(found), plain(frame))
    places = [set(part[name].map(lambda v: "-" if pd.isna(v) else v)) for part in found.collect()]
    assert sum(map(len, places)) == len(set().union(*places))


@wide
@given(both=divided(), data=st.data())
def test_a_sort_is_that_of_all_rows(both: Any, data: Any) -> None:
    frame, made = both
    names = data.draw(st.lists(st.sampled_from(list(frame.columns)), min_size=1, unique=True))
    ups = [data.draw(st.booleans()) for _ in names]
    expected = plain(frame)
    for name, up in reversed(list(zip(names, ups, strict=True))):
        expected = expected.sort_values(
            name, ascending=up, na_position="first" if up else "last", kind="stable"
        )
    pd.testing.assert_frame_equal(whole(made.sort_values(names, ups)), plain(expected))


@wide
@given(both=divided())
def test_distinct_rows_come_once(both: Any) -> None:
    frame, made = both
    same_rows(whole(made.deduplicates()), plain(frame.drop_duplicates()))


NUMBERS = ("whole", "small", "float", "text", "kind")


@wide
@given(both=divided(names=NUMBERS), data=st.data())
def test_groups_are_those_of_all_rows(both: Any, data: Any) -> None:
    frame, made = both
    keys = data.draw(
        st.lists(st.sampled_from(list(frame.columns)), min_size=1, max_size=2, unique=True)
    )
    others = [name for name in frame.columns if name in ("small", "float") and name not in keys]
    counted = whole(made.group_by(keys, {"*": "count"}))
    groups = plain(frame).groupby(keys, dropna=False, observed=True)
    same_rows(counted, groups.size().reset_index(name="count(1)"))
    names = ["max", "min", "count", "avg", "first", "last", "stddev", "var_pop"]
    for other in others:
        found = whole(made.group_by(keys, {other: names})).set_index(keys)
        by = groups[other]
        expected = pd.DataFrame(
            {
                f"max({other})": by.max(),
                f"min({other})": by.min(),
                f"count({other})": by.count(),
                f"avg({other})": by.mean(),
                f"first({other})": by.nth(0)
                .set_axis(by.ngroup().drop_duplicates())
                .sort_index()
                .to_numpy()
                if len(frame)
                else by.max(),
                f"stddev({other})": by.std(),
                f"var_pop({other})": by.var(ddof=0),
            }
        )
        assert len(found) == len(expected)
        for title in (
            f"max({other})",
            f"min({other})",
            f"count({other})",
            f"avg({other})",
            f"var_pop({other})",
        ):
            pd.testing.assert_series_equal(
                found[title].sort_values(ignore_index=True),
                expected[title].sort_values(ignore_index=True),
                check_names=False,
                check_dtype=bool(len(frame)),
            )
        joined = whole(made.group_by(keys, {other: "max"}, join=True))
        same_rows(joined[list(frame.columns)], plain(frame))
    assert len(whole(made.group_by(agg={frame.columns[0]: "count"}))) == 1


@wide
@given(
    left=divided(names=("small", "float", "text")),
    right=divided(names=("small", "float", "text")),
    how=st.sampled_from(["inner", "left", "right", "outer"]),
)
def test_a_merge_is_that_of_all_rows(left: Any, right: Any, how: str) -> None:
    (a, mine), (b, theirs) = left, right
    on = [name for name in a.columns if name in b.columns]
    if not on:
        with pytest.raises(orca.errors.InvalidArgumentError, match="no column in common"):
            mine.merge(theirs, how=how)
        return
    expected = plain(a).merge(plain(b), how=how, on=on)
    found = whole(mine.merge(theirs, how=how))
    assert list(found.columns) == list(expected.columns)
    floats = {n: "float64" for n in expected.columns if n != "text"}
    same_rows(found.astype(floats), expected.astype(floats))


@wide
@given(both=divided(), seed=st.integers(0, 3), frac=st.sampled_from([0.0, 0.5, 1.0]))
def test_samples_and_columns_are_those_of_each_shard(both: Any, seed: int, frac: float) -> None:
    frame, made = both
    shards = made.collect()
    name = frame.columns[0]
    for found, shard in zip(made.sample(frac, random_state=seed).collect(), shards, strict=True):
        pd.testing.assert_frame_equal(found, shard.sample(frac=frac, random_state=seed))
    for found, shard in zip(made.select([name]).collect(), shards, strict=True):
        pd.testing.assert_frame_equal(found, shard[[name]])
    for found, shard in zip(made[name].collect(), shards, strict=True):
        pd.testing.assert_series_equal(found, shard[name])
    kept = frame.columns[~frame.isna().any()]
    pd.testing.assert_frame_equal(made.drop_missing_value().concat_to_pdf(), frame[kept])


@wide
@given(both=divided())
def test_answers_are_those_of_all_rows(both: Any) -> None:
    frame, made = both
    nulls = made.get_null_sum()
    assert dict(zip(nulls["col"], nulls["total"], strict=True)) == frame.isna().sum().to_dict()
    described = made.describe().set_index("summary")
    for name in frame.columns:
        values = frame[name].dropna()
        values = values.astype(object) if name == "kind" else values
        assert described.loc["count", name] == len(values)
        if name in ("whole", "small", "float", "flag") and len(values):
            with np.errstate(all="ignore"):
                assert described.loc["mean", name] == pytest.approx(
                    values.mean(),
                    nan_ok=True,
                    rel=1e-9,
                    abs=1e-12 * abs(values.astype("float64")).max(),
                )
                spread = values.astype("float64").std()
                assert np.isinf(spread) or described.loc["stddev", name] == pytest.approx(
                    spread,
                    nan_ok=True,
                    rel=1e-6,
                    abs=1e-6 * max(1.0, abs(values.astype("float64")).max()),
                )
        largest = values.max() if len(values) else None
        assert described.loc["max", name] == largest or (
            largest is None and pd.isna(described.loc["max", name])
        )
        if name != "kind":
            assert made.max_values(name) == largest
        found = made[name].unique()
        expected = frame[name].unique()
        assert len(found) == len(expected)
        assert {repr(v) for v in found if not pd.isna(v)} == {
            repr(v) for v in np.asarray(expected) if not pd.isna(v)
        }


@wide
@given(both=divided(names=("whole", "small", "float", "flag")), data=st.data())
def test_columns_become_features_and_labels(both: Any, data: Any) -> None:
    frame, made = both
    names = data.draw(st.lists(st.sampled_from(list(frame.columns)), min_size=1))
    found = made.assembleFeatureLabelCols(names, names[:1]).collect()
    expected = np.stack([frame[name].to_numpy() for name in names], axis=1)
    same(np.concatenate([shard["x"] for shard in found]), expected)
    labels = frame[names[0]].to_numpy()[:, None]
    same(np.concatenate([shard["y"] for shard in found]), labels)
    pairs = SparkXShards([[(row, row[:1]) for row in shard["x"]] for shard in found])
    if len(frame):
        stacked = pairs.stack_feature_labels().collect()
        with np.errstate(over="ignore"):
            same(np.concatenate([shard["x"] for shard in stacked]), expected.astype(np.float32))


def test_columns_of_several_levels_are_refused_with_a_sentence() -> None:
    frame = pd.DataFrame(np.ones((2, 2)), columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)]))
    made = SparkXShards([[frame]])
    for call in (made.deduplicates, made.sort_values, made.describe, made.get_null_sum):
        with pytest.raises(
            orca.errors.InvalidArgumentError, match=r"these have 2: give frame\.set_axis"
        ):
            call()
    twice = SparkXShards([[pd.DataFrame([[1, 2]], columns=["a", "a"])]])
    with pytest.raises(
        orca.errors.InvalidArgumentError, match=r"several columns have the names \['a'\]"
    ):
        twice.sort_values("a")
    mixed = SparkXShards([[pd.DataFrame({"a": [1]})], [{"a": np.ones(1)}]])
    with pytest.raises(
        orca.errors.InvalidArgumentError, match=r"there are pandas.*DataFrame, builtins.dict"
    ):
        mixed.describe()
    with pytest.raises(orca.errors.FailedPreconditionError, match="there is no shard"):
        SparkXShards([[], []]).first()
