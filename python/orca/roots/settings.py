"""The settings that ``OrcaContext`` holds as properties of the class itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from orca.errors import InvalidArgumentError
from orca.generations import Generation, once_raised_as

__all__ = ["Settings"]


def _refuse(text: str) -> InvalidArgumentError:
    return once_raised_as(InvalidArgumentError(text), AssertionError)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse(f"{name} should either be True or False, but got {value!r}")
    return value


def _read_backend(name: str, value: Any) -> str:
    backend = str(value).lower()
    if backend not in ("spark", "pandas"):
        raise _refuse(f"{name} must be either spark or pandas, but got {value!r}")
    return backend


def _data_store(name: str, value: Any) -> str:
    store = str(value).upper()
    if store not in ("DRAM", "PMEM") and not re.fullmatch(r"DISK_\d+", store):
        raise _refuse(f"{name} must be either DRAM or PMEM or DISK_n, but got {value!r}")
    return store


def _size(name: str, value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):
        raise _refuse(f"shard size should be either None or a positive integer, but got {value!r}")
    return value


class _Setting:
    """A property of a class, not of its objects."""

    def __init__(self, default: Any, check: Callable[[str, Any], Any], text: str) -> None:
        self._default = default
        self._check = check
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, context: Any, owner: type | None = None) -> Any:
        return self if context is None else context._values.get(self._name, self._default)

    def __set__(self, context: Any, value: Any) -> None:
        with context.generation.errors():
            context._values[self._name] = self._check(self._name, value)


class Settings(type):
    """The metaclass of ``OrcaContext``: settings of a root, which the whole program shares.

    Example:
        >>> from bigdl.orca import OrcaContext
        >>> OrcaContext.pandas_read_backend
        'spark'
        >>> OrcaContext.pandas_read_backend = "Pandas"
        >>> OrcaContext.pandas_read_backend
        'pandas'
        >>> OrcaContext.pandas_read_backend = "spark"
    """

    generation: Generation

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls._values: dict[str, Any] = {}

    log_output = _Setting(
        False,
        _flag,
        "Whether what Spark's JVM prints goes through ``sys.stderr``, as notebooks want.",
    )
    pandas_read_backend = _Setting(
        "spark", _read_backend, "What reads CSV and JSON files: ``spark`` or ``pandas``."
    )
    serialize_data_creator = _Setting(
        False, _flag, "Whether the workers of a machine run their data creators one at a time."
    )
    train_data_store = _Setting(
        "DRAM", _data_store, "Where training data is kept: ``DRAM``, ``PMEM`` or ``DISK_n``."
    )
    barrier_mode = _Setting(True, _flag, "Whether Spark starts Ray with barrier tasks.")
    _eager_mode = _Setting(True, _flag, "Whether XShards compute at once.")
    _shard_size = _Setting(None, _size, "Rows of a shard that is made from a data frame.")
