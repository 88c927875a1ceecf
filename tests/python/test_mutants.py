"""Mechanisms that are left out, each with the test of a fault that must fail then. Others: test_faults.py, checks_faults.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mutants

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "build/release/tests/cpp"

# The fault, the test, and what it says without the mechanism.
NOTICED = {
    "frame-crc": ("F13", "comm ProxyTest.F13*", "Expected: only contains elements"),
    "generation": ("F16", "comm StaleGenerationTest.F16*", "did not form in time"),
    "same-call": (
        "F31",
        "comm *MismatchTest.F31OfTypes*/*cp*",
        "Expected: only contains elements that .has substring .mismatch",
    ),
    "promised": ("F25", "data ShardShelfTest.F25Promises*", "a terabyte was promised"),
    "leftovers": ("F26", "io CheckpointCrashTest.F26*", r"Actual: \{ .\.tmp-child"),
    "cut": ("F10", "runtime JoinTest.F10*", r"raised orca::Error: .* lost rank"),
    "store-lock": ("F48", "tune StoreTest.F48TheSecondWriter*", "Actual: .no error"),
    "versions": ("F38", "test_run_life.py -k another_version", "DID NOT RAISE|AssertionError"),
    "returned": ("F33", "test_run_faults.py -k f33_a_rank", "TimeoutError|AssertionError"),
    "nursery-tries": ("F52", "test_run_limits.py -k at_every_fork", "AssertionError|TimeoutError"),
    "owner": ("H5", "test_trial_folders.py -k of_another_user", "DID NOT RAISE"),
    "checksums": ("M1", "test_damaged_files.py -k trials_are_checked", "assert same"),
}


def command(test: str) -> list[str]:
    where, _, what = test.partition(" ")
    if where.endswith(".py"):
        pytest_ = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        return [*pytest_, f"tests/python/{where}", *what.split(" ", 1)]
    return [str(PROGRAMS / f"{where}_mutant_tests"), f"--gtest_filter={what}"]


@pytest.mark.parametrize("mutant", NOTICED)
def test_the_test_of_a_fault_fails_without_its_mechanism(mutant: str) -> None:
    _, test, words = NOTICED[mutant]
    done = subprocess.run(
        command(test),
        env=mutants.environment(mutant),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(words, done.stdout), done.stdout
