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
from orca.data import readers, records
from orca.data.pandas import read_csv, read_json, read_parquet
from orca.errors import InvalidArgumentError, UnavailableError


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
    assert (found.num_partitions() > 2) == (rows > 1)
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


LARGE = [
    [2**53 + 1, ""],
    ["", *range(40), 2**62 + 1],
    [2**53 + 1, *range(40), ""],
    [2**63],
    [2**64 - 1, 0, 7],
    [1, *range(2**63 - 30, 2**63 + 30)],
    [-1, *range(40), 2**63],
    [2**63, *range(40), -1],
    [2**64],
    [-(2**63) - 1],
    [2**64, *range(40)],
    [*range(40), -1, -(2**70)],
    [-1, *range(40), 10**75],
    [*range(40), -(10**400)],
    [2**64, "", *range(40)],
    [*range(40), 2**63, 1.5],
    [2**63, *range(40), 1e20],
    [1.5, *range(40), 2**64],
    ["x", *range(40), 2**64],
]


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("values", LARGE, ids=str)
def test_whole_numbers_beyond_an_int64_are_those_of_pandas(
    values: list[Any], in_parts: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not in_parts:
        monkeypatch.setattr(readers, "_CHUNK", 1 << 20)
    path = str(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"{value},1\n" for value in values))
    found = read_csv(path)
    assert (found.num_partitions() > 2) == (in_parts and len(values) > 3)
    expected = pd.read_csv(path, low_memory=False)
    pd.testing.assert_frame_equal(whole(found), expected)
    assert list(map(type, whole(found)["a"])) == list(map(type, expected["a"]))


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("first", [[2**63, ""], ["", *range(40), 2**63], [2**63, *range(40), ""]])
def test_where_one_is_missing_whole_numbers_beyond_an_int64_are_texts(
    first: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"{value},1\n" for value in first))
    found = whole(read_csv(str(tmp_path / "a.csv")))["a"]
    assert found.dtype == "str"
    assert found.fillna("").tolist() == list(map(str, first))
    assert found.isna().sum() == 1  # pandas has "" there.


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
        orca.errors.UnavailableError, match=rf"a\.csv: .*line {at}: Expected 2 columns"
    ):
        read_csv(str(tmp_path / "a.csv"))


def refused(path: Path, data: bytes, read: Any = read_csv, **options: Any) -> str:
    """What is said of a damaged file; whether it is read in one piece or in many makes no difference."""
    path.write_bytes(data)
    texts = []
    for size in (1 << 20, 64):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(readers, "_CHUNK", size)
            with pytest.raises(orca.errors.OrcaError) as caught:
                read(str(path), **options)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    return texts[0]


ROWS = b"".join(b"%d,%d\n" % (i, i) for i in range(30))


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (b'a,b\n1,"x\ny"\n' + ROWS + b"7\n", {}, "line 34: Expected 2 columns, got 1: 7"),
        (b"\n\na,b\n" + ROWS + b"7,8,9\n", {}, "line 34: Expected 2 columns, got 3: 7,8,9"),
        (
            b"a,b\n" + ROWS + b"1,x\n",
            {"dtype": {"b": "int32"}},
            "line 32, column 'b': 'x' is no int32; mend it, or give another dtype",
        ),
        (
            b"a,b\r\n" + ROWS + b"1,x\r\n",
            {"dtype": float},
            "line 32, column 'b': 'x' is no double; mend it",
        ),
        (
            b"a,b\n" + ROWS + b"1,\n",
            {"dtype": {"b": int}},
            "line 32, column 'b': a missing value is no int64",
        ),
        (b"a,b\n" + ROWS + b"1,999\n", {"dtype": {"b": "int8"}}, "column 'b': '999' is no int8"),
        (
            b"a,b\n" + b"1,2020-01-01\n" * 30 + b"1,x\n",
            {"dtype": {"b": "datetime64[ns]"}},
            "line 32, column 'b': 'x' is no datetime64[ns]",
        ),
        (
            b"a,b\n" + ROWS + b'1,"x\n' + ROWS,
            {},
            'line 32: a quote (") begins here and does not end; mend it',
        ),
        (b"a,b\n" + ROWS + b"1,\xff\n", {}, "line 32, column 'b': b'\\xff' is no UTF-8"),
    ],
)
def test_f36_damaged_csv_files_are_refused_with_file_line_and_column(
    data: bytes, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert f"{tmp_path}/a.csv: " in (text := refused(tmp_path / "a.csv", data, **options))
    assert message in text


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (b'{"a": 1, "b": "cut', "line 31, column 15: "),
        (b'{"a": 1, "b": [1, 2', "line 31, column "),
        (b"[1, 2]", "line 31: [1, 2] is no object; give one a line"),
        (b'{"a": "x", "b": 3}', "line 31: "),
    ],
)
def test_f36_damaged_json_files_are_refused_with_file_and_line(
    last: bytes, message: str, tmp_path: Path
) -> None:
    rows = b"".join(b'{"a": %d, "b": %d}\n' % (i, i) for i in range(30))
    (tmp_path / "a.json").write_bytes(rows + last)
    with pytest.raises(orca.errors.OrcaError) as caught:
        read_json(str(tmp_path / "a.json"))
    assert f"{tmp_path}/a.json: {message}" in str(caught.value)


