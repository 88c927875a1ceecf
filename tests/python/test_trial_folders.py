"""Folders of trials, and files that are there as a whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from orca.automl.folders import folder_name, folders_by_number
from orca.files import append, write_content, write_whole


def _make(folder: Path, run: str, number: int, age: int) -> Path:
    made = folder / folder_name(run, number)
    made.mkdir()
    os.utime(made, (age, age))
    return made


def test_the_youngest_run_of_each_trial_is_found(tmp_path: Path) -> None:
    late, early = _make(tmp_path, "aaaaa", 3, 2000), _make(tmp_path, "bbbbb", 3, 1000)
    many = _make(tmp_path, "aaaaa", 123_456, 1000)
    (tmp_path / "study.db").touch()
    (tmp_path / "train_func_of_somebody_else").mkdir()
    _make(tmp_path, "ccccc", 3, 3000)
    found = folders_by_number(tmp_path, ["aaaaa", "bbbbb"])
    assert found == {3: [early, late], 123_456: [many]}
    assert [len(several) for _, several in sorted(folders_by_number(tmp_path, None).items())] == [
        3,
        1,
    ]


@pytest.mark.parametrize("is_lasting", [True, False])
def test_content_is_written_as_a_whole(tmp_path: Path, is_lasting: bool) -> None:
    path = tmp_path / "new folder" / "\u00e4.json"
    for content in (b"old", bytearray(b"newer"), memoryview(b"x" * 300_000), b""):
        write_content(str(path), content, is_lasting=is_lasting)
        assert path.read_bytes() == bytes(content)
    append(str(path), b"a")
    append(str(path), b"b")
    assert path.read_bytes() == b"ab"
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(OSError, match="Not a directory"):
        write_content(f"{path}/below", b"z", is_lasting=is_lasting)
    assert path.read_bytes() == b"ab"


@pytest.mark.parametrize("is_lasting", [True, False])
def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path, is_lasting: bool) -> None:
    path = tmp_path / "new" / "params.json"
    write_whole(path, lambda file: file.write(b"old"), is_lasting=is_lasting)
    assert path.read_bytes() == b"old"

    def breaks_off(file: BinaryIO) -> None:
        file.write(b"ne")
        assert path.read_bytes() == b"old"
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        write_whole(path, breaks_off, is_lasting=is_lasting)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
