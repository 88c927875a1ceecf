"""What travels between processes: a pickle, and the large buffers beside it.

Example:
    >>> from orca.pickles import dumps, loads
    >>> parts, shards = dumps({"a": [1, 2]})
    >>> loads(parts)
    {'a': [1, 2]}
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any

from orca.errors import InvalidArgumentError, OrcaError

_DEEPEST = 20


_packing = threading.local()  # .shards and .home, while this thread packs or unpacks


def carried() -> list[Any] | None:
    """Where a shard that is being packed for another process of the job adds its hold.

    None outside of ``dumps``: whoever pickles then wants the bytes.
    """
    return getattr(_packing, "shards", None)


def home() -> Any:
    """Where the shards of what is being packed or unpacked live; None outside of that."""
    return getattr(_packing, "home", None)


@contextlib.contextmanager
def _between(home: Any, shards: list[Any] | None) -> Iterator[None]:
    before = getattr(_packing, "home", None), carried()
    _packing.home, _packing.shards = home, shards
    try:
        yield
    finally:
        _packing.home, _packing.shards = before


def dumps(
    value: Any,
    names: Sequence[str] = ("the result",),
    home: Any = None,
    *,
    carries: bool = True,
) -> tuple[list[Any], list[Any]]:
    """A pickle and the buffers that lie beside it; and the shards that it names.

    Args:
        value: Anything that cloudpickle packs.
        names: What messages call the value; more than one: its items.
        home: Where both sides find its shards.
        carries: Whether shards stay where they are; else the pickle has copies of them, and outlives them.

    Raises:
        InvalidArgumentError: Something in ``value`` belongs to this process; names it.
    """
    try:
        return _pack(value, home, carries)
    except OrcaError:
        raise
    except Exception as error:
        path, found = _culprit(value, names)
        raise InvalidArgumentError(
            f"{path} ({type(found).__module__}.{type(found).__qualname__}) cannot be sent to "
            f"another process: {error}; make it inside the function, or leave it out"
        ) from error


def loads(parts: Sequence[Any], home: Any = None) -> Any:
    """The value that ``dumps`` packed."""
    with _between(home, None):
        return pickle.loads(parts[0], buffers=parts[1:])


def _pack(value: Any, home: Any = None, carries: bool = True) -> tuple[list[Any], list[Any]]:
    buffers: list[pickle.PickleBuffer] = []
    shards: list[Any] = []
    file = io.BytesIO()
    with _between(home, shards if carries else None):
        _pickler()(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return [file.getvalue(), *(buffer.raw() for buffer in buffers)], shards


@functools.cache
def _pickler() -> Any:
    """Cloudpickle's, which is imported when it is needed."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            # Orca is on the other side, too: what is ours need not be looked at closely.
            kind = type(obj)
            if kind is types.FunctionType or kind is type:
                module = obj.__module__  # None: of code that somebody made.
                if module is not None and module.startswith("orca."):
                    known = sys.modules.get(module)
                    if getattr(known, obj.__qualname__, None) is obj:
                        return NotImplemented
            return super().reducer_override(obj)

    return Pickler


def _culprit(value: Any, names: Sequence[str]) -> tuple[str, Any]:
    """The innermost part that cannot be packed, and the way to it."""
    if len(names) == 1:
        children: Iterator[tuple[str, Any]] = iter([(names[0], value)])
    else:
        children = zip(names, value, strict=True)
    path, found = " or ".join(names), value
    seen: set[int] = set()
    for _ in range(_DEEPEST):
        for way, child in children:
            if id(child) not in seen and not _can_be_packed(child):
                path, found = way, child
                break
        else:
            break
        seen.add(id(found))
        children = _parts(found, path)
    return path, found


def _can_be_packed(value: Any) -> bool:
    try:
        _pack(value)
    except Exception:
        return False
    return True


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What ``value`` holds, with the way to it."""
    if isinstance(value, types.FunctionType):
        for name, inner in _variables(value).items():
            yield f"{path}'s variable {name}", inner
    elif isinstance(value, types.MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield from _parts(value.args, f"{path}.args")
        yield from _parts(value.keywords, f"{path}.keywords")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}[{key!r}]", inner
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield f"{path}[{index}]", inner
    elif isinstance(value, (set, frozenset)):
        for inner in value:
            yield f"{path}'s element", inner
    elif not isinstance(type(value).__reduce__, types.FunctionType):  # Else it decides itself.
        for name, inner in dict(getattr(value, "__dict__", {})).items():
            yield f"{path}.{name}", inner


def _variables(function: types.FunctionType) -> dict[str, Any]:
    """What a function that is sent by value takes along."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # Not set yet.
            continue
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                found.setdefault(name, function.__globals__[name])
    found |= {f"{key} (a default)": v for key, v in (function.__kwdefaults__ or {}).items()}
    for index, value in enumerate(function.__defaults__ or ()):
        found[f"{index} (a default)"] = value
    return found
