"""The settings of a group, which both ``orca.comm`` and ``orca.distributed`` take."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from orca._native import _core


def as_text(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the settings as the engine reads them, without those that are None.

    Args:
        settings: The names of ``orca::comm::CommOptions`` and values; times are seconds or
            ``timedelta``.

    Returns:
        Names and texts.

    Raises:
        InvalidArgumentError: A name is unknown or a value is not possible; the message says what is.

    Example:
        >>> as_text({"streams": 2, "wire_bf16": True, "host": None})
        {'streams': '2', 'wire_bf16': '1'}
    """
    texts = {name: _text(value) for name, value in settings.items() if value is not None}
    _core.check_options(texts)
    return texts


def _text(value: Any) -> str:
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    return str(int(value)) if isinstance(value, bool) else str(value)
