"""Every test is either fast (`make test`) or long (`make test-long`), and runs in exactly one stage."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import run_tests  # noqa: E402
import test_long as long_tests  # noqa: E402

COLLECTOR = """
import json, os

def pytest_collection_modifyitems(items):
    found = [[item.nodeid, sorted({mark.name for mark in item.iter_markers()})] for item in items]
    with open(os.environ["ORCA_COLLECTED"], "w") as file:
        json.dump(found, file)
"""


def selections() -> dict[str, tuple[str, list[str]]]:
    """The marker expression and the folders of every stage that runs pytest."""
    found = {"long": ("long", ["tests"])}
    for stage in run_tests.stages("all"):
        words = stage.command
        if "pytest" in words:
            folders = [word for word in words if word.startswith("tests/")]
            found[stage.name] = (words[words.index("-m", words.index("pytest")) + 1], folders)
    return found


@pytest.mark.slow
def test_every_python_test_runs_in_exactly_one_stage(tmp_path: Path) -> None:
    (tmp_path / "collector.py").write_text(COLLECTOR)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "ORCA_COLLECTED": str(tmp_path / "items.json"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "collector", "tests"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    items = json.loads((tmp_path / "items.json").read_text())
    chosen = {
        name: (Expression.compile(words), folders)
        for name, (words, folders) in selections().items()
    }
    assert set(chosen) == {"Python", "Python alone", "package", "long"}
    wrong, counts = {}, Counter[str]()
    for nodeid, marks in items:
        stages = [
            name
            for name, (words, folders) in chosen.items()
            if any(nodeid.startswith(f"{folder}/") for folder in folders)
            and words.evaluate(lambda mark, marks=marks, **_: mark in marks)
        ]
        counts.update(stages)
        if len(stages) != 1:
            wrong[nodeid] = stages
    assert not wrong
    print({"Python": len(items), **counts})
    assert min(counts[name] for name in chosen) > 0


@pytest.mark.slow
def test_every_cpp_test_runs_in_exactly_one_entry() -> None:
    entries = [*long_tests.cpp_entries("-LE long"), *long_tests.cpp_entries("-L long")]
    assert len({name for name, _ in entries}) == len(entries)
    runs: dict[str, Counter[str]] = {}
    for name, command in entries:
        cases = long_tests.listed(long_tests.output(*command, "--gtest_list_tests"))
        assert cases, f"{name} runs nothing: {shlex.join(command)}"
        for case in cases:
            assert bool(re.match(r"(\w+/)?Long", case)) == name.startswith("long."), case
        runs.setdefault(command[0], Counter()).update(cases)
    for program in sorted((ROOT / "build/release/tests/cpp").glob("*_tests")):
        every = long_tests.listed(long_tests.output(str(program), "--gtest_list_tests"))
        found = runs[str(program)]
        assert set(every) == set(found), program.name
        assert max(found.values()) == 1, program.name


def test_a_share_depends_on_the_tree_and_shares_cover_everything() -> None:
    units = [long_tests.Unit(f"unit {number}", ("true",)) for number in range(100)]
    trees = [f"{number:040x}" for number in range(60)]
    shares = [long_tests.chosen(units, tree, 5) for tree in trees]
    assert shares[0] == long_tests.chosen(units, trees[0], 5)
    assert shares[0] != shares[1]
    assert {unit.name for share in shares for unit in share} == {unit.name for unit in units}
    assert 10 < sum(len(share) for share in shares) / len(shares) < 30
    assert long_tests.chosen(units, trees[0], 1) == units


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(long_tests, "ROOT", tmp_path)
    monkeypatch.setattr(long_tests, "output", lambda *command: "0" * 40)
    monkeypatch.setattr(sys, "argv", ["test_long.py"])
    monkeypatch.setenv("ORCA_TEST_SEED", "7")
    return tmp_path


def test_what_passed_is_not_run_again(driver, monkeypatch, capsys) -> None:
    units = [
        long_tests.Unit("good", ("bash", "-c", "echo x >>runs; echo seed $ORCA_TEST_SEED >seed")),
        long_tests.Unit("bad", ("bash", "-c", "[[ -e mended ]] || { echo the reason; exit 3; }")),
        long_tests.Unit("last", ("bash", "-c", "echo x >>runs")),
    ]
    monkeypatch.setattr(long_tests, "all_units", lambda: units)
    assert long_tests.main() == 1
    out = capsys.readouterr().out
    assert "the reason" in out
    assert "exit status 3" in out
    assert "ORCA_TEST_SEED=7 bash -c" in out
    assert "FAILED bad" in out
    assert (driver / "seed").read_text() == "seed 7\n"
    (driver / "mended").touch()
    assert long_tests.main() == 0
    assert "3 of 3 passed, 2 of them before" in capsys.readouterr().out
    assert (driver / "runs").read_text() == "x\nx\n"
    monkeypatch.setattr(sys, "argv", ["test_long.py", "--again"])
    assert long_tests.main() == 0
    assert (driver / "runs").read_text() == "x\nx\nx\nx\n"


def test_a_unit_that_never_ends_fails(driver, monkeypatch, capsys) -> None:
    monkeypatch.setattr(long_tests, "LIMIT", 0.1)
    monkeypatch.setattr(long_tests, "all_units", lambda: [long_tests.Unit("it", ("sleep", "600"))])
    assert long_tests.main() == 1
    assert "ran into the limit" in capsys.readouterr().out
