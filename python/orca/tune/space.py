"""Search spaces: dicts whose values are domains of ``orca.automl.hp``, constants, or dicts and lists of such.

Domains are found at any depth; each gets the path of its keys as its name, ``"model/layers/0"``. A choice
may hold domains in its options: those exist only in trials that take the option.

Example:
    >>> from orca.automl import hp
    >>> from orca.tune.space import SearchSpace
    >>> space = SearchSpace({"lr": hp.loguniform(1e-4, 1e-1), "layers": [{"width": hp.choice([8, 16])}]})
    >>> space.names
    ['layers/0/width', 'lr']
    >>> sorted(space.draw(seed=1, trial=0))
    ['layers', 'lr']
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orca._native import _core
from orca.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["Domain", "RecursiveDependencyError", "SampleFrom", "SearchSpace"]

_NAN = math.nan
_MAX_PASSES = 20


class RecursiveDependencyError(FailedPreconditionError):
    """Functions of ``sample_from`` wait for each other."""


class Domain:
    """A parameter that a study chooses. Made by the functions of ``orca.automl.hp``.

    Attributes:
        law: The name of the function that made it.
        arguments: What it was given.
    """

    def __init__(self, law: str, *arguments: Any) -> None:
        self.law = law
        self.arguments = arguments
        if law not in ("choice", "choice_n"):
            self.parameter(law)  # Says now what is wrong with it.

    def parameter(self, name: str) -> Any:
        """The engine's parameter, for all but choices."""
        return getattr(_core.TuneParameter, self.law)(name, *self.arguments)

    def sample(self, seed: int = 0, trial: int = 0) -> Any:
        """A value that a random search might take.

        Example:
            >>> from orca.automl import hp
            >>> hp.randint(3, 4).sample()
            3
        """
        return SearchSpace({"": self}).draw(seed, trial)[""]

    def __repr__(self) -> str:
        return f"{self.law}({', '.join(map(repr, self.arguments))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and (other.law, other.arguments) == (
            self.law,
            self.arguments,
        )

    def __hash__(self) -> int:
        return hash((self.law, repr(self.arguments)))


class SampleFrom:
    """A value that a function makes from the others of the configuration."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise InvalidArgumentError(f"sample_from wants a function, not {function!r}")
        self.function = function
        try:
            self._wants_spec = len(inspect.signature(function).parameters) > 0
        except (TypeError, ValueError):  # A builtin that does not tell.
            self._wants_spec = False

    def call(self, spec: Any) -> Any:
        """The value, given a ``spec`` whose ``config`` has the other values."""
        return self.function(spec) if self._wants_spec else self.function()

    def __repr__(self) -> str:
        return f"sample_from({self.function!r})"


class _NotResolvedYet(Exception):  # noqa: N818 - a signal between functions of this file
    """A function of ``sample_from`` asked for a value that is not there yet."""


class _Pending:
    """In a configuration: what ``sample_from`` has yet to fill."""

    def __init__(self, function: SampleFrom) -> None:
        self.function = function


class _View(dict[str, Any]):
    """A configuration whose keys are attributes, too, as Ray's ``spec.config.x``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}") from None

    def __getitem__(self, name: str) -> Any:
        return _view(super().__getitem__(name))


def _view(value: Any) -> Any:
    if isinstance(value, _Pending):
        raise _NotResolvedYet
    return _View(value) if type(value) is dict else value


class _Spec:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = _View(config)


# What a space is made of. Each makes its value from a point, and puts a given value into one.


class _Constant:
    def __init__(self, value: Any) -> None:
        self.value = value

    def make(self, point: Sequence[float]) -> Any:
        return _copied(self.value)

    def put(self, value: Any, point: list[float]) -> None:
        if not _same(value, self.value):
            raise InvalidArgumentError(f"{value!r} is given for the constant {self.value!r}")


class _Function:
    def __init__(self, function: SampleFrom) -> None:
        self.function = function

    def make(self, point: Sequence[float]) -> Any:
        return _Pending(self.function)

    def put(self, value: Any, point: list[float]) -> None:
        raise InvalidArgumentError("a value of sample_from cannot be given; leave its key out")


class _Number:
    def __init__(self, index: int, parameter: Any) -> None:
        self.index = index
        self.parameter = parameter
        self.is_integer = parameter.is_integer

    def make(self, point: Sequence[float]) -> Any:
        value = point[self.index]
        return int(value) if self.is_integer else value

    def put(self, value: Any, point: list[float]) -> None:
        if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
            raise InvalidArgumentError(f"{self.parameter.name}: {value!r} is not a number")
        self.parameter.check(float(value))
        point[self.index] = float(value)


