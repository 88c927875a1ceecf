from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import chaos  # noqa: E402


@pytest.mark.parametrize("count", [1, 7, 100, 10_000, 12_345])
def test_all_schedules_are_given_to_somebody(count: int) -> None:
    found = chaos.shares(count)
    assert found.keys() == chaos.commands().keys()
    assert min(found.values()) >= 0
    assert count <= sum(found.values()) <= count + 1


def test_most_are_of_native_workers() -> None:
    assert chaos.shares(10_000) == {
        "torch": 100,
        "outside": 100,
        "agent": 500,
        "stores": 9_300,
    }


@pytest.mark.parametrize("given", ["0", "-3", "many"])
def test_what_is_no_number_is_refused(given: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/chaos.py"],
        env=os.environ | {"CHAOS": given},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert f"CHAOS={given} is not a number of schedules" in done.stdout
