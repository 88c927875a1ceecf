"""F37: what belongs to one process is refused before anything is started, and named."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import csv
import ctypes
import functools
import gc
import hashlib
import io
import itertools
import logging
import mmap
import multiprocessing
import os
import queue
import random
import select
import selectors
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import types
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

import orca
from orca.errors import InvalidArgumentError
from processes import descendants

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.usefixtures("no_growth")]


class Model:
    """Holds something deep inside."""

    def __init__(self, inner: Any) -> None:
        self.name = "model"
        self.layers = [{"weights": [1.0]}, {"hidden": inner}]

    def predict(self) -> None: ...


class Refuses:
    """Its own words count."""

    def __reduce__(self) -> Any:
        raise NotImplementedError("this object says no")


def _generator() -> Iterator[int]:
    yield 1


async def _coroutine() -> None: ...


def _pointer() -> Any:
    return ctypes.pointer(ctypes.c_int(1))


def _loop(stack: ExitStack) -> Any:
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    return loop


def _coroutine_object(stack: ExitStack) -> Any:
    coroutine = _coroutine()
    stack.callback(coroutine.close)
    return coroutine


def _mapped(stack: ExitStack) -> Any:
    return stack.enter_context(mmap.mmap(-1, 4096))


def _popen(stack: ExitStack) -> Any:
    process = subprocess.Popen(["true"])
    stack.callback(process.wait)
    return process


def _sqlite(stack: ExitStack) -> Any:
    return stack.enter_context(contextlib.closing(sqlite3.connect(":memory:")))


def _file(stack: ExitStack, mode: str) -> Any:
    return stack.enter_context(Path("/dev/null").open(mode))


def _queue(stack: ExitStack) -> Any:
    found = multiprocessing.get_context("spawn").SimpleQueue()
    stack.callback(found.close)
    return found


OBJECTS: dict[str, Callable[[ExitStack], Any]] = {
    "lock": lambda _: threading.Lock(),
    "rlock": lambda _: threading.RLock(),
    "condition": lambda _: threading.Condition(),
    "event": lambda _: threading.Event(),
    "semaphore": lambda _: threading.Semaphore(),
    "thread": lambda _: threading.Thread(),
    "thread-local": lambda _: threading.local(),
    "socket": lambda stack: stack.enter_context(socket.socket()),
    "generator": lambda _: _generator(),
    "coroutine": _coroutine_object,
    "event-loop": _loop,
    "written-file": lambda stack: _file(stack, "w"),
    "binary-file": lambda stack: _file(stack, "rb"),
    "folder": lambda stack: stack.enter_context(os.scandir("/")),
    "sqlite": _sqlite,
    "process": _popen,
    "queue": lambda _: queue.Queue(),
    "queue-of-processes": _queue,
    "lock-of-processes": lambda _: multiprocessing.get_context("spawn").Lock(),
    "future": lambda _: concurrent.futures.Future(),
    "executor": lambda stack: stack.enter_context(concurrent.futures.ThreadPoolExecutor(1)),
    "selector": lambda stack: stack.enter_context(selectors.DefaultSelector()),
    "poll": lambda _: select.poll(),
    "memory-map": _mapped,
    "pointer": lambda _: _pointer(),
    "hash": lambda _: hashlib.sha256(b"x"),
    "compressor": lambda _: zlib.compressobj(),
    "reader": lambda _: csv.reader(["a,b"]),
    "tls": lambda _: ssl.create_default_context(),
    "weak-reference": lambda _: weakref.ref(Model),
    "context-variable": lambda _: contextvars.copy_context(),
    "frame": lambda _: sys._getframe(),
    "handler": lambda _: logging.StreamHandler(io.StringIO()),
    "random-device": lambda _: random.SystemRandom(),
    "own-refusal": lambda _: Refuses(),
    "context": lambda _: orca.context.current_context(),
    "group": lambda _: orca.communicator(),
}


@pytest.fixture(scope="module", autouse=True)
def tracker() -> None:
    """The process that Python starts with the first lock of processes, and keeps."""
    resource_tracker.ensure_running()


@pytest.fixture(params=sorted(OBJECTS))
def unsendable(request: pytest.FixtureRequest) -> Iterator[Any]:
    with ExitStack() as stack:
        yield OBJECTS[request.param](stack)
    gc.collect()


def test_what_cannot_be_sent_is_named_before_anything_starts(unsendable: Any) -> None:
    """F37: as an argument, inside of one, captured, bound, and as a default."""
    before = descendants(os.getpid())
    model = Model(unsendable)
    inside = ".layers[1]['hidden']"
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("args[0]", lambda: orca.run(print, args=(unsendable,), workers=7)),
        (f"args[1]{inside}", lambda: orca.run(print, args=(1, model), workers=7)),
        (f"kwargs['end']{inside}", lambda: orca.run(print, kwargs={"end": model}, workers=7)),
        ("fn's variable unsendable", lambda: orca.run(lambda: unsendable, workers=7)),
        (f"fn's variable model{inside}", lambda: orca.run(lambda: model.name, workers=7)),
        (f"fn.__self__{inside}", lambda: orca.run(model.predict, workers=7)),
        (f"fn.args[0]{inside}", lambda: orca.run(functools.partial(print, model), workers=7)),
    ]
    for path, run in cases:
        with pytest.raises(InvalidArgumentError) as caught:
            run()
        assert path in str(caught.value)
        assert "cannot be sent to another process" in str(caught.value)
        assert "make it inside the function" in str(caught.value)
    assert descendants(os.getpid()) == before


def test_things_that_look_alike_do_travel(tmp_path: Path) -> None:
    """What cloudpickle can send is sent: modules, lambdas, local classes, files that are read."""
    text = tmp_path / "text"
    text.write_text("words")
    square = lambda x: x * x  # noqa: E731
    with text.open() as file:
        found = orca.run(
            lambda *items: [
                itertools.__name__,
                square(3),
                items[0].read(),
                items[1],
                items[2].getLogger("a").name,
            ],
            args=(file, memoryview(b"bytes").tobytes(), logging),
            workers=1,
        )[0]
    assert found == ["itertools", 9, "words", b"bytes", "a"]


def test_a_structure_without_an_end_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(InvalidArgumentError, match="cannot be sent"):
        orca.run(print, args=(nested,), workers=1)
    while nested:
        nested = nested[0]


def test_a_structure_that_holds_itself_travels() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert orca.run(lambda: ring[1][1][0], workers=1) == [1]


def test_functions_without_a_module_and_inner_ones_of_orca_travel() -> None:
    made: dict[str, Any] = {}
    exec("def twice(x):\n    return 2 * x", made)
    nobodys = types.FunctionType(made["twice"].__code__, {"__builtins__": {}})
    assert nobodys.__module__ is None
    assert orca.run(nobodys, (4,), workers=1) == [8]
    # What a module of ours has by another name, or no more, is sent as it is.
    assert orca.run(_disguised(), (3,), workers=1) == [4]


def _disguised() -> Any:
    def dumps(x: int) -> int:
        return x + 1

    dumps.__module__, dumps.__qualname__ = "orca.pickles", "dumps"
    return dumps