def test_f36_a_value_of_json_that_does_not_fit_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": "1"}\n\n{"a": "x"}\n')
    with pytest.raises(orca.errors.OrcaError, match=r"a\.json: line 3, column 'a': 'x' is no int"):
        read_json(str(tmp_path / "a.json"), dtype={"a": "int64"})


def test_options_of_sparks_parquet_reader_are_said_to_have_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from bigdl.orca.data.pandas import read_parquet as read_of_bigdl

    path = tmp_path / "a.parquet"
    pd.DataFrame({"a": [1, 2]}).to_parquet(path, index=False)
    with pytest.raises(InvalidArgumentError, match="mergeSchema: options of Spark's Parquet"):
        read_parquet(str(path), mergeSchema=True)
    assert len(whole(read_of_bigdl(str(path), mergeSchema=True))) == 2
    assert "mergeSchema: options of Spark's Parquet reader have no effect" in caplog.text


def test_f36_damaged_parquet_files_are_refused_with_rows_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame({"a": np.arange(1000), "b": np.random.default_rng(0).normal(size=1000)})
    frame.to_parquet(path, row_group_size=300, index=False, compression="zstd")
    parquet = importlib.import_module("pyarrow.parquet")
    column = parquet.ParquetFile(path).metadata.row_group(1).column(1)
    begin = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    middle = begin + column.total_compressed_size // 2
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)
    with pytest.raises(orca.errors.OrcaError, match=r"a\.parquet: rows 300 to 599, column 'b': "):
        read_parquet(str(path))
    assert len(whole(read_parquet(str(path), columns=["a"]))) == 1000
    path.write_bytes(data[:-20])
    with pytest.raises(orca.errors.OrcaError, match=r"a\.parquet: .*its footer is damaged, or"):
        read_parquet(str(path))
    frame.to_parquet(path, index=False)
    with pytest.raises(InvalidArgumentError, match=r"a\.parquet has no column 'c'; it has \['a'"):
        read_parquet(str(path), columns=["c"])


# --- what property tests found


def test_a_parquet_file_without_rows_has_columns(tmp_path: Path) -> None:
    pd.DataFrame({"a": np.arange(0), "b": [""][:0]}).to_parquet(tmp_path / "a.parquet")
    found = read_parquet(str(tmp_path / "a.parquet"))
    assert list(whole(found).columns) == ["a", "b"]


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("b,a\n1,2\n")
    with pytest.raises(
        InvalidArgumentError, match=r"b\.csv has the columns \['b', 'a'\], and the first"
    ):
        read_csv(str(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "a,a,,a.1\n1,2,3,4\n",
        "a\n0x10\n0x11\n",
        "a\n12:30:00\n",
        "a\nTrue\n1\n",
        'a,b\n"NA",None\n"",<NA>\n',
        "a,b\n1,\n2,\n",
        "a;b\n",
    ],
)
def test_values_and_names_are_those_of_pandas(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    expected = pd.read_csv(tmp_path / "a.csv")
    pd.testing.assert_frame_equal(whole(read_csv(str(tmp_path / "a.csv"))), expected)


def test_texts_that_look_like_numbers_stay_texts_when_asked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n007,1\n1.50,2\n")
    for dtype in (str, "str", {"a": "object", "b": "str"}):
        assert whole(read_csv(str(tmp_path / "a.csv"), dtype=dtype))["a"].tolist() == [
            "007",
            "1.50",
        ]


def test_types_of_a_schema_belong_to_columns_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    found = whole(read_csv(str(tmp_path / "a.csv"), header=0, names="x DOUBLE, y STRING"))
    assert (list(found.columns), found["x"][0], found["y"][0]) == (["x", "y"], 1.0, "2")
    assert found["x"].dtype == "float64"


@pytest.mark.usefixtures("_small_chunks")
def test_objects_may_lack_keys_anywhere(tmp_path: Path) -> None:
    rows = [{"a": i} for i in range(20)] + [{"b": [i], "a": i} for i in range(20)]
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, rows)))
    found = read_json(str(tmp_path / "a.json"))
    assert {tuple(shard.columns) for shard in found.collect()} == {("a", "b")}
    assert whole(found)["a"].tolist() == [row["a"] for row in rows]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_files_are_one_piece(suffix: str, tmp_path: Path) -> None:
    if suffix == ".zst":
        raw = importlib.import_module("pyarrow").compress(b"a,b\n1,2\n", "zstd", asbytes=True)
        (tmp_path / "a.csv.zst").write_bytes(raw)
    else:
        pd.DataFrame({"a": [1], "b": [2]}).to_csv(tmp_path / f"a.csv{suffix}", index=False)
    assert whole(read_csv(str(tmp_path / f"a.csv{suffix}"))).to_dict("list") == {"a": [1], "b": [2]}


