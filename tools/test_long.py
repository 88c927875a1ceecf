#!/usr/bin/env python3
"""Runs the long tests: whole products, other versions, long schedules of faults (`make test-long`).

    tools/test_long.py               all; what passed for this tree is not run again
    tools/test_long.py --again       all, whatever passed before
    tools/test_long.py --share 5     one of five, chosen by the hash of HEAD's tree
    tools/test_long.py --list        the names, and nothing else

A unit is one command with a seed of its own. What passed is noted in build/long/<tree>, also when the rest is
interrupted. Fails when a unit failed; the others run all the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import chaos

ROOT = Path(__file__).resolve().parents[1]
PYTHON = str(ROOT / ".venv/bin/python")
LIMIT = 1500.0  # Seconds a unit may take.


@dataclass(frozen=True)
class Unit:
    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def listed(text: str) -> list[str]:
    """The names of cases in what --gtest_list_tests prints."""
    names, suite = [], ""
    for line in text.splitlines():
        if match := re.match(r"(\S+\.)(?:\s+#.*)?$", line):
            suite = match[1]
        elif line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
    return names


def cpp_entries(label: str) -> Iterator[tuple[str, list[str]]]:
    """Name and command of every entry of ctest with ("-L long") or without ("-LE long") a label."""
    found = output("ctest", "--test-dir", "build/release", *label.split(), "--show-only=json-v1")
    for test in json.loads(found)["tests"]:
        yield test["name"], test["command"]


def cpp_units() -> Iterator[Unit]:
    for entry, command in cpp_entries("-L long"):
        for case in listed(output(*command, "--gtest_list_tests")):
            yield Unit(f"{entry} {case}", (*command[:1], f"--gtest_filter={case}"))


def python_units() -> Iterator[Unit]:
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    text = output(PYTHON, *options, "--collect-only", "-m", "long", "tests")
    functions = {
        line.split("[")[0]
        for line in text.splitlines()
        if line.startswith("tests/") and "::" in line
    }
    for function in sorted(functions):
        yield Unit(function, (PYTHON, *options, "-rs", "-m", "long", function))


def other_units() -> Iterator[Unit]:
    for kind, units, schedules in chaos.LONG:
        for number in range(units):
            settings = {"ORCA_SCHEDULES": str(schedules)}
            yield Unit(f"chaos {kind} {number}", tuple(chaos.commands()[kind]), settings)
    yield Unit("pyspark 3.5", ("tools/spark35.sh",))


def all_units() -> list[Unit]:
    return [*cpp_units(), *python_units(), *other_units()]


def chosen(units: list[Unit], tree: str, one_of: int) -> list[Unit]:
    """One of so many, others for another tree; every unit is chosen for some trees."""

    def draw(unit: Unit) -> int:
        return int(hashlib.sha256(f"{tree} {unit.name}".encode()).hexdigest(), 16)

    return [unit for unit in units if draw(unit) % one_of == 0]


def run(unit: Unit, log: Path) -> bool:
    seed = os.environ.get("ORCA_TEST_SEED") or str(secrets.randbits(31))
    settings = {**unit.environment, "ORCA_TEST_SEED": seed}
    with (
        log.open("w") as file,
        subprocess.Popen(
            unit.command,
            cwd=ROOT,
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        begin = time.monotonic()
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    seconds = time.monotonic() - begin
    words = " ".join([*(f"{k}={v}" for k, v in settings.items()), *unit.command])
    words = words.replace(f"{ROOT}/", "")
    if code == 0:
        skips = [
            line for line in log.read_text(errors="replace").splitlines() if "SKIPPED" in line[:20]
        ]
        print(
            f"  passed in {seconds:.0f} s, ORCA_TEST_SEED={seed}",
            *skips[:3],
            sep="\n    ",
            flush=True,
        )
        return True
    what = "ran into the limit" if code is None else f"exit status {code}"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    print(f"{tail}\n  FAILED: {what} after {seconds:.0f} s; repeat it with\n  {words}", flush=True)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--share", type=int, default=1, metavar="N", help="run one of N")
    parser.add_argument("--again", action="store_true", help="also what passed before")
    parser.add_argument("--list", action="store_true", help="print the names")
    arguments = parser.parse_args()
    if arguments.share < 1:
        parser.error(f"--share must be a positive integer, got {arguments.share}")
    units = all_units()
    if arguments.list:
        print("\n".join(unit.name for unit in units))
        return 0
    tree = output("git", "rev-parse", "HEAD^{tree}").strip()
    todo = chosen(units, tree, arguments.share)
    print(f"long tests: {len(todo)} of {len(units)} units, by the tree {tree[:12]}", flush=True)
    folder = ROOT / "build/long" / tree
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    failed, known = [], 0
    for number, unit in enumerate(todo, 1):
        passed = folder / re.sub(r"[^\w.:-]+", "_", unit.name)
        if passed.exists() and not arguments.again:
            known += 1
            continue
        minutes = (time.monotonic() - begin) / 60
        print(f"[{minutes:4.1f} min] {number} of {len(todo)}: {unit.name}", flush=True)
        log = passed.with_name(passed.name + ".log")
        if run(unit, log):
            log.replace(passed)
        else:
            failed.append(unit.name)
    print(f"long tests: {len(todo) - len(failed)} of {len(todo)} passed, {known} of them before")
    for name in failed:
        print(f"long tests: FAILED {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
