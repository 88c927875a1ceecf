"""Warnings about what takes long."""

from __future__ import annotations

import logging
import os
import threading
import time

import pytest

from orca.phases import phase


def _wait_for(caplog: pytest.LogCaptureFixture, texts: int) -> list[str]:
    deadline = time.monotonic() + 60
    while len(caplog.messages) < texts and time.monotonic() < deadline:
        time.sleep(0.005)
    return caplog.messages


def _watchers() -> int:
    return sum(thread.name == "orca-phase" for thread in threading.enumerate())


def test_it_warns_again_when_the_time_has_doubled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCA_SLOW_PHASE", "0.02")
    caplog.set_level(logging.WARNING, "orca")
    with phase("loading"):
        found = _wait_for(caplog, 3)
    assert [text.split(" and ")[0] for text in found[:3]] == [
        f"loading has run for {seconds} s" for seconds in (0.02, 0.04, 0.08)
    ]
    assert f"{__file__}:" in found[0]


def test_one_thread_looks_after_all_of_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "orca")
    monkeypatch.setenv("ORCA_SLOW_PHASE", "3600")
    with phase("patient"):
        for _ in range(20):
            with phase("quick"):
                assert _watchers() == 1
        # It sleeps for an hour, and hears of one that has less time.
        monkeypatch.setenv("ORCA_SLOW_PHASE", "0.02")
        with phase("impatient"):
            found = _wait_for(caplog, 1)
    assert found[0].startswith("impatient has run for 0.02 s")
    assert not any("patient has" in text and "impatient" not in text for text in found)


def test_a_forked_process_has_a_watcher_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_SLOW_PHASE", "3600")
    with phase("before"):
        pid = os.fork()
        if pid == 0:
            before = _watchers()
            with phase("after"):
                os._exit(0 if before == 0 and _watchers() == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
