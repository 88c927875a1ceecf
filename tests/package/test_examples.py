"""The examples run as their first lines say."""

from __future__ import annotations

import json
import re
import sys

import pytest

from installed import ROOT, clean_environment, run


@pytest.mark.parametrize("backend", ["gloo", "orca"])
def test_the_demo_learns(backend, tmp_path):
    """On digits, which every environment has: a second of training."""
    result = tmp_path / "result.json"
    run(
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(ROOT / "examples/fashion_mnist_ddp.py", "--backend", backend, "--data", "digits"),
        *("--epochs", 12, "--batch-size", 16, "--result", result),
        env=clean_environment(OMP_NUM_THREADS="1"),
        timeout=120,
    )
    assert json.loads(result.read_text())["accuracy"] > 0.7


def test_the_first_page_runs_as_printed(tmp_path):
    """The program of README.md learns what it says there. The last digit depends on the processor."""
    text = (ROOT / "README.md").read_text()
    program, printed = re.search(
        r"```python\n(.*?)```\n\nIt prints:\n\n```\n(.*?)```", text, re.S
    ).groups()
    assert len([line for line in program.splitlines() if line]) == 12
    (tmp_path / "digits.py").write_text(program)
    done = run(sys.executable, tmp_path / "digits.py", timeout=120)
    expected, found = (
        re.fullmatch(r"accuracy (0\.\d{3})\n", said) for said in (printed, done.stdout)
    )
    assert found, done.stdout
    assert float(found[1]) >= 0.97
    assert abs(float(found[1]) - float(expected[1])) < 0.006


def test_functions_run_on_workers():
    done = run(
        *(sys.executable, ROOT / "examples/run.py", "--workers", 2, "--darts", 1_000_000),
        env=clean_environment(),
        timeout=60,
    )
    assert "pi is about 3.14" in done.stdout
    assert "say 2 workers" in done.stdout
    assert "[rank 1] I threw 500000 darts" in done.stdout


def test_workers_share_their_data():
    done = run(
        *(sys.executable, ROOT / "examples/shards.py", "--workers", 2, "--rows", 100_000),
        env=clean_environment(),
        timeout=60,
    )
    assert "100000 rows in 2 shards" in done.stdout
    assert "y = 1.00 a + -2.00 b + 0.50 c + 3.00" in done.stdout


def test_a_csv_file_becomes_a_model():
    done = run(
        *(sys.executable, ROOT / "examples/csv_to_model.py", "--workers", 2, "--rows", 20_000),
        env=clean_environment(),
        timeout=120,
    )
    error, mean = (
        float(done.stdout.split(f"mean {what} ")[1].split()[at])
        for what, at in (("error", 0), ("rent", 1))
    )
    assert error < 0.06 * mean


def test_a_data_frame_of_spark_becomes_a_model_and_predictions():
    done = run(
        *(sys.executable, ROOT / "examples/dataframe_to_model.py", "--rows", 20_000),
        env=clean_environment(),
        timeout=180,
    )
    error, rows = (
        float(done.stdout.split(what)[1].split()[0]) for what in ("mean error ", "over ")
    )
    assert 3_000 < rows < 5_000
    assert error < 6


def test_a_loop_of_its_own_trains_a_gan():
    done = run(
        *(sys.executable, ROOT / "examples/gan.py", "--workers", 2, "--steps", 300),
        env=clean_environment(),
        timeout=120,
    )
    radius = float(done.stdout.split("the points lie ")[1].split()[0])
    assert 0.6 < radius < 1.4
