"""Which files no other user could have written, and where Orca's own are."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from orca.files import cache, home, is_own


def trusts(path: Path) -> bool:
    with path.open("rb") as stream:
        return is_own(stream)


@pytest.mark.parametrize(
    ("mode", "folder_mode", "own_group", "other_group"),
    [
        (0o644, 0o755, True, True),
        (0o664, 0o755, True, False),
        (0o644, 0o775, True, False),
        (0o644, 0o1775, True, True),
        (0o646, 0o755, False, False),
        (0o644, 0o757, False, False),
        (0o644, 0o1777, True, True),
    ],
)
def test_a_file_is_own_when_neither_it_nor_its_folder_can_be_changed_by_others(
    mode: int, folder_mode: int, own_group: bool, other_group: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "file"
    file.touch()
    file.chmod(mode)
    for group, expected in ((os.geteuid(), own_group), (54321, other_group)):
        for path in (file, folder):
            try:
                os.chown(path, -1, group)
            except PermissionError:
                pytest.skip("only root can give a file to any group")
        folder.chmod(folder_mode)
        assert trusts(file) == expected, group


def test_a_user_without_a_home_directory_has_a_folder_for_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number that the user database does not have, in a container say."""

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "ORCA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert cache() == home() / "cache"
    monkeypatch.setenv("HOME", "/somewhere")
    assert cache() == Path("/somewhere/.cache")
    monkeypatch.setenv("XDG_CACHE_HOME", "/else")
    assert cache() == Path("/else")