class _Choice:
    def __init__(self, index: int, name: str, options: list[Any]) -> None:
        self.index = index
        self.name = name
        self.options = options

    def make(self, point: Sequence[float]) -> Any:
        return self.options[int(point[self.index])].make(point)

    def put(self, value: Any, point: list[float]) -> None:
        for i, option in enumerate(self.options):
            tried = list(point)
            try:
                option.put(value, tried)
            except InvalidArgumentError:
                continue
            point[:] = tried
            point[self.index] = float(i)
            return
        raise InvalidArgumentError(f"{self.name}: {value!r} is none of its choices")


class _Subset:
    def __init__(self, first: int, name: str, items: list[Any]) -> None:
        self.first = first
        self.name = name
        self.items = items

    def make(self, point: Sequence[float]) -> Any:
        keys = point[self.first + 1 : self.first + 1 + len(self.items)]
        order = sorted(range(len(self.items)), key=keys.__getitem__)
        return [self.items[i] for i in order[: int(point[self.first])]]

    def put(self, value: Any, point: list[float]) -> None:
        chosen = [next((i for i, x in enumerate(self.items) if _same(x, v)), -1) for v in value]
        if -1 in chosen or len(set(chosen)) != len(chosen):
            raise InvalidArgumentError(
                f"{self.name}: {value!r} is not a selection of {self.items!r}"
            )
        point[self.first] = float(len(chosen))
        order = chosen + [i for i in range(len(self.items)) if i not in chosen]
        for place, i in enumerate(order):
            point[self.first + 1 + i] = (place + 0.5) / len(self.items)


class _Dict:
    def __init__(self, fields: dict[Any, Any]) -> None:
        self.fields = fields
        self._pairs = list(fields.items())

    def make(self, point: Sequence[float]) -> dict[Any, Any]:
        return {key: node.make(point) for key, node in self._pairs}

    def put(self, value: Any, point: list[float]) -> None:
        if not isinstance(value, Mapping):
            raise InvalidArgumentError(f"{value!r} is given for a dict")
        for key, part in value.items():
            if key not in self.fields:
                raise InvalidArgumentError(
                    f"the search space has no key {key!r}; known: {', '.join(map(str, self.fields))}"
                )
            self.fields[key].put(part, point)


class _List:
    def __init__(self, nodes: list[Any], kind: type) -> None:
        self.nodes = nodes
        self.kind = kind

    def make(self, point: Sequence[float]) -> Any:
        return self.kind(node.make(point) for node in self.nodes)

    def put(self, value: Any, point: list[float]) -> None:
        if not isinstance(value, list | tuple) or len(value) != len(self.nodes):
            raise InvalidArgumentError(f"{value!r} is given for a list of {len(self.nodes)}")
        for node, part in zip(self.nodes, value, strict=True):
            node.put(part, point)


