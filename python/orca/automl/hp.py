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

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from orca.errors import InvalidArgumentError
from orca.tune.arguments import number
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
    return Domain("uniform", *_ends(lower, upper))


def quniform(lower: float, upper: float, q: float) -> Domain:
    """A multiple of ``q`` in [lower, upper]; the ends, which must be multiples, come half as often."""
    return Domain("quniform", *_ends(lower, upper), _step(q))


def loguniform(lower: float, upper: float, base: float = 10) -> Domain:
    """A float of [lower, upper) whose logarithm is uniform. ``base`` changes nothing."""
    return Domain("loguniform", *_ends(*_log_ends(lower, upper)))


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Domain:
    """As ``loguniform``, rounded to a multiple of ``q``; the ends must be multiples."""
    return Domain("qloguniform", *_ends(*_log_ends(lower, upper)), _step(q))


def randn(mean: float = 0.0, std: float = 1.0) -> Domain:
    """A normal float."""
    return Domain("randn", number("mean", mean), _deviation(std))


def qrandn(mean: float, std: float, q: float) -> Domain:
    """A normal float, rounded to a multiple of ``q``."""
    return Domain("qrandn", number("mean", mean), _deviation(std), float(_step(q)))


def randint(lower: int, upper: int) -> Domain:
    """An integer of lower .. upper - 1."""
    return Domain("randint", _whole("lower", lower), _whole("upper", upper))


def qrandint(lower: int, upper: int, q: int = 1) -> Domain:
    """As ``randint``, rounded to a multiple of ``q``; the ends are first moved inwards to multiples."""
    return Domain("qrandint", _whole("lower", lower), _whole("upper", upper), _step(_whole("q", q)))


def lograndint(lower: int, upper: int, base: float = 10) -> Domain:
    """An integer of lower .. upper - 1, small ones more often. ``base`` changes nothing."""
    return Domain("lograndint", *_log_ends(_whole("lower", lower), _whole("upper", upper)))


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Domain:
    """As ``lograndint``, rounded to a multiple of ``q``."""
    return Domain(
        "qlograndint",
        *_log_ends(_whole("lower", lower), _whole("upper", upper)),
        _step(_whole("q", q)),
    )


def choice(categories: Sequence[Any]) -> Domain:
    """One of the categories, which keep their types. Dicts and lists in them may hold domains.

    Example:
        >>> from orca.automl import hp
        >>> hp.choice(["adam", {"name": "sgd", "momentum": hp.uniform(0, 1)}])
        choice(['adam', {'name': 'sgd', 'momentum': uniform(0.0, 1.0)}])
    """
    options = _listed("choice", categories)
    if not options:
        raise InvalidArgumentError("choice got no categories; give at least one")
    return Domain("choice", options)


def choice_n(categories: Sequence[Any], min_items: int, max_items: int) -> Domain:
    """A list of ``min_items`` .. ``max_items - 1`` of the categories, none twice, in any order."""
    items = _listed("choice_n", categories)
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


def _ends(lower: Any, upper: Any) -> tuple[float, float]:
    return number("lower", lower), number("upper", upper)


def _log_ends(lower: Any, upper: Any) -> tuple[Any, Any]:
    _ends(lower, upper)
    if not lower > 0:
        raise InvalidArgumentError(
            f"lower {lower!r} is not positive, as the ends of a logarithmic law must be; give more than 0, or take a law "
            "without log"
        )
    return lower, upper


def _step(q: Any) -> Any:
    if not number("q", q) > 0:
        raise InvalidArgumentError(f"q {q!r} is not positive; give a step above 0")
    return q if isinstance(q, int) else float(q)


def _deviation(std: Any) -> float:
    if not number("std", std) > 0:
        raise InvalidArgumentError(
            f"std {std!r} is not positive; give a standard deviation above 0, or a constant in place of the law"
        )
    return float(std)


def _listed(law: str, categories: Any) -> list[Any]:
    if isinstance(categories, str | bytes) or not isinstance(categories, Iterable):
        raise InvalidArgumentError(f"{law} got {categories!r}; give a list of what to choose from")
    return list(categories)


def _whole(name: str, value: Any) -> int:
    found = number(name, value, "a whole number")
    if not found.is_integer():
        raise InvalidArgumentError(f"{name} {value!r} is not a whole number; give one")
    if abs(found) >= 1 << 53:
        raise InvalidArgumentError(
            f"{name} {value!r} is too large; give a whole number of less than 2**53"
        )
    return int(value)
