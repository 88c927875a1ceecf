"""Other packages with the names of ours: the real BigDL, Analytics Zoo, another ``orca``."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

_ROOTS = ("orca", "bigdl", "zoo")
_OURS = Path(__file__).resolve().parents[2]
# How distributions that bring these packages are named: bigdl, bigdl-orca-spark3, analytics-zoo, orca.
_DISTRIBUTION = re.compile(
    r"(?P<name>(?:bigdl|analytics[-_]zoo)(?:[-_][a-z]\w*)*|orca)-(?P<version>\d[^-]*)"
    r"(?:-[^-]*)?\.(?:dist-info|egg-info|egg)",
    re.IGNORECASE,
)


def warn_of_neighbours() -> None:
    """Says which other packages have the names of ours, and what to do about it."""
    if "ORCA_PRELOAD" in os.environ:  # A worker's process; the driver has said it.
        return
    for message in find_neighbours(sys.path):
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def find_neighbours(paths: Sequence[str], ours: Path = _OURS) -> Iterator[str]:
    """Yields a message for each thing on ``paths`` that is in the way of the packages in ``ours``."""
    folders = list(dict.fromkeys(Path(path).resolve() for path in paths))
    before_ours = folders[: folders.index(ours)] if ours in folders else []
    for folder in folders:
        installed = list(_distributions(folder))
        for name, version in installed:
            where = "the same folder as Orca" if folder == ours else str(folder)
            yield (
                f"the distribution {name} {version} is installed in {where}; it has packages with "
                f"the names of Orca's, and files of one may replace the other's. Keep one: "
                f"pip uninstall {name}, then pip install --force-reinstall orca-ml"
            )
        # What holds this file as well is another copy of Orca.
        if folder != ours and not installed and not (folder / "orca/worker.py").exists():
            yield from _packages(folder, ours, folder in before_ours)


def _distributions(folder: Path) -> Iterator[tuple[str, str]]:
    try:
        entries = sorted(os.listdir(folder))  # noqa: PTH208 - half the time of Path.iterdir
    except OSError:
        return
    for entry in entries:
        if match := _DISTRIBUTION.fullmatch(entry):
            yield match["name"].replace("_", "-"), match["version"]


def _packages(folder: Path, ours: Path, is_used: bool) -> Iterator[str]:
    for root in _ROOTS:
        if (folder / root / "__init__.py").exists():
            used = folder if is_used else ours
            yield (
                f"there are two packages {root!r}: one of Orca in {ours}, and another in {folder}. "
                f"This program imports the one in {used}, which comes first in sys.path; remove or "
                "rename the other"
            )
