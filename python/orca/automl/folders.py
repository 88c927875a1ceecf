"""Where runs of trials leave their files: ``train_func_<run>_<number>``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["folder_name", "folders_by_number"]

_PREFIX = "train_func_"


def folder_name(run: str, number: int) -> str:
    """Of the files of a trial.

    Example:
        >>> folder_name("a1b2c", 7)
        'train_func_a1b2c_00007'
    """
    return f"{_PREFIX}{run}_{number:05d}"


def folders_by_number(folder: Path, runs: Iterable[str] | None) -> dict[int, list[Path]]:
    """Those of all trials of such runs (None: of all), the youngest of each one last. One look, whatever their number."""
    names = None if runs is None else set(runs)
    found: dict[int, list[tuple[int, str]]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            run, _, number = entry.name.removeprefix(_PREFIX).rpartition("_")
            if (
                entry.name.startswith(_PREFIX)
                and number.isdecimal()
                and (names is None or run in names)
            ):
                age = (entry.stat().st_mtime_ns, entry.name)
                found.setdefault(int(number), []).append(age)
    return {
        number: [folder / name for _, name in sorted(several)] for number, several in found.items()
    }
