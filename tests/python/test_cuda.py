"""CUDA tensors beside ours, where there is a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("scripts_cuda.py")


@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no GPU on this machine")
def test_cpu_tensors_go_to_orca_and_cuda_tensors_to_nccl(private_env: dict[str, str]) -> None:
    ranks = min(2, torch.cuda.device_count())  # NCCL wants a GPU a rank.
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*command, "--standalone", str(SCRIPT)],
        env=private_env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end of cuda") == ranks
