"""Which files no other user could have written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orca.files import is_own


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
