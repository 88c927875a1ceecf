"""A metric of the engine on arrays of any framework."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from orca._native import _core
from orca.errors import InvalidArgumentError

__all__ = ["EngineMetric", "MetricValue"]

MetricValue: TypeAlias = "float | dict[str, np.ndarray[Any, Any]]"
"""A number, or the arrays of a curve by name."""

# What the engine computes with, and what becomes of other types.
_KNOWN = {
    np.dtype(name)
    for name in ("float64", "float32", "int8", "int16", "int32", "int64", "uint8", "bool")
}
_CONVERTED: dict[str, Any] = {"f": np.float64, "i": np.int64, "u": np.int64}


def as_array(data: Any) -> np.ndarray[Any, Any]:
    """Return ``data`` as a contiguous array of a type that the engine computes with.

    float16 and bfloat16 become float32, unsigned integers become int64. A tensor of torch may be on
    any device and may need gradients.
    """
    if hasattr(data, "detach"):  # A tensor; torch itself is not needed for it.
        tensor = data.detach().cpu()
        is_half = tensor.is_floating_point() and tensor.element_size() < 4
        data = (tensor.float() if is_half else tensor).numpy()
    array = np.asarray(data)
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    elif array.dtype not in _KNOWN:
        if array.dtype.kind not in _CONVERTED:
            raise InvalidArgumentError(
                f"a metric got an array of {array.dtype}; give numbers or booleans"
            )
        array = array.astype(_CONVERTED[array.dtype.kind])
    return np.require(array, requirements="C")


class EngineMetric:
    """A measure of predictions that is taken in parts, which add up to the bit.

    Several threads may use it. It can be pickled with all that it has seen.

    Args:
        name: One of ``EngineMetric.names()``.
        label: What results call it; by default the name.
        **options: ``threshold`` of BinaryAccuracy, ``zero_based_label`` of Accuracy,
            ``threshold_num`` of AUC (0: exact).

    Raises:
        InvalidArgumentError: There is no such metric, or an option is out of range.

    Example:
        >>> import numpy as np
        >>> whole, part = EngineMetric("MAE"), EngineMetric("MAE")
        >>> whole(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
        >>> part(np.array([5.0]), np.array([0.0]))
        >>> whole.merge(part.state())
        >>> round(whole.value(), 3)
        2.333
    """

    def __init__(self, name: str, label: str | None = None, **options: Any) -> None:
        self.name = label or name
        self._spec = (name, options)
        self.reset()

    @staticmethod
    def names() -> list[str]:
        """All metrics that the engine knows."""
        return list(_core.metric_names())

    def __call__(self, preds: Any, targets: Any) -> None:
        """Add a batch; for ``"Mean"``, values and their weights."""
        self._native.update(as_array(preds), as_array(targets))

    def value(self) -> MetricValue:
        """Return the number, or the arrays of a curve; NaN when nothing was added."""
        named = self._native.value()
        if len(named) == 1 and isinstance(named[0][1], float):
            return named[0][1]
        return dict(named)

    def compute(self) -> MetricValue:
        """Return ``value()``, by the name that metrics of torch have for it."""
        return self.value()

    def state(self) -> bytes:
        """Return all that was added, for ``merge`` in another process."""
        state: bytes = self._native.state()
        return state

    def merge(self, state: bytes) -> None:
        """Add what another metric of the same name and options has seen."""
        self._native.merge(state)

    def reset(self) -> None:
        """Forget everything."""
        name, options = self._spec
        self._native = _core.Metric(name, **options)

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "_spec": self._spec, "state": self.state()}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.name, self._spec = kept["name"], kept["_spec"]
        self.reset()
        self.merge(kept["state"])