@pytest.mark.parametrize(
    ("name", "remedy"), [("a.csv.gz", "unpack the file"), ("a.csv", "do not end")]
)
def test_more_than_arrow_takes_at_once_is_named(
    name: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_MOST", 9)
    message = f"^{name}: 10 bytes are to be read at once, and 9 can be; .*{remedy}"
    for text in (records.CsvText(",", '"', None, None, False), records.JsonText()):
        with pytest.raises(UnavailableError, match=message):
            text.table(records.Piece(name, 0, 10), b'{"a": 12}\n', {})


@pytest.mark.usefixtures("_small_chunks")
def test_lines_of_json_are_rows(tmp_path: Path) -> None:
    rows = [{"a": i, "b": f"t{i}", "c": None if i == 3 else i / 2} for i in range(30)]
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, rows)))
    found = read_json(str(tmp_path / "a.json"))
    assert found.num_partitions() > 2
    pd.testing.assert_frame_equal(whole(found), pd.DataFrame(rows))


def test_folders_of_keys_and_values_are_columns_of_parquet(tmp_path: Path) -> None:
    for year, town in ((2024, "Bonn"), (2024, "Sao%20Paulo"), (2025, "7")):
        folder = tmp_path / f"year={year}" / f"town={town}"
        folder.mkdir(parents=True)
        pd.DataFrame({"a": [year, year + 1]}).to_parquet(folder / "part-0.parquet", index=False)
        (folder / "_metadata").touch()
    (tmp_path / "_SUCCESS").touch()
    found = whole(read_parquet(str(tmp_path)))
    assert list(found.columns) == ["a", "year", "town"]
    assert found["a"].tolist() == [2024, 2025, 2024, 2025, 2025, 2026]
    assert found["year"].tolist() == [2024] * 4 + [2025] * 2
    assert found["year"].dtype == np.int32
    assert found["town"].tolist() == ["Bonn", "Bonn", "Sao Paulo", "Sao Paulo", "7", "7"]
    assert whole(read_parquet(str(tmp_path), columns=["town", "a"])).columns.tolist() == [
        "town",
        "a",
    ]
    assert whole(read_parquet(str(tmp_path), columns=["year"]))["year"].sum() == 2024 * 4 + 2025 * 2
    assert whole(read_parquet(str(tmp_path), schema="year BIGINT"))["year"].dtype == np.int64
    below = whole(read_parquet(str(tmp_path / "year=2025")))
    assert below["town"].tolist() == [7, 7]
    assert whole(read_parquet(str(tmp_path / "year=2025" / "town=7"))).columns.tolist() == ["a"]
    with pytest.raises(
        InvalidArgumentError, match=r"has no column 'month'; it has .*'year', 'town'"
    ):
        read_parquet(str(tmp_path), columns=["month"])
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "odd.parquet", index=False)
    with pytest.raises(InvalidArgumentError, match=r"odd\.parquet has the folders \[\] above it"):
        read_parquet(str(tmp_path))


def test_a_folder_without_a_value_is_a_hole(tmp_path: Path) -> None:
    for value in ("1", "__HIVE_DEFAULT_PARTITION__", str(1 << 40)):
        (tmp_path / f"k={value}").mkdir()
        pd.DataFrame({"a": [0]}).to_parquet(tmp_path / f"k={value}" / "a.parquet", index=False)
    found = whole(read_parquet(str(tmp_path)))["k"]
    assert found.dtype == np.float64
    assert found.isna().sum() == 1
    assert sorted(found.dropna()) == [1, 1 << 40]


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


@pytest.mark.parametrize("root", ["bigdl", "zoo"])
def test_what_is_no_text_is_named_in_the_words_of_pandas(root: str, tmp_path: Path) -> None:
    settings = importlib.import_module(f"{root}.orca").OrcaContext
    pandas = importlib.import_module(f"{root}.orca.data.pandas")
    settings.pandas_read_backend = "pandas"
    (tmp_path / "image.csv").write_bytes(b"\x89PNG\r\n" + bytes(range(256)))
    (tmp_path / "wide.csv").write_text("a,b\n1,2\n3,4,5,6\n")
    try:
        for reader, name, words in (
            (pandas.read_csv, "image.csv", "'utf-8' codec can't decode"),
            (pandas.read_json, "image.csv", "'utf-8' codec can't decode"),
            (pandas.read_csv, "wide.csv", "Error tokenizing data"),
        ):
            with pytest.raises(RuntimeError, match=f"{name}: pandas.* says: {words}"):
                reader(str(tmp_path / name))
    finally:
        settings.pandas_read_backend = "spark"
