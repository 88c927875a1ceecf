"""Environments of some tests, beside the one that runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fetched(name: str) -> Path:
    """The folder of packages ``.venvs/<name>``, made once; skips the test without a network."""
    command = [ROOT / "tools/environments.sh", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=290, check=False)
    if "Failed to fetch" in done.stderr:
        pytest.skip(
            f"the packages of {name} need a network: {done.stderr.strip().splitlines()[-1]}"
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / ".venvs" / name
