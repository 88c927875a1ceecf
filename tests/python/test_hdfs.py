"""Files, shards and copies of trials on a real HDFS: `make hdfs` starts one."""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import orca
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
from orca.data import XShards, file
from orca.data.pandas import read_csv
from orca.errors import FailedPreconditionError

SERVER = os.environ.get("ORCA_HDFS", "")
on_hdfs = pytest.mark.skipif(not SERVER, reason="there is no HDFS; 'make hdfs' starts one")


@pytest.fixture
def folder() -> Iterator[str]:
    path = f"{SERVER}/orca-{uuid.uuid4().hex}"
    file.makedirs(path)
    yield path
    file.rmdir(path)


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    orca.init_orca_context("local", cores=2)
    yield
    orca.stop_orca_context()


@pytest.mark.skipif(
    importlib.util.find_spec("hdfs_native") is not None, reason="hdfs-native is installed"
)
def test_without_a_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR", "JAVA_HOME"):
        monkeypatch.setenv(name, "/nowhere")
    with pytest.raises(FailedPreconditionError, match="pip install hdfs-native fsspec"):
        file.exists("hdfs://nobody.invalid:8020/x")


@on_hdfs
def test_files_are_written_moved_listed_and_removed(folder: str) -> None:
    assert file.can_move(folder)
    file.write_text(f"{folder}/a/one.txt", "1\n 2 \n")
    assert file.open_text(f"{folder}/a/one.txt") == ["1", "2"]
    file.move(f"{folder}/a/one.txt", f"{folder}/a/two.txt")
    assert file.listdir(f"{folder}/a") == ["two.txt"]
    assert not file.exists(f"{folder}/a/one.txt")
    assert file.is_file(f"{folder}/a/two.txt")
    file.rmdir(f"{folder}/a")
    assert file.listdir(folder) == []


@on_hdfs
def test_folders_go_there_and_come_back(folder: str, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 20_000)  # More than a buffer.
    (tmp_path / "deep/b.txt").write_text("b")
    assert file.put_local_dir_tree_to_remote(str(tmp_path), f"{folder}/tree") == 0
    back = tmp_path / "back"
    assert file.get_remote_dir_to_local(f"{folder}/tree", str(back)) == 0
    assert (back / "a.bin").read_bytes() == (tmp_path / "a.bin").read_bytes()
    assert file.open_text(f"{folder}/tree/deep/b.txt") == ["b"]


@on_hdfs
def test_tables_and_shards_are_read_there(folder: str) -> None:
    frame = pd.DataFrame({"a": np.arange(100), "b": np.arange(100) / 4})
    for part in range(2):
        rows = frame.iloc[50 * part : 50 * part + 50]
        file.write_text(f"{folder}/csv/part-{part}.csv", rows.to_csv(index=False))
    found = pd.concat(read_csv(f"{folder}/csv").collect(), ignore_index=True)
    pd.testing.assert_frame_equal(found.sort_values("a", ignore_index=True), frame)
    XShards.partition({"x": np.arange(10)}, num_shards=2).save_pickle(f"{folder}/shards")
    again = XShards.load_pickle(f"{folder}/shards", trust=True).collect()
    assert np.concatenate([part["x"] for part in again]).tolist() == list(range(10))


@on_hdfs
def test_trials_are_copied_there(folder: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    search = AutoEstimator.from_torch(
        model_creator=lambda _config: nn.Linear(2, 1),
        optimizer="SGD",
        loss="MSELoss",
        logs_dir=str(tmp_path),
        name="there",
        remote_dir=f"{folder}/trials",
    )
    search.fit(
        (x, x.sum(1, keepdims=True)),
        epochs=3,
        metric="mse",
        metric_mode="min",
        validation_data=(x, x.sum(1, keepdims=True)),
        n_sampling=3,
        search_space={"lr": hp.uniform(0.01, 0.1), "batch_size": 16},
    )
    for own in tmp_path.glob("there/train_func_*"):
        there = f"{folder}/trials/{own.name}"
        names = sorted(path.name for path in own.iterdir())
        assert file.listdir(there) == names
        for name in names:
            with file.open_input(f"{there}/{name}") as stream:
                assert stream.read() == (own / name).read_bytes(), name
        with file.open_input(f"{there}/best.ckpt") as stream:
            state: dict[str, Any] = torch.load(stream, weights_only=True)
        assert set(state) == {"weight", "bias"}
    assert len(list(tmp_path.glob("there/train_func_*"))) == 3
