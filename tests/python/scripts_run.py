"""Programs with a context, for tests that kill or interrupt them. The first argument says which."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import checks_run as checks
import orca


def busy(folder: str) -> None:
    """Both workers run for a minute."""
    orca.init_orca_context("local", cores=2)
    orca.run(checks.starts_children, args=(folder,), workers=2)


def with_a_forked_child(folder: str) -> None:
    """A child of the driver holds its descriptors."""
    orca.init_orca_context("local", cores=2)
    if os.fork() == 0:
        Path(folder, "forked").write_text(str(os.getpid()))
        time.sleep(30)
        os._exit(0)
    orca.run(checks.hangs, args=(folder,), workers=2)


def works_for_a_while(folder: str) -> None:
    """A hundred steps on two workers, which takes a second."""
    with orca.init_orca_context("local", cores=2):
        print(orca.run(checks.steps, args=(folder, 100, 0.02), workers=2))


def interrupted(folder: str) -> None:
    """Ends as programs do that know nothing of interrupts."""
    with orca.init_orca_context("local", cores=2):
        orca.run(checks.tidies_up, args=(folder,), workers=2)


def goes_on(folder: str) -> None:
    """As a notebook: the cell is interrupted, the next one runs."""
    with orca.init_orca_context("local", cores=2):
        pids = orca.run(os.getpid, workers=2)
        try:
            orca.run(checks.tidies_up, args=(folder,), workers=2)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(orca.run(os.getpid, workers=2) == pids, flush=True)


def stubborn(folder: str) -> None:
    """The workers do not stop when they are asked to."""
    with orca.init_orca_context("local", cores=2):
        orca.run(checks.stubborn, args=(folder,), workers=2)


def out_of_memory(folder: str) -> None:
    """Rank 1 takes more than the cgroup has."""
    Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    orca.init_orca_context("local", cores=2)

    def takes() -> None:
        if orca.rank() == 1:
            pages = bytearray(300 << 20)
            for at in range(0, len(pages), 4096):
                pages[at] = 1
        orca.barrier()

    try:
        orca.run(takes, workers=2)
    except orca.WorkerFailedError as error:
        print(error.rank, error, flush=True)
    orca.stop_orca_context()


def leaves_without_stopping(folder: str) -> None:
    """Forgets the context; the interpreter's end does not."""
    orca.init_orca_context("local", cores=2)
    orca.submit(checks.hangs, args=(folder,), workers=2)
    while not Path(folder, "go").exists():
        time.sleep(0.01)


if __name__ == "__main__":
    # Shells and nohup ignore them for what runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for ignored in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_DFL)
    globals()[sys.argv[1]](*sys.argv[2:])
