"""Files become XShards of frames: the rows that pandas reads, in the order of the files."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import orca
from orca.data import readers
from orca.data.pandas import read_csv, read_json, read_parquet
from orca.errors import InvalidArgumentError


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with orca.init_orca_context("local", cores=2):
        yield


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_CHUNK", 64)


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "id": np.arange(rows),
            "value": random.normal(size=rows).round(3),
            "name": random.choice(["ä,b", 'say "x"', "plain"], rows),
            "flag": random.choice([True, False], rows),
        }
    )


def whole(shards: Any) -> pd.DataFrame:
    return pd.concat(shards.collect(), ignore_index=True)


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("rows", [0, 1, 7, 200])
def test_a_file_is_read_in_parts_as_pandas_reads_it_whole(rows: int, tmp_path: Path) -> None:
    frame = table(rows)
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = read_csv(str(tmp_path / "a.csv"))
    assert (found.num_partitions() > 2) == (rows == 200)
    assert list(whole(found).columns) == list(frame.columns)
    if rows:
        pd.testing.assert_frame_equal(whole(found), frame, check_dtype=rows > 1)


@pytest.mark.usefixtures("_small_chunks")
def test_columns_have_one_type_in_all_parts(tmp_path: Path) -> None:
    lines = ["whole,mixed,text,gap"]
    lines += [f"{i},{i},{i},{i}" for i in range(40)] + ["7,1.5,1e3x,"] + ["8,2,0012,9"] * 20
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    found = read_csv(str(tmp_path / "a.csv"))
    kinds = {tuple(map(str, shard.dtypes)) for shard in found.collect()}
    assert kinds == {("int64", "float64", "str", "float64")}
    assert whole(found)["text"].iloc[-1] == "0012"
    assert np.isnan(whole(found)["gap"].iloc[40])


def test_folders_patterns_and_lists_are_read_in_order(tmp_path: Path) -> None:
    frames = [table(5, seed) for seed in range(3)]
    for i, frame in enumerate(frames):
        frame.to_csv(tmp_path / f"{i}.csv", index=False)
    (tmp_path / "_SUCCESS").touch()
    expected = pd.concat(frames, ignore_index=True)
    for path in (
        str(tmp_path),
        f"{tmp_path}/*.csv",
        [str(tmp_path / f"{i}.csv") for i in range(3)],
    ):
        pd.testing.assert_frame_equal(whole(read_csv(path)), expected)
    pd.testing.assert_frame_equal(whole(read_csv(f"file://{tmp_path}/1.csv")), frames[1])
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        read_csv(str(tmp_path / "nothing.csv"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgumentError, match="The file path is invalid or empty"):
        read_csv(str(tmp_path / "empty"))


def test_options_are_those_of_pandas(tmp_path: Path) -> None:
    path = str(tmp_path / "a.csv")
    Path(path).write_text("# note\na;b;c\n1;x;2.5\n# more\n2;y;3.5\n")
    options = {"sep": ";", "comment": "#"}
    assert whole(read_csv(path, **options)).to_dict("list") == {
        "a": [1, 2],
        "b": ["x", "y"],
        "c": [2.5, 3.5],
    }
    assert list(whole(read_csv(path, header=None, **options)).columns) == ["0", "1", "2"]
    named = whole(read_csv(path, header=0, names=["p", "q", "r"], **options))
    assert list(named.columns) == ["p", "q", "r"]
    assert list(whole(read_csv(path, usecols=[0, 2], **options)).columns) == ["a", "c"]
    assert list(whole(read_csv(path, usecols=["b"], **options)).columns) == ["b"]
    assert list(whole(read_csv(path, usecols=lambda n: n > "a", **options)).columns) == ["b", "c"]
    assert str(whole(read_csv(path, dtype={"a": "float32"}, **options))["a"].dtype) == "float32"
    assert str(whole(read_csv(path, dtype={2: "str"}, **options))["c"].dtype) in ("str", "object")
    assert isinstance(read_csv(path, usecols=["a"], squeeze=True, **options).first(), pd.Series)
    assert read_csv(path, index_col="b", **options).first().index.tolist() == ["x", "y"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"header": 3}, "Unknown header argument 3"),
        ({"names": ["a", "a", "b"], "header": 0}, "Found duplicate names"),
        ({"names": ["a"], "header": 0}, r"The number of names \[1\] does not match"),
        ({"names": ["x"], "usecols": [0, 1], "header": 0}, "Passed names did not match usecols"),
        ({"usecols": ["a", 1]}, "usecols must only be list-like of all strings"),
        ({"usecols": ["zz"]}, "columns expected but not found"),
        ({"dtype": {"zz": "int"}}, "column to be set type is not in current dataframe"),
        ({"dtype": {9: "int"}}, "column index to be set type is not in current dataframe"),
        ({"comment": "##"}, "Only length-1 comment characters supported"),
        ({"mangle_dupe_cols": False}, "mangle_dupe_cols can only be True"),
        ({"parse_dates": True}, "parse_dates can only be False"),
        ({"skipfooter": 1}, "read_csv does not know skipfooter with the spark backend"),
    ],
)
def test_options_that_do_not_fit_are_named(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(InvalidArgumentError, match=message):
        read_csv(str(tmp_path / "a.csv"), **options)


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("at", [2, 3, 20, 42, 51])
def test_f36_a_damaged_line_is_named_with_its_file(at: int, tmp_path: Path) -> None:
    lines = ["a,b"] + [f"{i},{i}" for i in range(50)]
    lines[at - 1] = "1,2,3"
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with pytest.raises(
        orca.errors.WorkerFailedError, match=rf"a\.csv: .*line {at}: Expected 2 columns"
    ):
        read_csv(str(tmp_path / "a.csv"))


@pytest.mark.usefixtures("_small_chunks")
def test_lines_of_json_are_rows(tmp_path: Path) -> None:
    rows = [{"a": i, "b": f"t{i}", "c": None if i == 3 else i / 2} for i in range(30)]
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, rows)))
    found = read_json(str(tmp_path / "a.json"))
    assert found.num_partitions() > 2
    pd.testing.assert_frame_equal(whole(found), pd.DataFrame(rows))


def test_groups_of_rows_of_parquet_are_shards(tmp_path: Path) -> None:
    frame = table(100)
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=30)
    found = read_parquet(str(tmp_path / "a.parquet"))
    assert found.num_partitions() == 4
    pd.testing.assert_frame_equal(whole(found), frame)
    some = read_parquet(str(tmp_path), columns=["id", "value"], schema="id INT, value FLOAT")
    assert list(map(str, some.first().dtypes)) == ["int32", "float32"]
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    with pytest.raises(orca.errors.OrcaError, match=r"b\.parquet"):
        read_parquet(str(tmp_path))


@pytest.mark.parametrize("root", ["bigdl.orca", "zoo.orca"])
def test_the_pandas_backend_takes_all_options_of_pandas(root: str, tmp_path: Path) -> None:
    pandas = importlib.import_module(f"{root}.data.pandas")
    context = importlib.import_module(root).OrcaContext
    for i in range(3):
        table(4, i).to_csv(tmp_path / f"{i}.csv", index=False)
    context.pandas_read_backend = "pandas"
    try:
        found = pandas.read_csv(str(tmp_path), nrows=2)
        assert found.num_partitions() == 2
        assert len(whole(found)) == 6
        (tmp_path / "j").mkdir()
        table(3).to_json(tmp_path / "j/a.json")
        assert len(whole(pandas.read_json(str(tmp_path / "j")))) == 3
    finally:
        context.pandas_read_backend = "spark"
    assert isinstance(found, importlib.import_module(f"{root}.data").SparkXShards)
