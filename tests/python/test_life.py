"""How processes with a group begin and end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import checks_life as checks
from launcher import RankPool

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("scripts_life.py")


def torchrun(how: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    return subprocess.run(
        [*command, str(SCRIPT), how], env=env, capture_output=True, text=True, timeout=90
    )


@pytest.mark.parametrize("how", ["again", "devices", "no-destroy", "thread"])
def test_a_script_under_torchrun_ends_well(how: str, private_env: dict[str, str]) -> None:
    done = torchrun(how, private_env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"end of {how}") == 2
    for word in ["Traceback", "Error", "orca:", "terminate", "Fatal"]:
        assert word not in done.stderr, done.stderr


def test_a_script_that_raises_fails_with_its_own_error(private_env: dict[str, str]) -> None:
    done = torchrun("raises", private_env)
    assert done.returncode == 1
    assert "on purpose" in done.stderr


def test_processes_of_multiprocessing_end_well() -> None:
    checks.spawn_and_leave()


def test_a_killed_launcher_leaves_nothing(pool: RankPool) -> None:
    """What a group leaves in the system goes with its processes."""
    pool.run(checks.dies_with_a_group, "orca", 2, dies=[0, 1])
