"""Threads that run the trials of a study in this process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_LOOK = 0.5  # Seconds between looks for signals, which may have come to another thread; notices come at once.


class Attempt:
    """A trial that is being run. Whatever it tells the study, it tells under its lock.

    Attributes:
        trial: Of the study.
        heard: When it said something last.
        step: Of its last report.
        is_abandoned: Whether the study has decided over it without it.
        has_ended: Whether it has told its end.
    """

    def __init__(self, trial: Any) -> None:
        self.trial = trial
        self.lock = threading.Lock()
        self.heard = time.monotonic()
        self.step = 0
        self.is_abandoned = False
        self.has_ended = False

    @contextlib.contextmanager
    def ending(self) -> Iterator[bool]:
        """Whether it may still tell how it ended."""
        with self.lock:
            self.has_ended = True
            yield not self.is_abandoned


class Crew:
    """Runs attempts, each in a thread. They are daemons: one that hangs does not hold up the program's end.

    Args:
        work: Runs one.
    """

    def __init__(self, work: Callable[[Attempt], None]) -> None:
        self._work = work
        self._changed = threading.Condition()
        # All below are guarded by it.
        self._running: set[Attempt] = set()
        self._errors: list[BaseException] = []
        self._ended = self._seen = 0

    @property
    def size(self) -> int:
        """How many run."""
        with self._changed:
            return len(self._running)

    def begin(self, attempt: Attempt) -> None:
        """Runs one more."""
        with self._changed:
            self._running.add(attempt)
        threading.Thread(target=self._run, args=(attempt,), name="orca-trial", daemon=True).start()

    def _run(self, attempt: Attempt) -> None:
        error = None
        try:
            self._work(attempt)
        except BaseException as raised:
            error = raised
        with self._changed:
            if attempt not in self._running:  # Nobody waits for it any more.
                return
            if error is not None:
                self._errors.append(error)
            self._running.discard(attempt)
            self._ended += 1
            self._changed.notify_all()

    def wait(self, patience: float | None) -> list[Attempt]:
        """Waits until one has ended, or returns those that were silent for ``patience`` seconds.

        Raises:
            BaseException: What ended one: an interrupt, say.
        """
        silent = self._wait(patience)
        with self._changed:
            if self._errors:
                raise self._errors[0]
        return silent

    def _wait(self, patience: float | None) -> list[Attempt]:
        with self._changed:
            while self._ended == self._seen and self._running:
                wait = _LOOK
                if patience is not None:
                    oldest = min(attempt.heard for attempt in self._running)
                    wait = oldest + patience - time.monotonic()
                    if wait <= 0:
                        break
                self._changed.wait(min(wait, _LOOK))
            self._seen = self._ended
            if patience is None:
                return []
            since = time.monotonic() - patience
            return [attempt for attempt in self._running if attempt.heard <= since]

    def leave(self, attempt: Attempt) -> None:
        """Lets it run for nobody."""
        with self._changed:
            self._running.discard(attempt)

    def end(self, patience: float | None) -> None:
        """Waits for those that run, but for no silent one. What they raise is not what ended the study."""
        while self.size > 0:
            for attempt in self._wait(patience):
                self.leave(attempt)
