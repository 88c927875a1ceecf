"""What importing costs, and what it says when something is missing."""

from __future__ import annotations

import doctest
import subprocess
import sys

import pytest

import orca
import orca.comm
import orca.data.arrays
import orca.data.xshards
import orca.errors
import orca.options


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_importing_orca_loads_no_framework() -> None:
    code = """
import sys
import orca
print([name for name in ("torch", "numpy", "tensorflow", "pyspark", "ray") if name in sys.modules])
"""
    assert python(code).stdout == "[]\n"


def test_a_missing_torch_is_told_with_the_remedy() -> None:
    done = python("import sys; sys.modules['torch'] = None; import orca.distributed")
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert "pip install 'torch>=2.13'" in done.stderr


@pytest.mark.parametrize(
    "module", [orca, orca.comm, orca.data.arrays, orca.data.xshards, orca.errors, orca.options]
)
def test_the_examples_in_the_docstrings_run(module: object) -> None:
    result = doctest.testmod(module, verbose=False)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


def test_every_code_of_the_engine_has_its_error() -> None:
    assert all(issubclass(kind, orca.OrcaError) for kind in orca.errors.BY_CODE.values())
    assert issubclass(orca.errors.InvalidArgumentError, ValueError)
    assert issubclass(orca.errors.WaitTimeoutError, TimeoutError)
    assert issubclass(orca.errors.PeerLostError, ConnectionError)
