"""Workers that stop, or that the kernel kills for their memory, while they train: the weights are the same."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import orca
from processes import memory_cgroup
from test_recovery import trained

pytestmark = pytest.mark.slow
LIMIT = 2 << 30  # What two workers with torch have left goes within a second.


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ORCA_SILENCE", raising=False)
    orca.init_orca_context("local", cores=2)
    yield
    orca.stop_orca_context()


@pytest.mark.parametrize(
    ("elementwise", "rank"),
    [pytest.param(None, 0, marks=pytest.mark.long), (None, 1), (False, 1)],
)
def test_a_worker_that_is_stopped_is_replaced(context, tmp_path, caplog, elementwise, rank):
    """F05: by the default limits."""
    more = {"elementwise": elementwise}
    expected = trained(tmp_path, **more)
    with caplog.at_level(logging.WARNING, "orca"):
        assert trained(tmp_path, {6: rank}, how=signal.SIGSTOP, **more) == expected
    (mark,) = tmp_path.glob("*/killed.6")
    (lost,) = [r for r in caplog.records if "gave no sign of life" in r.getMessage()]
    assert f"rank {rank}" in lost.getMessage()
    assert "(the process was stopped)" in lost.getMessage()
    took = lost.created - mark.stat().st_mtime
    print(f"noticed after {took:.2f} s")
    assert 4 < took < 30  # 5 s on a quiet machine.


def test_a_worker_that_takes_all_memory_is_replaced(tmp_path):
    """F07: told apart from other kills."""
    script = Path(__file__).with_name("scripts_oom.py")
    with memory_cgroup(LIMIT) as cgroup:
        for attempt in range(3):
            folder = tmp_path / str(attempt)
            folder.mkdir()
            done = subprocess.run(
                [sys.executable, str(script), str(cgroup), str(folder)],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
                env={**os.environ, "PYTHONPATH": str(script.parent)},
            )
            # While its memory is not counted as free yet, the kernel may kill the driver, too.
            if done.returncode != -signal.SIGKILL:
                break
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the same bits\n")
    told = "rank 1 (", "was killed by signal 9 (SIGKILL) by the kernel, because memory ran out"
    lines = [line for line in done.stderr.splitlines() if all(part in line for part in told)]
    assert len(lines) >= 2, done.stderr


FULL = """
import sys
import numpy as np, torch
from torch import nn
import orca
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks.csv import CSVLogger
from orca.learn.pytorch.callbacks.model_checkpoint import ModelCheckpoint
from bigdl.orca.learn.pytorch import Estimator as OldEstimator
def main():
    orca.init_orca_context("local", cores=1)
    for kind in (Estimator, OldEstimator):
        estimator = kind.from_torch(model=nn.Linear(100, 100), optimizer=lambda m, c: torch.optim.SGD(m.parameters(), 0.1),
                                    loss=nn.MSELoss(), backend="spark", model_dir=sys.argv[1])
        x = np.ones((8, 100), np.float32)
        folder = f"{sys.argv[1]}/{kind.__module__}"
        callbacks = [CSVLogger(f"{folder}.csv"), ModelCheckpoint(f"{folder}/model")]
        (epoch,) = estimator.fit((x, x), epochs=1, batch_size=8, callbacks=callbacks)
        assert epoch["train_loss"] > 0, epoch
        assert estimator.save(sys.argv[2])
    orca.stop_orca_context()
    print("end")
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("kilobytes", [8, 24])  # torch.save says different things.
def test_f21_a_disk_that_is_full_at_the_end_does_not_cost_the_training(tmp_path, kilobytes):
    script, disk = tmp_path / "full.py", tmp_path / "disk"
    script.write_text(FULL)
    disk.mkdir()
    program = shlex.join([sys.executable, str(script), str(disk), str(tmp_path / "saved.pt")])
    mount = shlex.join(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)])
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} || exit 77; {program}"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this user may not mount")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("end\n")
    said = [line for line in done.stderr.splitlines() if "state.pkl: [Errno 28]" in line]
    assert len(said) == 2, done.stderr
    assert "make room, and call save(path)" in said[0]
    assert re.search(r"the checkpoint was not written to .*: .*; training continues", done.stderr)
