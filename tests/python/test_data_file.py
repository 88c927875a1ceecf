"""Files by their path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca.data import file


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_files_are_read_written_and_listed(scheme: str, tmp_path: Path) -> None:
    folder = f"{scheme}{tmp_path}/a/b"
    file.makedirs(folder)
    assert file.write_text(f"{folder}/t.txt", " one \ntwo\n") == 10
    assert file.open_text(f"{folder}/t.txt") == ["one", "two"]
    np.save(tmp_path / "a/b/n.npy", np.arange(3))
    assert file.load_numpy(f"{folder}/n.npy").tolist() == [0, 1, 2]
    assert file.listdir(folder) == ["n.npy", "t.txt"]
    assert file.is_file(f"{folder}/t.txt")
    assert not file.is_file(folder)
    assert file.exists(folder)
    file.rmdir(f"{scheme}{tmp_path}/a")
    assert not file.exists(folder)


def test_an_array_of_objects_runs_no_code(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        file.load_numpy(str(tmp_path / "o.npy"))


def test_images_are_pillows(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (3, 2), (255, 0, 0)).save(tmp_path / "i.png")
    assert file.open_image(str(tmp_path / "i.png")).size == (3, 2)


def test_copies_say_whether_they_were_made(tmp_path: Path) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    for name in ("ab1", "ab2", "c", "deep/d"):
        (tmp_path / "in" / name).write_text(name)
    source, target = str(tmp_path / "in"), f"file://{tmp_path}/out"
    assert file.put_local_dir_to_remote(source, target) == 0
    assert file.listdir(target) == ["ab1", "ab2", "c"]
    assert file.put_local_dir_tree_to_remote(source, f"{target}/tree") == 0
    assert file.open_text(f"{target}/tree/deep/d") == ["deep/d"]
    assert file.put_local_files_with_prefix_to_remote(f"{source}/ab", f"{target}/some") == 0
    assert file.listdir(f"{target}/some") == ["ab1", "ab2"]
    one = f"{target}/one"
    assert file.put_local_file_to_remote(f"{source}/c", one, filemode=0o600) == 0
    assert (tmp_path / "out/one").stat().st_mode & 0o777 == 0o600
    assert file.put_local_file_to_remote(f"{source}/missing", one) == -1
    back = tmp_path / "back"
    assert file.get_remote_dir_to_local(f"{target}/some", str(back)) == 0
    assert file.get_remote_files_with_prefix_to_local(f"{target}/o", str(back)) == 0
    assert file.get_remote_file_to_local(f"{target}/c", str(back / "c2")) == 0
    assert sorted(f.name for f in back.iterdir()) == ["ab1", "ab2", "c2", "one"]
    assert file.get_remote_dir_to_local(f"{target}/nowhere", str(back)) == -1


def test_functions_of_local_files_take_any(tmp_path: Path) -> None:
    class Thing:
        @file.enable_multi_fs_save
        def save(self, path: str) -> None:
            Path(path).write_text("saved")

        @file.enable_multi_fs_load
        def load(self, path: str) -> Any:
            return Path(path).read_text()

    Thing().save(f"file://{tmp_path}/t")
    assert Thing().load(f"file://{tmp_path}/t") == "saved"
    read = file.enable_multi_fs_load_static(lambda path: Path(path).read_text())
    assert read(f"{tmp_path}/t") == "saved"
