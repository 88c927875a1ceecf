"""Which values of a configuration somebody looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["NotingDict", "own_copy"]


class NotingDict(dict[str, Any]):
    """A configuration that knows which of its keys were read. What reads it as a whole reads all; a copy of it is a dict.

    Args:
        config: The values.
        read: Where the keys are noted.

    Example:
        >>> config = NotingDict({"lr": 0.1, "units": 8})
        >>> config["lr"], config.read
        (0.1, {'lr'})
    """

    def __init__(self, config: dict[str, Any], read: set[str] | None = None) -> None:
        super().__init__(config)
        self.read: set[str] = set() if read is None else read

    def __reduce__(self) -> Any:
        self.read.update(dict.keys(self))
        return dict, (dict(self),)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: D102 - as a dict's
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:  # noqa: D102
        self.read.add(key)
        return super().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:  # noqa: D102
        self.read.add(key)
        return super().setdefault(key, default)


def _reads_all(name: str) -> Callable[..., Any]:
    def method(self: NotingDict, *arguments: Any) -> Any:
        self.read.update(dict.keys(self))
        return getattr(dict, name)(self, *arguments)

    return method


for _name in ("__eq__", "__ne__", "__iter__", "__len__", "__or__", "__ror__", "__repr__"):
    setattr(NotingDict, _name, _reads_all(_name))
for _name in ("__reversed__", "copy", "items", "keys", "popitem", "values"):
    setattr(NotingDict, _name, _reads_all(_name))


def own_copy(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration for a function of the user's, which may change it. What it reads is noted where ``config`` does."""
    own = dict(dict.items(config))  # Of a NotingDict, too: this is no read.
    return NotingDict(own, config.read) if isinstance(config, NotingDict) else own
