"""F01 to F05, F20: random deaths of workers that train with torch; every row counts once (O1), and no bit differs (O2).

ORCA_SCHEDULES says how many, ORCA_TEST_SEED which. A failure names the seed that repeats it.
"""

from __future__ import annotations

import functools
import os
import random
import secrets
from pathlib import Path

import pytest

from checks_faults import STEPS, Event, Trained, check_once, train
from processes import SILENCE, descriptors, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.usefixtures("local_context")]

_APART = 4  # Steps; who dies twice in the same one would end the training (F42).
_SIGNALS = ("SIGKILL",) * 8 + ("SIGTERM", "SIGSEGV", "exit")


def drawn(seed: int) -> tuple[int, str, list[Event]]:
    """Workers, optimizer, and what happens."""
    chance = random.Random(seed)
    workers = chance.choice((1, 2, 2, 2, 3))
    optimizer = chance.choice(("sgd", "adam", "rmsprop"))
    steps = sorted(chance.sample(range(STEPS // _APART), chance.randint(1, 3)))
    events = [
        Event(
            _APART * step + chance.randrange(2),
            chance.randrange(workers),
            chance.choice(_SIGNALS),
            chance.choice(("before", "after", chance.uniform(0, 0.004))),
        )
        for step in steps
    ]
    if chance.random() < 0.05:  # It takes as long as silence may last.
        events[0] = Event(events[0].step, events[0].rank, "SIGSTOP")
    if chance.random() < 0.2:
        events.append(Event(-1, chance.randrange(workers)))
    return workers, optimizer, events


def test_schedules_of_deaths_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_SILENCE", SILENCE)  # As the context's.
    before = descriptors()
    seed = int(os.environ.get("ORCA_TEST_SEED") or secrets.randbits(32))
    count = int(os.environ.get("ORCA_SCHEDULES") or 20)

    @functools.cache
    def quiet(workers: int, optimizer: str) -> Trained:
        return train(tmp_path, workers=workers, optimizer=optimizer)

    happened = 0
    for number in range(count):
        workers, optimizer, events = drawn(seed + number)
        repeat = (
            f"schedule {number}: ORCA_SCHEDULES=1 ORCA_TEST_SEED={seed + number} repeats {events}"
        )
        expected = quiet(workers, optimizer)
        try:
            found = train(tmp_path, events, workers=workers, optimizer=optimizer)
            check_once(found)
        except Exception as error:
            error.add_note(repeat)
            raise
        assert found.same_as(expected), repeat
        happened += len(found.events)
        if (number + 1) % 25 == 0:
            print(f"{number + 1} schedules, {happened} events", flush=True)
    assert happened > count // 2 or count == 1
    wait_until(lambda: descriptors() <= before, "the driver has no more descriptors than before")
