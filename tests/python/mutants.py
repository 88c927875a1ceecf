"""Mechanisms of Python that are left out, to see whether a test of a fault notices.

The variable ORCA_MUTANT names one: those below are left out of a worker as soon as it reads a call that has a
``Mutated()`` among its arguments, all others by the engine's test build (include/orca/core/mutant.h).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from orca.learn.pytorch.callbacks import Callback

LIBRARY = Path(__file__).resolve().parents[2] / "build/release/mutants"


def environment(mutant: str) -> dict[str, str]:
    """For a program that does without a mechanism, and for its workers."""
    found = os.environ | {"ORCA_MUTANT": mutant}
    return found if mutant in PYTHON else found | {"LD_LIBRARY_PATH": str(LIBRARY)}


class Mutated(Callback):
    """An argument of a call, a callback say: the process that unpickles it is mutated."""

    def __reduce__(self) -> Any:
        return _mutated, (os.environ.get("ORCA_MUTANT", ""),)


def mutate() -> None:
    """Leaves the mechanism out of this process."""
    _mutated(os.environ.get("ORCA_MUTANT", ""))


def _mutated(name: str) -> Mutated:
    if name in PYTHON:
        PYTHON[name]()
    return Mutated()


def _without_seeds() -> None:
    """Random numbers do not depend on the step."""
    from orca.adapters.torch import trainer

    trainer.Trainer._seed = lambda *_: None  # type: ignore[method-assign]


def _leaving_at_once() -> None:
    """SIGTERM ends a worker in the middle of its step."""
    from orca.adapters.torch import loop

    loop.leaving_between_steps = contextlib.nullcontext  # type: ignore[assignment]


def _without_what_follows() -> None:
    """A step that was finished after a death does not get what follows a step."""
    from orca.adapters.torch import commits

    write = commits._core.write_commit

    def forgets(block: Any, commit: Any) -> None:
        commit.is_pending = 0
        write(block, commit)

    commits._core.write_commit = forgets


def _from_the_epochs_begin() -> None:
    """A checkpoint does not say how far its epoch was."""
    from orca.adapters.torch import loop

    read = loop.Progress.of

    def forgets(said: dict[str, Any]) -> Any:
        return read(said | {"index": 0})

    loop.Progress.of = forgets  # type: ignore[method-assign,assignment]


def _any_number() -> None:
    """Losses and gradients are not looked at."""
    from orca.adapters.torch import trainer

    trainer.Policy._is_fine = lambda *_: True  # type: ignore[method-assign]


def _without_culprits() -> None:
    """Nobody remembers in which step a worker died."""
    from orca.adapters.torch import places

    places.Places.check = lambda *_: None  # type: ignore[method-assign]


def _blaming_trials() -> None:
    """Errors of a context that is lost are the trials'."""
    from orca.automl import trial_search

    trial_search._is_of_context = lambda _: False


def _replace(function: Any, other: Any) -> None:
    """For all who have imported it, too."""
    function.__code__ = other.__code__


def _any_owner() -> None:
    """Files and folders of other users are as good as one's own."""
    from orca import files

    _replace(files.is_own, lambda file: True)
    _replace(files.make_private, lambda path: os.makedirs(path, exist_ok=True) or Path(path))  # noqa: PTH103


def _without_checksums() -> None:
    """Archives are read as they are."""
    from orca import files

    files._core.check_zip_file = lambda *_: None


PYTHON = {
    "owner": _any_owner,
    "checksums": _without_checksums,
    "step-seeds": _without_seeds,
    "leave-after-step": _leaving_at_once,
    "pending-step": _without_what_follows,
    "resume-place": _from_the_epochs_begin,
    "finite": _any_number,
    "culprit": _without_culprits,
    "lost-context": _blaming_trials,
}
