"""Indices and scales of columns equal those of all rows together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import preprocessing

import orca
from orca.data import SparkXShards
from orca.data.transformer import MinMaxScaler, StandardScaler, StringIndex, StringIndexer
from orca.errors import FailedPreconditionError, InvalidArgumentError


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with orca.init_orca_context("local", cores=2):
        yield


def shards(parts: int = 3) -> tuple[SparkXShards, pd.DataFrame]:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": random.normal(size=20),
            "b": random.integers(0, 9, 20),
            "same": np.ones(20),
            "name": ["x"] * 10 + ["y"] * 7 + ["z"] * 3,
        }
    )
    cuts = np.linspace(0, 20, parts + 1).astype(int)
    made = [[frame[i:j]] for i, j in itertools.pairwise(cuts)]
    return SparkXShards([*made, [frame[:0]]]), frame


def column(found: SparkXShards, name: str) -> np.ndarray:
    return np.array([row for frame in found.collect() for row in frame[name]])


@pytest.mark.parametrize("parts", [1, 3, 7])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-2.0, 3.0)])
def test_ranges_are_those_of_all_rows(parts: int, bounds: tuple[float, float]) -> None:
    made, frame = shards(parts)
    scaler = MinMaxScaler(*bounds, inputCol=["a", "b"], outputCol="s")
    found = column(scaler.fit_transform(made), "s")
    expected = preprocessing.MinMaxScaler(bounds).fit_transform(frame[["a", "b"]])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(column(scaler.transform(made), "s"), expected, atol=1e-12)
    middle = MinMaxScaler(*bounds, inputCol="same", outputCol="s").fit_transform(made)
    np.testing.assert_allclose(column(middle, "s"), sum(bounds) / 2)


@pytest.mark.parametrize("parts", [1, 3, 7])
@pytest.mark.parametrize("with_mean", [True, False])
@pytest.mark.parametrize("with_std", [True, False])
def test_deviations_are_those_of_all_rows(parts: int, with_mean: bool, with_std: bool) -> None:
    made, frame = shards(parts)
    scaler = StandardScaler(with_mean, with_std, inputCol=["a", "b"], outputCol="s")
    values = frame[["a", "b"]].to_numpy(np.float64)
    expected = values - values.mean(0) if with_mean else values
    expected = expected / values.std(0, ddof=1) if with_std else expected
    np.testing.assert_allclose(column(scaler.fit_transform(made), "s"), expected, atol=1e-12)


def test_texts_become_numbers_by_their_frequency() -> None:
    made, _ = shards()
    indexer = StringIndexer("name")
    found = column(indexer.fit_transform(made), "name")
    assert found.tolist() == [1] * 10 + [2] * 7 + [3] * 3
    assert indexer.string_index.to_dict() == {"x": 1, "y": 2, "z": 3}
    other = SparkXShards([[pd.DataFrame({"name": ["z", "new"]})]])
    assert column(indexer.transform(other), "name").tolist() == [3, 0]
    assert StringIndex.from_dict({"p": 4}, "c").to_dict() == {"p": 4}


@pytest.mark.parametrize("made", [MinMaxScaler(inputCol="a", outputCol="s"), StringIndexer("name")])
def test_what_was_not_learned_cannot_be_used(made: Any) -> None:
    with pytest.raises(FailedPreconditionError, match="Please call fit_transform first"):
        made.transform(shards()[0])


def test_columns_must_be_named() -> None:
    with pytest.raises(InvalidArgumentError, match="inputCol and outputCol cannot be empty"):
        StandardScaler().fit_transform(shards()[0])


def test_the_star_of_the_old_module_brings_what_scripts_use() -> None:
    names: dict[str, Any] = {}
    exec("from bigdl.orca.data.transformer import *", names)
    from bigdl.orca import OrcaContext
    from bigdl.orca.data import SparkXShards as OldXShards

    assert names["OrcaContext"] is OrcaContext
    assert names["SparkXShards"] is OldXShards
    assert names["np"] is np
    assert names["MinMaxScaler"] is MinMaxScaler
    assert callable(names["spark_df_to_pd_sparkxshards"])
