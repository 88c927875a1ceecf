"""The command ``orca``: hands over to the native program of the same name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from orca._native import _core


def main() -> NoReturn:
    """Runs ``orca`` with this program's arguments."""
    os.environ.setdefault("ORCA_PYTHON", sys.executable)  # for the workers of an agent
    program = Path(_core.__file__).parent / "orca"
    os.execv(program, [str(program), *sys.argv[1:]])
