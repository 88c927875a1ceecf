"""The table of faults in docs/reliability.md: each fault, its tests and its mutants are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/python"))

import mutants  # noqa: E402

COME_LATER = {"F45", "F46", "F49"}


def rows() -> list[tuple[list[str], list[str], set[str]]]:
    """Ids, tests and mutants."""
    found = []
    for line in (ROOT / "docs/reliability.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and (ids := re.match(r"(F\d\d)(?:, (F\d\d))? ", cells[0])):
            tests = [test for test in cells[3].split(", ") if test]
            found.append((list(filter(None, ids.groups())), tests, names(cells[4])))
    return found


def names(text: str) -> set[str]:
    return set(re.findall(r"`([a-z-]+)`", text))


def source(test: str) -> Path:
    if test.endswith(".py"):
        return ROOT / "tests/python" / test
    room, name = test.split(".")
    return ROOT / f"tests/cpp/{room}/{name}_test.cc"


def test_every_fault_is_in_the_table_once() -> None:
    ids = [each for row, _, _ in rows() for each in row]
    assert ids == [f"F{number:02}" for number in range(1, 53)]


def test_every_fault_has_tests_that_name_it() -> None:
    for ids, tests, _ in rows():
        assert bool(tests) != bool(COME_LATER & set(ids)), ids
        for test in tests:
            text = source(test).read_text()
            assert any(re.search(rf"(\b|_){each}|{each}(?=[A-Z_])", text, re.I) for each in ids), (
                ids,
                test,
            )


def test_every_mutant_is_in_the_table() -> None:
    listed = set().union(*(found for _, _, found in rows()))
    text = (ROOT / "docs/reliability.md").read_text().partition("Two mechanisms")[2]
    listed |= names(text.partition("\n\n")[0])
    places = "".join(path.read_text() for path in (ROOT / "src").rglob("*.cc"))
    made = set(re.findall(r'IsMutant\("([a-z-]+)"', places)) | set(mutants.PYTHON)
    assert listed == made


def test_every_mutant_is_run() -> None:
    """By a table of Python's, or by a test of C++."""
    files = [*(ROOT / "tests/python").glob("*.py"), *(ROOT / "tests/cpp").rglob("*_test.cc")]
    text = "".join(path.read_text() for path in files if path.name != "mutants.py")
    places = "".join(path.read_text() for path in (ROOT / "src").rglob("*.cc"))
    made = set(re.findall(r'IsMutant\("([a-z-]+)"', places)) | set(mutants.PYTHON)
    assert [name for name in sorted(made) if f'"{name}"' not in text] == []
