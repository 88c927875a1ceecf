"""Faults while a training runs: each has a check (checks_faults.py), and mutants that the check must notice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import checks_faults
import mutants
from checks_faults import FAULTS, MUTANTS, NOT_HERE, NOTICED
from processes import SILENCE

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.usefixtures("local_context")]


@pytest.fixture(autouse=True)
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed after less than usual."""
    monkeypatch.setenv("ORCA_SILENCE", SILENCE)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_no_bit(fault: str, tmp_path: Path) -> None:
    print(fault, FAULTS[fault](tmp_path))


def run(fault: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """A check in a program of its own: how it ended, and what it said."""
    said = folder / "said"  # No pipe: who is left behind would keep it open.
    with said.open("w") as file:
        done = subprocess.run(
            [sys.executable, checks_faults.__file__, fault, str(folder)],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=240,
        )
    text = said.read_text()
    if done.returncode == NOT_HERE:
        pytest.skip(text.splitlines()[-1])
    return done.returncode, text


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_noticed(mutant: str, tmp_path: Path) -> None:
    fault, noticed = MUTANTS[mutant]
    code, text = run(fault, tmp_path, mutants.environment(mutant))
    assert code == NOTICED, text
    assert re.search(f"noticed: (.*\n)*.*{noticed}", text), text


def test_without_a_mutant_the_test_build_is_the_other(tmp_path: Path) -> None:
    code, text = run("F01", tmp_path, mutants.environment("none"))
    assert code == 0, text
