"""Trains in a cgroup whose memory a worker uses up: ``scripts_oom.py CGROUP FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import orca
from orca.learn.pytorch.callbacks import Callback
from test_recovery import STEPS, trained


class Devours(Callback):
    """Takes all memory that there is, once, in a step of rank 1."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def after_train_iter(self, runner: Any) -> None:
        step = runner.epochs * STEPS + runner.batch_idx
        if step == STEPS + 4 and orca.rank() == 1 and not self.mark.exists():
            self.mark.touch()
            Path("/proc/self/oom_score_adj").write_text("1000")  # Nobody else.
            taken = []
            while True:
                taken.append(b"x" * (32 << 20))


def main(cgroup: str, folder: str) -> None:
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    with orca.init_orca_context("local", cores=2):
        for elementwise in (None, False):
            more = {"elementwise": elementwise}
            expected = trained(Path(folder), **more)
            mark = Path(folder) / f"devoured.{elementwise}"
            options = {"more_callbacks": [Devours(mark)]}
            assert trained(Path(folder), options=options, **more) == expected
            assert mark.exists()
    print("the same bits")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
