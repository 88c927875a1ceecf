"""What TensorBoard shows of trials: their metrics, and its table of hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from orca._native import _core

__all__ = ["TrialEvents", "hparams_of"]


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


class TrialEvents:
    """The event file of one trial. A full disk costs events, never the trial.

    Args:
        folder: Where it is made; it is there.
        config: The trial's hyper-parameters.
        prefix: Of the names of its metrics.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], prefix: str = "ray/tune/") -> None:
        self._writer = _core.EventWriter(folder)
        self._hparams, self._prefix = hparams_of(config), prefix

    def add(self, row: Mapping[str, Any], step: int) -> None:
        """The numbers of a report."""
        for name, value in row.items():
            if is_number(value):
                self._writer.add_scalar(f"{self._prefix}{name}", float(value), step)

    def close(self, *, has_failed: bool = False, began: float = 0.0) -> None:
        """Puts the trial into the table of hyper-parameters; ``began`` in seconds since 1970."""
        self._writer.add_hparams(self._hparams, has_failed=has_failed, began=began)


def steps_of(values: Any) -> Sequence[Any]:
    """A metric's values by step; one alone is a list of one."""
    return values if isinstance(values, list | tuple) else [values]
