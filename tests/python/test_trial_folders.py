"""Folders of trials, and files that are there as a whole."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import pwd
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from orca.automl.folders import folder_name, folders_by_number
from orca.errors import UnavailableError
from orca.files import home, make_private, write_content, write_whole


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
    path.write_bytes(b"ab")
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


def test_threads_that_write_to_one_path_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    contents = [bytes([number]) * 200_000 for number in range(4)]
    together = threading.Barrier(len(contents))
    found: list[bytes] = []

    def write(content: bytes) -> None:
        together.wait(60)
        for _ in range(20):
            write_whole(path, lambda file: file.write(content), is_lasting=False)
            found.append(path.read_bytes())

    with concurrent.futures.ThreadPoolExecutor(len(contents)) as threads:
        for done in [threads.submit(write, content) for content in contents]:
            done.result(60)
    assert len(found) == 80
    assert all(content in contents for content in found)
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_that_is_killed_leaves_no_file_behind(tmp_path: Path) -> None:
    """Where the file system has files without a name."""
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        pytest.skip("the file system has no files without a name (O_TMPFILE)")
    script = (
        "import pathlib, sys, time\n"
        "from orca.files import write_whole\n"
        "def write(file):\n"
        "    file.write(b'x' * (1 << 20))\n"
        "    print('half', flush=True)\n"
        "    time.sleep(600)\n"
        "write_whole(pathlib.Path(sys.argv[1]), write)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "state.pt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "half\n"
        finally:
            process.kill()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_os_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"

    def fails(file: BinaryIO) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*state\.pt'"):
        write_whole(path, fails)
    assert list(tmp_path.iterdir()) == []


def test_files_are_private_unless_the_user_asked_for_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "own", lambda file: file.write(b"x"))
        write_whole(tmp_path / "asked", lambda file: file.write(b"x"), is_private=False)
        write_content(str(tmp_path / "content"), b"x")
    finally:
        os.umask(before)
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()}
    assert modes == {"own": "0o600", "asked": "0o640", "content": "0o600"}


# --- folders that no other user can change

ANOTHER = 65534  # The user "nobody".
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    made = make_private(tmp_path / "a/b")
    assert made == tmp_path / "a/b"
    for folder in (made, made.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    made.chmod(0o755)  # What the user has changed stays.
    assert stat.S_IMODE(make_private(made).stat().st_mode) == 0o755


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(make_private(tmp_path / "target"))
    with pytest.raises(UnavailableError, match="link is a link; give the folder that it leads to"):
        make_private(tmp_path / "link")
    assert make_private(tmp_path / "link/inside").is_dir()  # On the way, its owner decides.


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="file is not a folder; give another path"):
        make_private(tmp_path / "file")


def test_a_folder_that_every_user_may_change_is_refused(tmp_path: Path) -> None:
    folder = make_private(tmp_path / "open")
    folder.chmod(0o777)
    with pytest.raises(UnavailableError, match=r"mode 0777\); run chmod go-w"):
        make_private(folder)
    folder.chmod(0o1777)  # As /tmp: nobody changes what is another user's.
    assert make_private(folder) == folder


@needs_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = make_private(tmp_path / "theirs")
    os.chown(folder, ANOTHER, ANOTHER)
    with pytest.raises(UnavailableError, match=r"theirs belongs to another user \(\w+\); give"):
        make_private(folder)
    assert make_private(folder / "mine").is_dir()  # A project's folder, say.


@needs_root
def test_where_every_user_may_write_the_whole_way_has_to_be_ones_own(tmp_path: Path) -> None:
    shared = make_private(tmp_path / "shared")
    shared.chmod(0o1777)
    (shared / "theirs").mkdir()
    (shared / "link").symlink_to(tmp_path)
    for name in ("theirs", "link"):
        os.chown(shared / name, ANOTHER, ANOTHER, follow_symlinks=False)
        with pytest.raises(UnavailableError, match=f"{name} belongs to another user"):
            make_private(shared / name / "mine")
        assert not (shared / name / "mine").exists()


def test_orcas_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORCA_HOME", str(tmp_path / "orca"))
    assert home() == tmp_path / "orca"
    monkeypatch.delenv("ORCA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path / ".orca"
    monkeypatch.delenv("HOME")
    assert home() == Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".orca"

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert home() == Path(f"/tmp/orca-{os.geteuid()}")
