"""What the arguments of a search say beside an algorithm's own parameters, and the checks of both."""

from __future__ import annotations

import json
import math
import operator
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orca.errors import InvalidArgumentError
from orca.tune.space import Domain, SampleFrom, SearchSpace

__all__ = [
    "changes_configs",
    "check_mutations",
    "count",
    "number",
    "parameters_of",
    "positive",
    "scheduler_parameters",
    "taken_functions",
    "warn",
]

_OURS = ("bigdl", "orca", "zoo")
_MOST_STEPS = 1000  # Of a law with steps that is made a list.
# What may choose for a scheduler that changes configurations: no searcher of the original.
_NO_SEARCHERS = ("auto", "grid", "random", "sobol", "variant_generator")
_MUTATIONS = {"pbt": "hyperparam_mutations", "pb2": "hyperparam_bounds"}


def count(name: str, value: Any, least: int = 0) -> int:
    """A whole number from ``least`` on, of any type that is one.

    Example:
        >>> import numpy
        >>> count("epochs", numpy.int64(3))
        3
    """
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if isinstance(value, bool) or found is None or found < least:
        raise InvalidArgumentError(f"{name} {value!r} is not a whole number of {least} or more")
    return found


def positive(name: str, value: Any) -> float | None:
    """A positive number of seconds, or None."""
    if value is None:
        return None
    seconds = number(name, value, "a positive number of seconds, or None")
    if not seconds > 0:
        raise InvalidArgumentError(
            f"{name} {value!r} is not a positive number of seconds; give more than 0, or None"
        )
    return seconds


def number(name: str, value: Any, wanted: str = "a number") -> float:
    """A number, of any type that is one; not a text."""
    if isinstance(value, str | bytes | bool) or not hasattr(value, "__float__"):
        raise InvalidArgumentError(f"{name} {value!r} is a {type(value).__name__}; give {wanted}")
    found = float(value)
    if math.isnan(found):
        raise InvalidArgumentError(f"{name} {value!r} is not a number; give {wanted}")
    return found


def warn(message: str) -> None:
    """Warns at the line of the program that called us, however deep that is below here."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def parameters_of(what: str, given: Any, metric: str, mode: str) -> dict[str, Any]:
    """A dict of parameters as the user gave it, without what is said elsewhere.

    Args:
        what: Its name.
        given: The dict, or None.
        metric: Of the study; the same in the dict is dropped.
        mode: Of the study; the same.

    Raises:
        InvalidArgumentError: It is no dict, or says something else than the study.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"{what} {given!r} is a {type(given).__name__}; give a dict of parameters by name"
        )
    found = dict(given)
    for name, own in (("metric", metric), ("mode", mode)):
        other = found.pop(name, None)
        if other is not None and other != own:
            raise InvalidArgumentError(
                f"{what} has the {name} {other!r}, the search has {own!r}; give one of them, best not in {what}"
            )
    if found.pop("time_attr", "training_iteration") != "training_iteration":
        raise InvalidArgumentError(
            f"{what} has the time_attr {given['time_attr']!r}; trials report by 'training_iteration' only, "
            "which counts epochs: leave it out"
        )
    return found


def changes_configs(scheduler: str) -> bool:
    """Whether a scheduler changes configurations while trials run."""
    return scheduler.lower() in _MUTATIONS


def check_mutations(
    search_alg: str,
    scheduler: str,
    parameters: Mapping[str, Any],
    space: Mapping[str, Any],
    names: Sequence[str],
) -> None:
    """Refuses what schedulers that change configurations cannot do."""
    argument = _MUTATIONS.get(scheduler.lower())
    if argument is None:
        return
    if search_alg.lower() not in _NO_SEARCHERS:
        raise InvalidArgumentError(
            f"scheduler {scheduler!r} cannot be used with search_alg {search_alg!r}: it changes configurations while trials "
            "run, so that results are not those of what was proposed; leave search_alg out, or give 'random'"
        )
    known = dict.fromkeys([*names, *map(str, space)])
    for key in _keys(parameters.get(argument)):
        if key not in known and not _is_in(space, key):
            raise InvalidArgumentError(
                f"{argument} has the key {key!r}, which search_space has not; known: {', '.join(known)}"
            )


def _is_in(space: Any, key: str) -> bool:
    for part in key.split("/"):
        if isinstance(space, list | tuple) and part.isdecimal() and int(part) < len(space):
            space = space[int(part)]
        elif isinstance(space, Mapping) and part in space:
            space = space[part]
        else:
            return False
    return True


