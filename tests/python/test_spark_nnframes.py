"""NNFrames and seed 002, each on a Spark of its own process: who has imported pyspark starts it with every context."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import orca

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = """\
+---------+-----+----------+
|features |label|prediction|
+---------+-----+----------+
|[2.0,1.0]|1.0  |1.0       |
|[1.0,2.0]|0.0  |0.0       |
|[2.0,1.0]|1.0  |1.0       |
|[1.0,2.0]|0.0  |0.0       |
+---------+-----+----------+
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(orca.__file__).parents[1]}:{HERE}"
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, "ORCA_LOG": "warn"},
        capture_output=True,
        text=True,
        timeout=900,
        cwd=ROOT,
    )


def test_nnframes_and_the_wrappers_of_torch_do_what_they_say() -> None:
    done = run("-m", "pytest", "-q", "-x", str(HERE / "checks_nnframes.py"))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_the_script_of_nnframes_prints_its_table() -> None:
    """Seed 002, whole."""
    done = run(str(ROOT / "examples/seed_002.py"))
    assert done.stdout == f"After training: \n{TABLE}\n", done.stderr
    assert done.stderr == ""
