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

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orca._native import _core
from orca.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["Domain", "RecursiveDependencyError", "SampleFrom", "SearchSpace"]

_NAN = math.nan
_MAX_PASSES = 20
_NOTHING = "#"  # What the engine draws where there is nothing to draw.
_LONG = 200  # Letters of a constant that a file keeps as it is.


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

    def __init__(self, function: SampleFrom, path: str) -> None:
        self.function = function
        self.path = path


class _DictView(dict[Any, Any]):
    """A dict of a configuration whose keys are attributes, too, as Ray's ``spec.config.x``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}") from None

    def __getitem__(self, key: Any) -> Any:
        return _view(super().__getitem__(key))

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()  # Without it copies would take values as they lie here.

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def values(self) -> Any:
        return [self[key] for key in self]


class _NotingView(_DictView):
    """The whole configuration; notes which of its keys a function looks at."""

    def __init__(self, config: dict[str, Any], read: set[str]) -> None:
        super().__init__(config)
        self._read = read

    def __getitem__(self, key: Any) -> Any:
        self._read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._read.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[Any]:
        self._read.update(dict.keys(self))
        return super().__iter__()

    def keys(self) -> Any:
        return list(self)


class _ListView(list[Any]):
    """A list of a configuration."""

    def __getitem__(self, index: Any) -> Any:
        return _view(super().__getitem__(index))

    def __iter__(self) -> Iterator[Any]:
        return map(_view, super().__iter__())


class _TupleView(tuple[Any, ...]):
    """A tuple of a configuration."""

    def __getitem__(self, index: Any) -> Any:
        return _view(super().__getitem__(index))

    def __iter__(self) -> Iterator[Any]:
        return map(_view, super().__iter__())


_VIEWS: dict[type, type] = {dict: _DictView, list: _ListView, tuple: _TupleView}


def _view(value: Any) -> Any:
    """What a function of ``sample_from`` sees of a value: it cannot get at what has yet to be filled."""
    if isinstance(value, _Pending):
        raise _NotResolvedYet
    kind = _VIEWS.get(type(value))
    return value if kind is None else kind(value)


def _plain(value: Any) -> Any:
    """What a function of ``sample_from`` returned, without views; it may have passed on what it was given."""
    if isinstance(value, _Pending):
        raise _NotResolvedYet
    if isinstance(value, Domain | SampleFrom):
        raise InvalidArgumentError(
            f"a function of sample_from returned {value!r}; return a value, or put the law into the search space "
            "under a key of its own"
        )
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()  # A number of numpy.
    if type(value) in (dict, _DictView):
        return {key: _plain(part) for key, part in value.items()}
    if type(value) in (list, _ListView):
        return [_plain(part) for part in value]
    if type(value) in (tuple, _TupleView):
        return tuple(_plain(part) for part in value)
    return value


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
    def __init__(self, function: SampleFrom, path: str) -> None:
        self.function = function
        self.path = path

    def make(self, point: Sequence[float]) -> Any:
        return _Pending(self.function, self.path)

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
        has_functions: Whether there is a ``sample_from``: the same point may then be another configuration.
        read: The keys that functions of ``sample_from`` have looked at.
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        if not isinstance(space, Mapping):
            raise InvalidArgumentError(
                f"a search space is a dict of hp functions and constants, not {space!r}"
            )
        self._parameters: list[Any] = []
        self._options: dict[str, list[tuple[Any, Any]]] = {}  # Labels and nodes, by path.
        self.has_functions = False
        self.read: set[str] = set()
        self._root = self._walk(dict(space), "", None)
        self.names: list[str] = [parameter.name for parameter in self._parameters]
        if space and not self._parameters:
            # Constants and functions alone: all trials have them, and the engine something to draw.
            self._parameters.append(_core.TuneParameter.uniform(_NOTHING, 0.0, 1.0))
        self.native = _core.TuneSpace(self._parameters)

    def draw(self, seed: int, trial: int) -> dict[str, Any]:
        """The configuration of a random search."""
        return self.config(self.native.draw(seed, trial))

    def config(self, point: Sequence[float], made: dict[str, Any] | None = None) -> dict[str, Any]:
        """The configuration at a point.

        Args:
            point: Of the engine.
            made: What functions of ``sample_from`` have made, by their paths. Others are called, and what they make is put there.
        """
        config: dict[str, Any] = self._root.make(point)
        if self.has_functions:
            _resolve(config, {} if made is None else made, self.read)
        return config

    def constants(self) -> dict[str, Any]:
        """What is the same in all trials, by its path, in words that files keep."""
        return dict(_constants(self._root, ""))

    def changed(
        self,
        point: Sequence[float],
        values: Mapping[str, Any],
        made: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """As ``config``, where a scheduler has put other values, by the names of parameters."""
        return self._changed(point, values, {} if made is None else made)[0]

    def _changed(
        self, point: Sequence[float], values: Mapping[str, Any], made: dict[str, Any]
    ) -> tuple[dict[str, Any], list[float]]:
        """The configuration, and the point whose options it has."""
        moved, foreign = list(point), _by_path(values, self.names)
        foreign.pop(_NOTHING, None)
        for i, name in enumerate(self.names):
            if name in foreign and (number := self._number(i, foreign[name])) is not None:
                moved[i] = number
                del foreign[name]
        moved = self.native.complete(moved)
        config: dict[str, Any] = self._root.make(moved)
        _replace(self._root, config, "", foreign, moved)
        for name, value in foreign.items():
            _put_at(config, name, value)
        if self.has_functions:
            _resolve(config, made, self.read)
        return config, moved

    def explored(
        self,
        values: Mapping[str, Any],
        function: Callable[[dict[str, Any]], Any],
        made: dict[str, Any] | None = None,
    ) -> Any:
        """What a function of the user makes of a configuration, which it sees as trials do.

        Args:
            values: By the names of parameters.
            function: From configuration to configuration.
            made: What functions of ``sample_from`` have made.

        Returns:
            Values by names again; or what the function returned, if that is no configuration.
        """
        made = {} if made is None else made
        nothing = [_NAN] * len(self._parameters)
        before, point = self._changed(nothing, values, made)
        found = function(self._changed(nothing, values, made)[0])
        if not isinstance(found, Mapping):
            return found
        return {**values, **dict(self._differences(self._root, "", before, found, point))}

    def _differences(
        self, node: Any, path: str, before: Any, after: Any, point: Sequence[float]
    ) -> Iterator[tuple[str, Any]]:
        """What a user has changed, by the names of parameters."""
        if isinstance(node, _Dict) and isinstance(after, Mapping):
            for key, value in after.items():
                name = _join(path, key)
                if key in node.fields and key in before:
                    part = node.fields[key]
                    yield from self._differences(part, name, before[key], value, point)
                else:
                    yield name, value
        elif isinstance(node, _List) and isinstance(after, list | tuple):
            for i, parts in enumerate(zip(node.nodes, before, after, strict=False)):
                yield from self._differences(parts[0], _join(path, i), parts[1], parts[2], point)
        elif isinstance(node, _Choice):
            taken = int(point[node.index])
            option = node.options[taken]
            if not isinstance(option, _Constant):
                yield from self._differences(option, f"{path}[{taken}]", before, after, point)
            elif not _same(before, after):
                yield path, self.label(path, after)
        elif isinstance(node, _Subset):
            if not _same(before, after):
                moved = list(point)
                node.put(after, moved)
                for i in range(node.first, node.first + 1 + len(node.items)):
                    yield self.names[i], moved[i]
        elif not _same(before, after):
            yield path, after

    def label(self, path: str, value: Any) -> Any:
        """What the engine calls an option of a choice; any other value as it is."""
        for label, option in self._options.get(path, ()):
            if isinstance(option, _Constant) and _same(option.value, value):
                return label
        return value

    def _number(self, index: int, value: Any) -> float | None:
        """What a point has for a value of a parameter; None: it is not one of its values."""
        if (options := self._options.get(self.names[index])) is not None:
            return next((float(i) for i, each in enumerate(options) if _same(each[0], value)), None)
        if isinstance(value, bool | str) or not hasattr(value, "__float__"):
            return None
        number = float(value)  # Outside of its law, too: so schedulers want it.
        is_whole = number.is_integer() or not self._parameters[index].is_integer
        return number if math.isfinite(number) and is_whole else None

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
            self.has_functions = True
            return _Function(value, path)
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
        if isinstance(value, list | tuple | set | frozenset):
            _refuse_laws(value, path, "a list, a tuple or a dict")
        return _Constant(value)

    def _walk_domain(self, domain: Domain, path: str, condition: tuple[str, int] | None) -> Any:
        if domain.law == "choice":
            return self._walk_options(
                _core.TuneParameter.choice, domain.arguments[0], path, condition
            )
        if domain.law == "choice_n":
            items, low, high = domain.arguments
            _refuse_laws(items, path, "choice, which may hold laws,")
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
        return self._walk_options(_core.TuneParameter.grid, values, path, condition)

    def _walk_options(
        self,
        law: Callable[[str, list[Any]], Any],
        values: Sequence[Any],
        path: str,
        condition: tuple[str, int] | None,
    ) -> Any:
        labels = _labels(values)
        index = self._add(law(path, labels), condition)
        nodes = [self._walk(x, f"{path}[{i}]", (path, i)) for i, x in enumerate(values)]
        self._options[path] = list(zip(labels, nodes, strict=True))
        return _Choice(index, path, nodes)


def _by_path(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """``values`` with dicts taken apart where parameters lie inside of them; what is in a dict is the younger value."""
    found = dict(values)
    for name, value in values.items():
        inside = f"{name}/"
        if isinstance(value, Mapping) and any(each.startswith(inside) for each in names):
            del found[name]
            found.update(_by_path({f"{inside}{key}": part for key, part in value.items()}, names))
    return found


def _refuse_laws(values: Any, path: str, remedy: str) -> None:
    for value in values:
        if isinstance(value, Domain | SampleFrom):
            raise InvalidArgumentError(
                f"{path}: {value!r} in a {type(values).__name__} would be passed on as it is; use {remedy} in its place"
            )


def _law(value: Any) -> str:
    if isinstance(value, Domain):
        return f"<{value.law}>"
    raise TypeError


def _labels(options: Sequence[Any]) -> list[Any]:
    """One for each option; texts of what is no plain value differ."""
    found: list[Any] = []
    for i, option in enumerate(options):
        label = _label(i, option)
        is_text = isinstance(label, str) and not isinstance(option, str)
        found.append(f"{label} #{i}" if is_text and label in found else label)
    return found


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


def _replace(
    node: Any, value: Any, path: str, others: dict[str, Any], point: Sequence[float]
) -> Any:
    """``value``, which ``node`` made, with the values of ``others`` by their paths, which are taken out."""
    if not others:
        return value
    if path in others:
        return others.pop(path)
    if isinstance(node, _Dict):
        for key, part in node.fields.items():
            value[key] = _replace(part, value[key], _join(path, key), others, point)
    elif isinstance(node, _List):
        parts = [
            _replace(part, value[i], _join(path, i), others, point)
            for i, part in enumerate(node.nodes)
        ]
        return node.kind(parts)
    elif isinstance(node, _Choice):
        taken = int(point[node.index])
        return _replace(node.options[taken], value, f"{path}[{taken}]", others, point)
    return value


def _put_at(config: Any, name: str, value: Any) -> None:
    """Puts a value where no parameter is; not below an option that was not taken."""
    *way, last = name.split("/") if name not in config else [name]
    for part in way:
        keys = {str(key): key for key in config} if isinstance(config, dict) else {}
        if isinstance(config, list) and part.isdecimal() and int(part) < len(config):
            config = config[int(part)]
        elif part in keys:
            config = config[keys[part]]
        else:
            return
    if isinstance(config, dict):
        config[next((key for key in config if str(key) == last), last)] = value
    elif isinstance(config, list) and last.isdecimal() and int(last) < len(config):
        config[int(last)] = value


def _stable(value: Any) -> Any:
    """A text that stays the same, for what JSON has no word for."""
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return f"{value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return f"<{type(value).__name__}>"


def _constants(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, _Constant):
        try:
            label = json.dumps(node.value, default=_stable, sort_keys=True)
        except (TypeError, ValueError):
            label = f"<{type(node.value).__name__}>"
        yield path, label if len(label) < _LONG else hashlib.sha256(label.encode()).hexdigest()
    elif isinstance(node, _Function):
        yield path, "<sample_from>"
    elif isinstance(node, _Dict):
        for key, part in node.fields.items():
            yield from _constants(part, _join(path, key))
    elif isinstance(node, _List):
        for i, part in enumerate(node.nodes):
            yield from _constants(part, _join(path, i))
    elif isinstance(node, _Choice):
        for i, part in enumerate(node.options):
            if not isinstance(part, _Constant):  # Which the engine keeps.
                yield from _constants(part, f"{path}[{i}]")


def _resolve(config: dict[str, Any], made: dict[str, Any], read: set[str]) -> None:
    """Calls the functions in ``config`` until none is left; some wait for the values of others."""
    for _ in range(_MAX_PASSES):
        if (waiting := _fill(config, config, made, read)[1]) == 0:
            return
    raise RecursiveDependencyError(
        f"{waiting} functions of sample_from still wait for each other after {_MAX_PASSES} passes"
    )


def _fill(
    value: Any, config: dict[str, Any], made: dict[str, Any], read: set[str]
) -> tuple[Any, int]:
    """``value`` with what its functions give now, and how many of them wait. Dicts and lists change in place."""
    if isinstance(value, _Pending):
        if value.path not in made:
            spec = _DictView(config=_NotingView(config, read))
            try:
                made[value.path] = _plain(value.function.call(spec))
            except _NotResolvedYet:
                return value, 1
        return _copied(made[value.path]), 0
    waiting = 0
    if type(value) in (dict, list):
        for key in list(value) if type(value) is dict else range(len(value)):
            value[key], more = _fill(value[key], config, made, read)
            waiting += more
    elif type(value) is tuple:
        parts = [_fill(part, config, made, read) for part in value]
        value, waiting = tuple(part for part, _ in parts), sum(more for _, more in parts)
    return value, waiting
