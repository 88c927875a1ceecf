"""The mark "product": make test runs a sample of the cases, make test-long the others."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "python/conftest.py"
CASES = """
import pytest

@pytest.mark.product
@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", ["x", "y"])
def test_two(a, b): pass

@pytest.mark.product
@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", ["x", "y"])
@pytest.mark.parametrize(("c", "d"), [(1, 1), (2, 2), (3, 1), (4, 1)])
def test_three(a, b, c, d): pass

def test_other(): pass
"""


@pytest.fixture
def collected(tmp_path: Path):
    hooks = CONFTEST.read_text()
    begin, end = hooks.index("def sample("), hooks.index("def pytest_ignore_collect(")
    head = "from __future__ import annotations\nfrom itertools import combinations\nimport pytest\n"
    (tmp_path / "conftest.py").write_text(head + hooks[begin:end])
    (tmp_path / "test_it.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  product\n  long\n")

    def run(*options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        return [line.split("::")[1] for line in done.stdout.splitlines() if "::" in line]

    return run


def values(names: list[str], test: str) -> set[tuple[str, ...]]:
    return {tuple(name[:-1].split("[")[1].split("-")) for name in names if name.startswith(test)}


def test_of_two_parameters_every_value_is_fast(collected) -> None:
    fast = values(collected("-m", "not long"), "test_two")
    assert len(fast) == 3
    assert {a for _, a in fast} == {"1", "2", "3"}
    assert {b for b, _ in fast} == {"x", "y"}


def test_of_more_parameters_every_pair_is_fast(collected) -> None:
    fast = values(collected("-m", "not long"), "test_three")
    assert len(fast) < 24
    for first, second in ((0, 2), (0, 3), (2, 3)):  # 0 and 1 change together.
        every = set(product(*({case[i] for case in fast} for i in (first, second))))
        assert {(case[first], case[second]) for case in fast} == every
    assert {case[0] for case in fast} == {"1", "2", "3", "4"}


def test_fast_and_long_are_everything(collected) -> None:
    fast, long = collected("-m", "not long"), collected("-m", "long")
    assert sorted(fast + long) == sorted(collected())
    assert "test_other" in fast
    # The choice is the same where only one test is asked for, as make test-long does.
    assert [n for n in long if "two" in n] == collected("-m", "long", "test_it.py::test_two")
