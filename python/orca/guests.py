"""Processes that are not of the job and work with its shards: the Python processes of Spark.

The driver opens a door and a basket; a guest enters, makes shards, and packs them for the driver, who keeps
those whose packages it gets. What was packed by a task that failed, or that ran twice, goes with the basket.

Example:
    >>> import orca
    >>> from orca import guests
    >>> with orca.init_orca_context("local", cores=1):
    ...     with guests.Basket() as basket:
    ...         door = guests.open_door()
    ...         package = guests.pack(door, basket.number, lambda: {"rows": 3})  # in another process
    ...         basket.unpack([package])
    [{'rows': 3}]
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import os
import pickle
import threading
import traceback
import uuid
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from orca import pickles
from orca._native import _core
from orca.context import current_context
from orca.errors import FailedPreconditionError, InternalError, OrcaError

__all__ = ["Basket", "Door", "Listener", "ask", "enter", "listen", "open_door", "pack"]

_PATIENCE = 30.0  # Seconds for an agent that is busy to open its door.


class Door(NamedTuple):
    """Where guests come in, on the machine of the driver."""

    name: str
    secret_file: str


_entered: dict[tuple[int, Door], Any] = {}  # by process: a forked child is a guest of its own


def open_door() -> Door:
    """The door of this program's context."""
    return Door(*current_context().native.open_door())


def enter(door: Door) -> Any:
    """In a guest: where it puts its shards from now on.

    Raises:
        UnavailableError: The context has ended.
    """
    key = (os.getpid(), door)
    if key not in _entered:
        if not _entered:
            gc.freeze()  # Spark looks for garbage after every task, in all that was imported.
        _entered.clear()
        _entered[key] = _core.Guest.join(door.name, door.secret_file, _PATIENCE)
    return _entered[key].shards


def home() -> Any:
    """Where this process puts its shards if it is a guest; else None."""
    for (process, _), guest in _entered.items():
        if process == os.getpid():
            return guest.shards
    return None


def pack(door: Door, basket: int, make: Callable[[], Any]) -> bytes:
    """In a guest: what ``make`` returns, packed for the driver; its shards stay in their memory."""
    place = enter(door)
    parts, shards = pickles.dumps(make(), home=place)
    numbers = [hold.id for hold in shards]
    _entered[os.getpid(), door].leave(basket, numbers)
    return pickle.dumps((numbers, [bytes(part) for part in parts]), protocol=5)


def ask(door: Door, name: str, question: Any) -> Any:
    """In a guest: what the driver answers who listens by that name. Shards are not copied.

    Raises:
        InternalError: The driver's function raised; has its traceback.
        UnavailableError: The context has ended.
    """
    place = enter(door)
    # The shards of the question are held until the answer is here.
    parts, _holds = pickles.dumps((name, question), ("the name", "the question"), home=place)
    answer, holds = _entered[os.getpid(), door].ask(parts)
    is_error, found = pickles.loads(answer, home=place)
    del holds  # Those of what was found are enough.
    if is_error:
        raise InternalError(found)
    return found


_THREADS = 32  # Each waits for a call on the workers, mostly.
_listeners: weakref.WeakKeyDictionary[Any, dict[str, Callable[[Any], Any]]] = (
    weakref.WeakKeyDictionary()
)
_lock = threading.Lock()


class Listener:
    """Answers as long as somebody has it."""

    def __init__(self, answers: dict[str, Callable[[Any], Any]], name: str) -> None:
        self.name = name
        weakref.finalize(self, answers.pop, name, None)


def listen(answer: Callable[[Any], Any]) -> Listener:
    """In the driver: answers what guests ask by the listener's name, on other threads."""
    context = current_context()
    with _lock:
        if context not in _listeners:
            _listeners[context] = {}
            threading.Thread(
                target=_listen,
                args=(context.native, _listeners[context]),
                name="orca-guests",
                daemon=True,
            ).start()
        name = uuid.uuid4().hex
        _listeners[context][name] = answer
        return Listener(_listeners[context], name)


def _listen(native: Any, answers: dict[str, Callable[[Any], Any]]) -> None:
    with concurrent.futures.ThreadPoolExecutor(_THREADS, "orca-guest") as pool:
        while not native.stopped:
            question = native.next_question(0.5)
            if question is not None:
                try:
                    pool.submit(_answer, native, answers, question)
                except RuntimeError:  # The interpreter ends, and the guests are told by the agent.
                    return


def _answer(native: Any, answers: dict[str, Callable[[Any], Any]], question: Any) -> None:
    is_error = False
    try:
        name, asked = pickles.loads(question.take_parts(), home=native.shards)
        if name not in answers:
            raise FailedPreconditionError(f"nobody answers for {name!r} any more")
        found = answers[name](asked)
        parts, shards = pickles.dumps((is_error, found), ("", "the answer"), home=native.shards)
    except BaseException as error:
        text = str(error) if isinstance(error, OrcaError) else traceback.format_exc()
        parts, shards = pickles.dumps((True, text))
    native.answer(question, parts, shards)


class Basket:
    """What guests leave for the driver, until it is unpacked or the block ends."""

    def __init__(self) -> None:
        self._native = current_context().native
        self.number: int = self._native.new_basket()
        self._is_open = True

    def unpack(self, packages: Iterable[bytes]) -> list[Any]:
        """What is in these packages. All that guests left and that is in none of them is dropped."""
        opened = [pickle.loads(package) for package in packages]
        self._is_open = False
        holds = self._native.empty_basket(
            self.number, [n for numbers, _ in opened for n in numbers]
        )
        found = [pickles.loads(parts, home=self._native.shards) for _, parts in opened]
        del holds  # Now those of what was found are enough.
        return found

    def __enter__(self) -> Basket:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_open:
            with contextlib.suppress(OrcaError):  # The context may have ended.
                self.unpack([])
