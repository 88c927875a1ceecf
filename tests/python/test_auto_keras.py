"""AutoEstimator.from_keras: scripts of their own, with TensorFlow, which our environment does not have."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import orca
import orca.adapters.keras.names
from environments import fetched

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = Path(orca.__file__).parents[1]
SCRIPTS = HERE / "scripts_keras.py"
CHECKS = re.findall(r"^def (check_\w+)", SCRIPTS.read_text(), re.MULTILINE)


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """With the packages of versions/keras.txt, which are fetched once."""
    folder = fetched("keras")
    path = f"{folder}:{PYTHON}:{HERE}"
    return {**os.environ, "PYTHONPATH": path, "ORCA_LOG": "warn"}


def start(environment: dict[str, str], *command: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=pipe, stderr=pipe, text=True
    )


def output(process: subprocess.Popen[str]) -> str:
    try:
        out, err = process.communicate(timeout=800)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def raised(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each check of scripts_keras.py raised: TensorFlow is started once for all of them."""
    folder = str(tmp_path_factory.mktemp("checks"))
    found = output(start(environment, str(SCRIPTS), "checks", folder))
    result: dict[str, str] = json.loads(found.splitlines()[-1])
    return result


@pytest.mark.timeout(900)  # The first one waits for all.
@pytest.mark.parametrize("check", CHECKS)
def test_check(check: str, raised: dict[str, str]) -> None:
    assert raised[check] == ""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_search_that_is_killed_goes_on(environment: dict[str, str], tmp_path: Path) -> None:
    def search(folder: str) -> subprocess.Popen[str]:
        return start(environment, str(SCRIPTS), "killed", str(tmp_path / folder))

    whole = search("whole")
    process = search("killed")
    deadline = time.monotonic() + 600
    while len(list((tmp_path / "killed").glob("killed/train_func_*/result.json"))) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)
    said = output(whole)
    assert said.count("finished") == 5
    assert output(search("killed")) == said


def test_seed_004_runs_as_written(environment: dict[str, str], tmp_path: Path) -> None:
    said = output(start(environment, str(SCRIPTS), "seed_004", str(tmp_path)))
    keys = "['batch_size', 'hidden_size', 'lr']"
    assert [line for line in said.splitlines() if "[" in line] == [f"zoo {keys}", f"bigdl {keys}"]


@pytest.mark.long
def test_the_example_runs(environment: dict[str, str], tmp_path: Path) -> None:
    example = str(ROOT / "examples" / "auto_keras.py")
    said = output(start(environment, example, "--trials", "2", "--logs", str(tmp_path)))
    assert said.startswith("mse ")


def test_the_examples_in_the_docstrings_run() -> None:
    result = doctest.testmod(orca.adapters.keras.names, verbose=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_without_tensorflow_a_sentence_says_what_to_do() -> None:
    code = """
import sys
sys.modules["tensorflow"] = None
from orca.automl.auto_estimator import AutoEstimator
AutoEstimator.from_keras(model_creator=print)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "ImportError: Models of Keras need TensorFlow 2.21 with Keras 3; run: pip install "
        "'tensorflow>=2.21'\n"
    )