class SearchSpace:
    """A space as the engine knows it, and the way from its points to configurations.

    Args:
        space: A dict as above.

    Attributes:
        native: The engine's space.
        names: The paths of all parameters.
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        if not isinstance(space, Mapping):
            raise InvalidArgumentError(
                f"a search space is a dict of hp functions and constants, not {space!r}"
            )
        self._parameters: list[Any] = []
        self._labels: dict[str, list[Any]] = {}
        self._has_functions = False
        self._root = self._walk(dict(space), "", None)
        self.names: list[str] = [parameter.name for parameter in self._parameters]
        if space and not self._parameters:
            # Constants and functions alone: all trials have them, and the engine something to draw.
            self._parameters.append(_core.TuneParameter.uniform("#", 0.0, 1.0))
        self.native = _core.TuneSpace(self._parameters)

    def draw(self, seed: int, trial: int) -> dict[str, Any]:
        """The configuration of a random search."""
        return self.config(self.native.draw(seed, trial))

    def config(self, point: Sequence[float]) -> dict[str, Any]:
        """The configuration at a point; calls the functions of ``sample_from``."""
        config: dict[str, Any] = self._root.make(point)
        return _resolve(config) if self._has_functions else config

    def changed(self, point: Sequence[float], values: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration at a point where a scheduler has put other values, by the names of parameters."""
        moved, foreign = list(point), dict(values)
        for i, name in enumerate(self.names):
            if name in values and (number := self._number(i, values[name])) is not None:
                moved[i] = number
                del foreign[name]
        config = self.config(moved)
        for name, value in foreign.items():
            *way, last = re.sub(r"\[\d+\](?=/)", "", name).split("/")
            place: Any = config
            for part in way:
                place = place[int(part) if isinstance(place, list) else part]
            place[int(last) if isinstance(place, list) else last] = value
        return config

    def _number(self, index: int, value: Any) -> float | None:
        """What a point has for a value of a parameter; None: it is not one of its values."""
        if (labels := self._labels.get(self.names[index])) is not None:
            return next((float(i) for i, label in enumerate(labels) if _same(label, value)), None)
        try:
            self._parameters[index].check(float(value))
        except (TypeError, ValueError):
            return None
        return float(value)

    def point(self, config: Mapping[str, Any]) -> list[float]:
        """The point of a configuration; NaN for what it does not say.

        Raises:
            InvalidArgumentError: It has a key or a value that the space has not.
        """
        point = [_NAN] * len(self._parameters)
        self._root.put(config, point)
        return point

    def _add(self, parameter: Any, condition: tuple[str, int] | None) -> int:
        if condition is not None:
            parameter = parameter.when(*condition)
        self._parameters.append(parameter)
        return len(self._parameters) - 1

    def _walk(self, value: Any, path: str, condition: tuple[str, int] | None) -> Any:
        if isinstance(value, SampleFrom):
            self._has_functions = True
            return _Function(value)
        if isinstance(value, Domain):
            return self._walk_domain(value, path, condition)
        if isinstance(value, Mapping):
            if set(value) == {"grid_search"}:
                return self._walk_grid(value["grid_search"], path, condition)
            # By name, so that the order in which a dict was written changes nothing.
            keys = sorted(value, key=str)
            nodes = {key: self._walk(value[key], _join(path, key), condition) for key in keys}
            if path and all(isinstance(node, _Constant) for node in nodes.values()):
                return _Constant(value)
            return _Dict({key: nodes[key] for key in value})
        if type(value) in (list, tuple):
            items = [self._walk(item, _join(path, i), condition) for i, item in enumerate(value)]
            if all(isinstance(item, _Constant) for item in items):
                return _Constant(value)
            return _List(items, type(value))
        return _Constant(value)

    def _walk_domain(self, domain: Domain, path: str, condition: tuple[str, int] | None) -> Any:
        if domain.law == "choice":
            (options,) = domain.arguments
            labels = self._labels[path] = [_label(i, option) for i, option in enumerate(options)]
            index = self._add(_core.TuneParameter.choice(path, labels), condition)
            return _Choice(
                index,
                path,
                [self._walk(x, f"{path}[{i}]", (path, i)) for i, x in enumerate(options)],
            )
        if domain.law == "choice_n":
            items, low, high = domain.arguments
            parameters = _core.TuneParameter.subset(path, len(items), low, high)
            first = len(self._parameters)
            for parameter in parameters:
                self._add(parameter, condition)
            return _Subset(first, path, items)
        parameter = domain.parameter(path)
        return _Number(self._add(parameter, condition), parameter)

    def _walk_grid(self, values: Any, path: str, condition: tuple[str, int] | None) -> Any:
        if not isinstance(values, list):
            raise InvalidArgumentError(f"{path}: grid_search wants a list, not {values!r}")
        labels = self._labels[path] = [_label(i, value) for i, value in enumerate(values)]
        index = self._add(_core.TuneParameter.grid(path, labels), condition)
        return _Choice(index, path, [_Constant(value) for value in values])


def _law(value: Any) -> str:
    if isinstance(value, Domain):
        return f"<{value.law}>"
    raise TypeError


def _label(index: int, option: Any) -> Any:
    """What the engine, its files and its tables call an option: itself, if it is a plain value."""
    if isinstance(option, bool | str):
        return option
    if isinstance(option, int) and abs(option) < 1 << 53:
        return int(option)
    if isinstance(option, float) and math.isfinite(option):
        return float(option)
    try:
        return json.dumps(option, default=_law)
    except (TypeError, ValueError):  # Objects have no text that stays the same.
        return f"option {index}"


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def _copied(value: Any) -> Any:
    """The same value in dicts and lists of its own: what a trial does to it, no other trial sees."""
    if type(value) is dict:
        return {key: _copied(part) for key, part in value.items()}
    if type(value) is list:
        return [_copied(part) for part in value]
    return value


def _same(a: Any, b: Any) -> bool:
    """Equality that tells True from 1, and does not trip over arrays."""
    if a is b:
        return True
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    try:
        return bool(a == b)
    except (TypeError, ValueError):
        return False


def _resolve(config: dict[str, Any]) -> dict[str, Any]:
    """Calls the functions in ``config`` until none is left; some wait for the values of others."""
    spec = _Spec(config)
    for _ in range(_MAX_PASSES):
        waiting = 0
        stack: list[Any] = [config]
        while stack:
            node = stack.pop()
            pairs: Any = node.items() if isinstance(node, dict) else enumerate(node)
            for key, value in list(pairs):
                if isinstance(value, _Pending):
                    try:
                        node[key] = value.function.call(spec)
                    except _NotResolvedYet:
                        waiting += 1
                    spec = _Spec(config)
                elif type(value) in (dict, list):
                    stack.append(value)
        if waiting == 0:
            return config
    raise RecursiveDependencyError(
        f"{waiting} functions of sample_from still wait for each other after {_MAX_PASSES} passes"
    )
