"""Operations on XShards of frames equal those of pandas on all rows together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import orca
from orca.data import SparkXShards
from orca.errors import InvalidArgumentError


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with orca.init_orca_context("local", cores=2):
        yield


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "key": random.integers(0, 4, rows),
            "name": random.choice(["ä", "b", "c"], rows),
            "value": random.choice([1.5, -2.0, np.nan, 7.0], rows),
        }
    )


def shards(frame: pd.DataFrame, parts: int) -> SparkXShards:
    bounds = np.linspace(0, len(frame), parts + 1).astype(int)
    return SparkXShards([[frame.iloc[a:b]] for a, b in itertools.pairwise(bounds)])


def whole(found: SparkXShards) -> pd.DataFrame:
    return pd.concat(found.collect(), ignore_index=True)


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(list(frame.columns), ignore_index=True)


SIZES = [(0, 1), (0, 3), (1, 1), (1, 3), (5, 7), (60, 1), (60, 4)]


@pytest.mark.parametrize(("rows", "parts"), SIZES)
def test_rows_with_equal_values_meet(rows: int, parts: int) -> None:
    frame = table(rows)
    found = shards(frame, parts).partition_by("key", 3)
    assert found.num_partitions() == 3
    places = [set(part["key"]) for part in found.collect()]
    assert sum(map(len, places)) == len(set().union(*places))
    pd.testing.assert_frame_equal(ordered(whole(found)), ordered(frame))


@pytest.mark.parametrize(("rows", "parts"), SIZES)
@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("names", ["value", ["name", "key"], None])
def test_a_sort_is_that_of_all_rows(rows: int, parts: int, ascending: bool, names: Any) -> None:
    frame = table(rows)
    found = whole(shards(frame, parts).sort_values(names, ascending=ascending))
    listed = list(frame.columns) if names is None else [names] if isinstance(names, str) else names
    position = "first" if ascending else "last"
    expected = frame.sort_values(listed, ascending=ascending, na_position=position)
    pd.testing.assert_frame_equal(
        found[listed].reset_index(drop=True), expected[listed].reset_index(drop=True)
    )
    pd.testing.assert_frame_equal(ordered(found), ordered(frame))


@pytest.mark.parametrize(("rows", "parts"), SIZES)
def test_distinct_rows_come_once(rows: int, parts: int) -> None:
    frame = table(rows)
    found = whole(shards(frame, parts).deduplicates())
    pd.testing.assert_frame_equal(ordered(found), ordered(frame.drop_duplicates()))


@pytest.mark.parametrize(("rows", "parts"), SIZES[2:])
def test_groups_are_those_of_all_rows(rows: int, parts: int) -> None:
    frame = table(rows)
    made = shards(frame, parts)
    found = ordered(whole(made.group_by("key", {"value": ["sum", "count", "avg", "max"]})))
    groups = frame.groupby("key")["value"]
    expected = pd.DataFrame(
        {
            "sum(value)": groups.sum(min_count=1),
            "count(value)": groups.count(),
            "avg(value)": groups.mean(),
            "max(value)": groups.max(),
        }
    ).reset_index()
    pd.testing.assert_frame_equal(found, ordered(expected))
    joined = whole(made.group_by("key", {"value": "sum"}, join=True))
    pd.testing.assert_frame_equal(
        ordered(joined),
        ordered(frame.merge(expected[["key", "sum(value)"]], on="key", how="left")),
    )
    counted = whole(made.group_by(["key", "name"], {"*": "count"}))
    assert counted["count(1)"].sum() == rows
    everything = whole(made.group_by(agg="count"))
    assert everything.loc[0].to_dict() == {
        "count(key)": rows,
        "count(name)": rows,
        "count(value)": frame["value"].count(),
    }


def test_the_sum_of_no_values_is_missing() -> None:
    nan = float("nan")
    made = shards(
        pd.DataFrame({"k": [1, 1, 2, 2], "v": [nan, nan, nan, 3.0], "n": [1, 2, 3, 4]}), 2
    )
    found = ordered(whole(made.group_by("k", ["sum", "sumDistinct"])))
    assert found["sum(v)"].isna().tolist() == found["sum(DISTINCT v)"].isna().tolist()
    assert found["sum(v)"].isna().tolist() == [True, False]
    assert found["sum(v)"].iloc[1] == found["sum(DISTINCT v)"].iloc[1] == 3.0
    assert found["sum(n)"].tolist() == [3, 7]


def test_aggregates_have_the_values_of_their_names() -> None:
    values = pd.Series([1.0, 2.0, 2.0, 7.0])
    made = shards(pd.DataFrame({"k": [1] * 4, "v": values}), 2)
    names = ["stddev", "stddev_pop", "variance", "var_pop", "sumDistinct", "approx_count_distinct"]
    names += ["collect_list", "collect_set", "first", "last", "min", "mean", "skewness", "kurtosis"]
    found = whole(made.group_by("k", names)).iloc[0].to_dict()
    centred = values - 3
    expected = {
        "stddev(v)": values.std(),
        "stddev_pop(v)": values.std(ddof=0),
        "variance(v)": values.var(),
        "var_pop(v)": values.var(ddof=0),
        "sum(DISTINCT v)": 10.0,
        "approx_count_distinct(v)": 3,
        "first(v)": 1.0,
        "last(v)": 7.0,
        "min(v)": 1.0,
        "avg(v)": 3.0,
        "skewness(v)": (centred**3).mean() / values.var(ddof=0) ** 1.5,
        "kurtosis(v)": (centred**4).mean() / values.var(ddof=0) ** 2 - 3,
    }
    assert found.pop("collect_list(v)") == [1.0, 2.0, 2.0, 7.0]
    assert sorted(found.pop("collect_set(v)")) == [1.0, 2.0, 7.0]
    assert {name: found[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@pytest.mark.parametrize("parts", [(1, 1), (3, 2), (2, 5)])
def test_a_merge_is_that_of_all_rows(how: str, parts: tuple[int, int]) -> None:
    left, right = table(20), table(6, seed=1)[["key", "value"]].rename(columns={"value": "other"})
    left["key"] += 2
    found = whole(shards(left, parts[0]).merge(shards(right, parts[1]), how=how, on="key"))
    expected = left.merge(right, how=how, on="key")
    pd.testing.assert_frame_equal(ordered(found), ordered(expected), check_dtype=False)


def test_answers_are_those_of_all_rows() -> None:
    frame = table(50)
    made = shards(frame, 4)
    assert sorted(made["name"].unique()) == ["b", "c", "ä"]
    assert made.max_values("value") == 7.0
    nulls = made.get_null_sum()
    assert dict(zip(nulls["col"], nulls["total"], strict=True)) == frame.isnull().sum().to_dict()
    assert list(made.drop_missing_value().first().columns) == ["key", "name"]
    described = made.describe(["value", "name"]).set_index("summary")
    assert described.loc["mean", "value"] == pytest.approx(frame["value"].mean())
    assert described.loc["stddev", "value"] == pytest.approx(frame["value"].std())
    assert described.loc["count", "name"] == 50
    assert described.loc["max", "name"] == "ä"
    pd.testing.assert_frame_equal(made.concat_to_pdf(), frame)
    pd.testing.assert_frame_equal(made.head(2), frame.head(2))
    assert len(made.sample_to_pdf(0.5, random_state=1)) == pytest.approx(25, abs=2)
    assert list(made.select("key").first().columns) == ["key"]


def test_features_and_labels_become_arrays() -> None:
    frame = table(10).fillna(0)
    made = shards(frame, 3).assembleFeatureLabelCols(["key", "value"], ["key"]).collect()
    x = np.concatenate([shard["x"] for shard in made])
    np.testing.assert_array_equal(x, frame[["key", "value"]].to_numpy())
    assert made[0]["y"].shape[1] == 1
    pairs = SparkXShards([[(np.ones(2), 1), (np.zeros(2), 0)], [(np.ones(2), 1)]])
    stacked = pairs.stack_feature_labels().collect()
    assert [shard["x"].shape for shard in stacked] == [(2, 2), (1, 2)]
    assert stacked[0]["y"].dtype == np.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.partition_by("nothing"), "The partition column is not in the DataFrame"),
        (lambda s: s.partition_by(["key", "name"]), "Only support partition by a column name"),
        (lambda s: s.select("nothing"), "nothing in cols does not exist in SparkXShards"),
        (lambda s: s.group_by("key", "middle"), "aggregate 'middle' is not known"),
        (lambda s: s.group_by([], "sum", join=True), "columns can not be empty if join is True"),
        (lambda s: s.merge([1]), "right should be a SparkXShards"),
        (lambda s: s.unique(), "Currently only support unique"),
        (lambda s: s.stack_feature_labels(), "Currently only support stack_feature_labels"),
        (lambda s: s.assembleFeatureLabelCols("key", ["key"]), "featureCols should be a list"),
    ],
)
def test_what_cannot_be_done_is_named(call: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call(shards(table(4), 2))


def test_operations_of_frames_want_frames() -> None:
    for name in ("sort_values", "deduplicates", "describe", "get_null_sum", "concat_to_pdf"):
        with pytest.raises(InvalidArgumentError, match="XShards of Pandas DataFrame"):
            getattr(SparkXShards([[1]]), name)()
