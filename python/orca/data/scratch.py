"""Memory that the parts of one call use one after the other: fresh pages cost as much as the work on them.

Example:
    >>> with kept():
    ...     memory = room("a", 10)
    ...     memory[:2] = b"ab"
    ...     room("a", 4).tobytes()[:2]
    b'ab'
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["kept", "once", "room"]

_mine = threading.local()  # .kept: a dict, inside of a call


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keeps memory of this thread until it ends."""
    before = getattr(_mine, "kept", None)
    _mine.kept = {} if before is None else before
    try:
        yield
    finally:
        _mine.kept = before


def once(name: str, make: Callable[[], Any]) -> Any:
    """What ``make`` made for the call, or makes now."""
    held = getattr(_mine, "kept", None)
    if held is None:
        return make()
    if name not in held:
        held[name] = make()
    return held[name]


def room(name: str, size: int) -> memoryview:
    """So many bytes, which hold what they held; who asks by this name again gets the same ones."""
    held = getattr(_mine, "kept", None)
    memory = held.get(name) if held is not None else None
    if memory is None or len(memory) < size:
        memory = bytearray(size + size // 64)
        if held is not None:
            held[name] = memory
    return memoryview(memory)[:size]
