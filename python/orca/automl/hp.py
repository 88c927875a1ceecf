"""What a parameter may be: the laws that a search draws from.

Upper ends of integers are excluded, as in Ray Tune; with a step ``q`` values are rounded to its multiples, half
to even.

Example:
    >>> from orca.automl import hp
    >>> space = {"lr": hp.loguniform(1e-4, 1e-1), "batch_size": hp.choice([32, 64]), "epochs": 3}
    >>> space["lr"]
    loguniform(0.0001, 0.1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orca.errors import InvalidArgumentError
from orca.tune.space import Domain, SampleFrom

__all__ = [
    "choice",
    "choice_n",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
]


def uniform(lower: float, upper: float) -> Domain:
    """A float of [lower, upper)."""
    return Domain("uniform", float(lower), float(upper))


def quniform(lower: float, upper: float, q: float) -> Domain:
    """A multiple of ``q`` in [lower, upper]; the ends, which must be multiples, come half as often."""
    return Domain("quniform", float(lower), float(upper), float(q))


def loguniform(lower: float, upper: float, base: float = 10) -> Domain:
    """A float of [lower, upper) whose logarithm is uniform. ``base`` changes nothing."""
    return Domain("loguniform", float(lower), float(upper))


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Domain:
    """As ``loguniform``, rounded to a multiple of ``q``; the ends must be multiples."""
    return Domain("qloguniform", float(lower), float(upper), float(q))


def randn(mean: float = 0.0, std: float = 1.0) -> Domain:
    """A normal float."""
    return Domain("randn", float(mean), float(std))


def qrandn(mean: float, std: float, q: float) -> Domain:
    """A normal float, rounded to a multiple of ``q``."""
    return Domain("qrandn", float(mean), float(std), float(q))


def randint(lower: int, upper: int) -> Domain:
    """An integer of lower .. upper - 1."""
    return Domain("randint", _whole("lower", lower), _whole("upper", upper))


def qrandint(lower: int, upper: int, q: int = 1) -> Domain:
    """As ``randint``, rounded to a multiple of ``q``; the ends are first moved inwards to multiples."""
    return Domain("qrandint", _whole("lower", lower), _whole("upper", upper), _whole("q", q))


def lograndint(lower: int, upper: int, base: float = 10) -> Domain:
    """An integer of lower .. upper - 1, small ones more often. ``base`` changes nothing."""
    return Domain("lograndint", _whole("lower", lower), _whole("upper", upper))


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Domain:
    """As ``lograndint``, rounded to a multiple of ``q``."""
    return Domain("qlograndint", _whole("lower", lower), _whole("upper", upper), _whole("q", q))


def choice(categories: Sequence[Any]) -> Domain:
    """One of the categories, which keep their types. Dicts and lists in them may hold domains.

    Example:
        >>> from orca.automl import hp
        >>> hp.choice(["adam", {"name": "sgd", "momentum": hp.uniform(0, 1)}])
        choice(['adam', {'name': 'sgd', 'momentum': uniform(0.0, 1.0)}])
    """
    options = list(categories)
    if not options:
        raise InvalidArgumentError("choice got no categories; give at least one")
    return Domain("choice", options)


def choice_n(categories: Sequence[Any], min_items: int, max_items: int) -> Domain:
    """A list of ``min_items`` .. ``max_items - 1`` of the categories, none twice, in any order."""
    items = list(categories)
    low, high = _whole("min_items", min_items), _whole("max_items", max_items)
    if not 0 <= low < high <= len(items) + 1:
        raise InvalidArgumentError(
            f"choice_n cannot take {low} to {high - 1} (max_items is excluded) of {len(items)} items"
        )
    return Domain("choice_n", items, low, high)


def sample_from(func: Callable[..., Any]) -> SampleFrom:
    """What ``func(spec)`` or ``func()`` returns; ``spec.config`` has the values of the other keys.

    Example:
        >>> from orca.automl import hp
        >>> from orca.tune.space import SearchSpace
        >>> space = {"width": hp.choice([8]), "depth": hp.sample_from(lambda spec: spec.config.width // 2)}
        >>> SearchSpace(space).draw(seed=0, trial=0)
        {'width': 8, 'depth': 4}
    """
    return SampleFrom(func)


def grid_search(values: list[Any]) -> dict[str, list[Any]]:
    """All of the values, each as often as every other."""
    if not isinstance(values, list):
        raise InvalidArgumentError(f"grid_search wants a list, not {values!r}")
    return {"grid_search": values}


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise InvalidArgumentError(f"{name} {value!r} is not a whole number")
    return int(value)
