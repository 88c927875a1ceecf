"""Arguments that old scripts give by position: the order of ``fit`` and ``evaluate`` changed with the releases."""

from __future__ import annotations

import functools
from typing import Any

_OF_ENGINE = {
    "fit": "data epochs batch_size feature_cols label_cols validation_data checkpoint_trigger",
    "evaluate": "data batch_size feature_cols label_cols validation_metrics",
}
_OF_ENGINE_AT_FIRST = {
    "fit": "data epochs batch_size validation_data validation_methods checkpoint_trigger",
    "evaluate": "data validation_methods batch_size",
}
_FIT_AT_FIRST = "data epochs profile reduce_results info"


def in_any_order(method: Any) -> Any:
    """Gives names to positional arguments, by backend and by what was given."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        names = _names(method.__name__, self.backend, args)
        if names is None:
            return method(self, *args, **kwargs)
        return method(self, *args[len(names) :], **dict(zip(names, args, strict=False)), **kwargs)

    return wrapper


def _names(method: str, backend: str, given: tuple[Any, ...]) -> list[str] | None:
    """None: as the method has them."""
    if backend == "bigdl":
        if method == "evaluate":
            was = len(given) > 1 and not isinstance(given[1], int | None)
        else:
            was = len(given) > 3 and not _are_columns(given[3])
        return (_OF_ENGINE_AT_FIRST if was else _OF_ENGINE)[method].split()
    if method == "fit" and len(given) > 2 and isinstance(given[2], bool):
        return _FIT_AT_FIRST.split()
    return None


def _are_columns(value: Any) -> bool:
    listed = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(each, str | None) for each in listed)