def _keys(mutations: Any, path: str = "") -> list[str]:
    if not isinstance(mutations, Mapping) or {"lower", "upper"} <= set(mutations):
        return [path] if path else []
    inner = ((f"{path}/{key}" if path else str(key), part) for key, part in mutations.items())
    return [key for own, part in inner for key in _keys(part, own)]


def taken_functions(
    scheduler: str,
    parameters: dict[str, Any],
    space: SearchSpace,
    made: Callable[[int], dict[str, Any]],
) -> dict[str, Any]:
    """Takes the functions out of a scheduler's parameters, which is JSON then.

    Args:
        scheduler: Its name.
        parameters: Those of PBT may have functions and laws without ends as mutations, and a ``custom_explore_fn``.
        space: Of the search.
        made: What functions of ``sample_from`` made for a trial.

    Returns:
        What the engine calls: ``draws`` and ``explore``.
    """
    found: dict[str, Any] = {}
    argument = _MUTATIONS.get(scheduler.lower())
    if argument is None:
        return found
    draws: dict[str, Callable[[int], str]] = {}
    if isinstance(parameters.get(argument), Mapping):
        parameters[argument] = _without_functions(parameters[argument], "", draws, space)
    found["draws"] = draws
    explore = parameters.pop("custom_explore_fn", None)
    if explore is not None:
        if not callable(explore):
            raise InvalidArgumentError(
                f"custom_explore_fn {explore!r} is not a function; give f(config) of a configuration"
            )

        def call(config: str, source: int) -> str:
            values = space.explored(json.loads(config), explore, made(source))
            try:
                return json.dumps(values, default=_plain, allow_nan=False)
            except ValueError as error:
                raise InvalidArgumentError(
                    f"custom_explore_fn gave {values!r}, which is not JSON: {error}"
                ) from None

        found["explore"] = call
    return found


def _without_functions(
    value: Any, path: str, draws: dict[str, Callable[[int], str]], space: SearchSpace
) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _without_functions(part, f"{path}/{key}" if path else str(key), draws, space)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [space.label(path, part) for part in value]
    if isinstance(value, Domain) and value.law == "choice":
        return [space.label(path, part) for part in _plain(value)]
    if isinstance(value, Domain) and value.law in ("randn", "qrandn"):
        draws[path] = lambda random: json.dumps(value.sample(random), default=_plain)
    elif isinstance(value, SampleFrom):
        draws[path] = lambda _: json.dumps(value.call(None), default=_plain)
    elif callable(value) and not isinstance(value, Domain):
        draws[path] = lambda _: json.dumps(value(), default=_plain)
    else:
        return value
    return None


def scheduler_parameters(parameters: Mapping[str, Any]) -> str:
    """The parameters as JSON."""
    try:
        return json.dumps(dict(parameters), default=_plain)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"scheduler_params are not JSON: {error}") from None


def _plain(value: Any) -> Any:
    """What JSON has no word for: numbers of numpy, and the laws that values of mutations may come from."""
    if hasattr(value, "tolist"):
        return value.tolist()
    law, ends = (value.law, value.arguments) if isinstance(value, Domain) else ("", ())
    if law in ("uniform", "loguniform"):
        return {"lower": ends[0], "upper": ends[1], "log": law == "loguniform"}
    if law in (
        "randint",
        "lograndint",
    ):  # Of whole numbers the engine drops what is behind the point.
        return {
            "lower": ends[0],
            "upper": math.nextafter(ends[1], ends[0]),
            "log": law == "lograndint",
            "whole": True,
        }
    if law in ("quniform", "qloguniform", "qrandint", "qlograndint"):
        return _steps(value, *ends)
    if law == "choice":
        options: list[Any] = ends[0]
        if laws := [option for option in options if isinstance(option, Domain)]:
            raise InvalidArgumentError(
                f"scheduler_params have {laws[0]!r} in a choice; give a list of values"
            )
        return options
    raise InvalidArgumentError(
        f"scheduler_params have {value!r}, a {type(value).__name__}, which is not taken; mutations are lists of values, "
        "laws of hp or functions"
    )


def _steps(law: Domain, lower: float, upper: float, q: float) -> list[float]:
    first, last = math.ceil(lower / q - 1e-9), math.floor(upper / q + 1e-9)
    if last - first >= _MOST_STEPS:
        raise InvalidArgumentError(
            f"{law!r} of scheduler_params has {last - first + 1} values, more than {_MOST_STEPS}; give a list of some"
        )
    return [step * q for step in range(first, last + 1)]
