"""``orca.data.utils`` and ``orca.data.shard``, through every root."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orca
from orca.data import XShards, utils
from orca.errors import InvalidArgumentError

BATCHES = st.integers(0, 4).flatmap(
    lambda rows: st.sampled_from(
        [
            np.arange(rows),
            {"a": np.arange(rows), "b": np.ones((rows, 2))},
            (np.arange(rows), np.ones((rows, 2))),
            [np.arange(rows)],
        ]
    )
)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(batch=BATCHES, times=st.integers(1, 3))
def test_batches_are_joined_and_taken_apart(batch: Any, times: int) -> None:
    joined = utils.combine([batch] * times)
    size = utils.get_size(batch)
    assert type(joined) is type(batch)
    assert utils.get_size(joined) == size * times
    for i in range(size * times):
        mine, theirs = utils.index_data(joined, i), utils.index_data(batch, i % size)
        np.testing.assert_equal(mine, theirs)


@pytest.mark.parametrize(
    "call", [lambda x: utils.combine([x]), utils.get_size, lambda x: utils.index_data(x, 0)]
)
def test_what_is_no_batch_is_named(call: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="please check your input: it is a int"):
        call(3)


def test_partitions_become_data_and_labels() -> None:
    shards = [{"x": (np.arange(2), np.ones(2)), "y": np.arange(2)}] * 2
    data, label = utils.partition_get_data_label(iter(shards))
    assert isinstance(data, tuple)
    assert data[0].tolist() == label.tolist() == [0, 1, 0, 1]
    data, label = utils.partition_get_data_label(shards, allow_tuple=False)
    assert isinstance(data, list)
    assert isinstance(label, np.ndarray)
    data, label = utils.partitions_get_data_label([shards, shards], allow_list=False)
    assert (type(data), len(label)) == (tuple, 8)
    only_x = [{"x": [np.arange(2)]}]
    data, label = utils.partition_get_data_label(only_x, allow_list=False, has_label=False)
    assert (type(data), label) == (tuple, None)


def test_shards_become_rows() -> None:
    shard = {"x": (np.arange(6).reshape(2, 3), np.arange(2)), "y": np.array([7, 8])}
    assert utils.get_spec()(shard) == ([(np.int64, (3,)), (np.int64, ())], [(np.int64, ())])
    rows = list(utils.flatten_xy()(shard))
    assert (rows[1][0][0].tolist(), rows[1][1]) == ([3, 4, 5], [8])
    samples = list(utils.xshard_to_sample(shard))
    assert [len(sample.features) for sample in samples] == [2, 2]
    assert samples[1].feature.to_ndarray().tolist() == [3, 4, 5]
    assert samples[1].label.to_ndarray().tolist() == [8]
    without = next(utils.xshard_to_sample({"x": np.ones((1, 2))}))
    assert without.label.to_ndarray().tolist() == [-1]
    for wrong, message in (
        ([1], "each shard should be an dict"),
        ({"y": 1}, "key x should in each shard"),
        ({"x": [1]}, "value of x and y should be a ndarray"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            utils.check_type_and_convert(wrong)


def test_files_and_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    assert utils.extract_one_path(str(tmp_path)) == [f"{tmp_path}/a.csv"]
    assert utils.extract_one_path(f"file://{tmp_path}/a.csv") == [f"file://{tmp_path}/a.csv"]
    assert utils.read_pd_file(tmp_path / "a.csv", "csv")["a"][0] == 1
    with pytest.raises(InvalidArgumentError, match="Unsupported file type: xml"):
        utils.read_pd_file(tmp_path / "a.csv", "xml")
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        utils.extract_one_path(str(tmp_path / "b"))
    assert utils.get_class_name([]) == "list"
    assert utils.get_class_name(np.ones(1)) == "numpy.ndarray"


@pytest.mark.parametrize("root", ["orca", "bigdl.orca", "zoo.orca"])
def test_modules_have_the_names_of_the_originals(root: str) -> None:
    data = importlib.import_module(f"{root}.data")
    shard = importlib.import_module(f"{root}.data.shard")
    assert (shard.XShards, shard.SparkXShards) == (data.XShards, data.SparkXShards)
    assert shard.SharedValue is data.SharedValue
    names = importlib.import_module(f"{root}.data.utils")
    assert names.combine is utils.combine
    assert set(utils.__all__) <= set(dir(names))


def test_every_worker_finds_a_partition() -> None:
    with orca.init_orca_context("local", cores=2):
        rows = np.arange(12).reshape(6, 2)
        shards = XShards.partition({"x": rows}, num_shards=2)
        assert utils.process_spark_xshards(shards, 1) is shards
        more = utils.process_spark_xshards(shards, 3)
        assert more.num_partitions() == 3
        found = np.concatenate([shard["x"] for shard in more.collect()])
        np.testing.assert_array_equal(found[np.argsort(found[:, 0])], rows)
        with pytest.raises(InvalidArgumentError, match="num_workers 0 is not positive"):
            utils.process_spark_xshards(shards, 0)


def test_without_tensorflow_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match="needs TensorFlow; run 'pip install tensorflow'"):
        utils.partitions_get_tf_dataset([[{"x": np.ones(2)}]], has_label=False)


def test_partitions_become_a_dataset_of_tensorflow() -> None:
    pytest.importorskip("tensorflow")
    shards = [[{"x": [np.arange(3), np.ones((3, 2))], "y": np.arange(3) * 2}], []]
    rows = list(utils.partitions_get_tf_dataset(shards))
    assert [(int(x), y.shape, int(z)) for (x, y), z in rows] == [(i, (2,), 2 * i) for i in range(3)]
    alone = utils.partitions_get_tf_dataset([[{"x": np.arange(2)}]], has_label=False)
    assert [int(x) for x in alone] == [0, 1]


def test_the_examples_in_the_docstrings_run() -> None:
    assert doctest.testmod(utils).failed == 0
