"""Configurations as TensorBoard's table of hyper-parameters has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

__all__ = ["hparams_of", "is_number"]


def hparams_of(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """A configuration as numbers, truths and texts, with the paths of nested ones as names.

    Example:
        >>> hparams_of({"lr": 0.1, "net": {"widths": [8, 4], "bias": True}, "none": None})
        {'lr': 0.1, 'net/widths': '[8, 4]', 'net/bias': True}
    """
    found: dict[str, bool | float | str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= hparams_of(value, f"{name}/")
        elif isinstance(value, bool | np.bool_):
            found[name] = bool(value)
        elif is_number(value):
            found[name] = float(value)
        elif value is not None and not isinstance(value, Real):  # No NaN.
            found[name] = str(value)
    return found


def is_number(value: Any) -> bool:
    """Whether it is a number that can be drawn."""
    if type(value) is float or type(value) is int:  # To ask for a Real takes ten times as long.
        return math.isfinite(value)
    if isinstance(value, bool | np.bool_):
        return False
    return isinstance(value, Real) and math.isfinite(value)
