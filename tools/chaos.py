#!/usr/bin/env python3
"""Runs `make chaos`: random schedules of deaths, CHAOS of them (10,000); each can be repeated from its seed.

Of a hundred one is of torch workers that die at a place of a step, one of any processes that are killed from outside,
five are of native workers below an agent, and the rest of native workers that are killed between any two stores.
ORCA_TEST_SEED gives the first seed. Stops at the first program that fails.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Units of the long tests (test_long.py) and the schedules in each.
LONG = [("stores", 4, 2_000), ("agent", 2, 500), ("torch", 10, 50), ("outside", 10, 50)]
PYTEST = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q", "-s", "--show-capture=no"]


def shares(count: int) -> dict[str, int]:
    """How many schedules each kind gets."""
    left, found = count, {}
    for kind, one_of in (("torch", 100), ("outside", 100), ("agent", 20), ("stores", 1)):
        found[kind] = min(left, -(-count // one_of))
        left -= found[kind]
    return found


def commands() -> dict[str, list[str]]:
    programs = ROOT / "build/release/tests/cpp"
    return {
        "stores": [str(programs / "learn_mutant_tests"), "--gtest_filter=Recovery.*ChangeNoBit"],
        "agent": [str(programs / "runtime_tests"), "--file=chaos"],
        "torch": [*PYTEST, "tests/python/test_schedules.py"],
        "outside": [*PYTEST, "tests/python/test_kills.py"],
    }


def main() -> int:
    given = os.environ.get("CHAOS") or "10000"
    if not given.isdecimal() or int(given) == 0:
        print(f"CHAOS={given} is not a number of schedules; give one from 1 on")
        return 2
    seed = os.environ.get("ORCA_TEST_SEED") or str(secrets.randbits(31))
    count = shares(int(given))
    for kind, command in commands().items():
        if count[kind] == 0:
            continue
        print(f"{kind}: {count[kind]} schedules from ORCA_TEST_SEED={seed} on", flush=True)
        begin = time.monotonic()
        environment = os.environ | {"ORCA_TEST_SEED": seed, "ORCA_SCHEDULES": str(count[kind])}
        done = subprocess.run(command, cwd=ROOT, env=environment)
        if done.returncode != 0:
            print(f"{kind}: FAILED; the seed that repeats it is named above")
            return 1
        print(f"{kind}: {count[kind]} schedules passed in {time.monotonic() - begin:.0f} s")
    print(f"chaos: all {sum(count.values())} schedules passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
