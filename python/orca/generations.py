"""What differs between the import roots: ``orca``, ``bigdl`` (BigDL 2.x) and ``zoo`` (Analytics Zoo).

Each root's facades are bound to one of the records below, and every object made through them keeps
it. All roots accept the arguments of all generations; the record decides defaults, meanings, shapes of
results and the types of errors.

Example:
    >>> from orca.errors import InvalidArgumentError
    >>> from orca.generations import BIGDL
    >>> with BIGDL.errors():
    ...     raise InvalidArgumentError("batch_size 0 is not positive; give 1 or more")
    Traceback (most recent call last):
    RuntimeError: batch_size 0 is not positive; give 1 or more
"""

from __future__ import annotations

import builtins
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar, cast

from orca.errors import InvalidArgumentError, OrcaError

__all__ = ["BIGDL", "ORCA", "ZOO", "Cores", "Errors", "Generation", "once_raised_as", "translated"]

AnyError = TypeVar("AnyError", bound=BaseException)
Method = TypeVar("Method", bound=Callable[..., Any])
_log = logging.getLogger("orca")


class Errors(Enum):
    """What callers of a generation catch."""

    OURS = "ours"  # the classes of orca.errors
    RUNTIME_ERROR = "RuntimeError"  # exactly, for tests that compare types
    BUILTIN = "builtin"  # ValueError, AssertionError, NotImplementedError and the like


class Cores(Enum):
    """How many cores a context has when nobody says."""

    ALL = "all"
    TWO = "two"
    ALL_IF_LOCAL_IS_GIVEN = "all with cluster_mode='local', else two with a warning"


@dataclass(frozen=True)
class Generation:
    """The behaviour of one import root.

    Attributes:
        root: The name that it is imported by.
        cluster_mode: What ``init_orca_context`` takes when it is given none.
        cores: How many cores it takes when it is given none.
        refuses_local_nodes: Whether ``num_nodes`` above 1 is an error in local mode; else a warning.
        torch_backend: What ``Estimator.from_torch`` takes when it is given none.
        batch_size_is_per_worker: Whether ``batch_size`` of the backends torch_distributed, ray,
            horovod and spark counts the rows of one worker; else those of all together.
        scheduler_step_freq: When a torch scheduler steps unless somebody says.
        functions_as_metrics: Whether ``metrics=`` takes plain functions.
        trusts_pickles: Whether pickled files of the current user load, with one warning; else
            only with ``trust=True``.
        raises: What callers catch.
    """

    root: str
    cluster_mode: str | None
    cores: Cores
    refuses_local_nodes: bool
    torch_backend: str
    batch_size_is_per_worker: bool
    scheduler_step_freq: str
    functions_as_metrics: bool
    trusts_pickles: bool
    raises: Errors

    def translate(
        self, error: BaseException, zoo: type[BaseException] | None = None
    ) -> BaseException:
        """The error that this generation raises in place of ``error``.

        Args:
            error: Any error. One that is not of Orca stays as it is.
            zoo: What Analytics Zoo raised there; without it the one of ``once_raised_as``, and else
                the builtin base of the error's class.

        Returns:
            ``error`` itself, or a builtin error with ``error`` as its cause.

        Example:
            >>> from orca.errors import InvalidArgumentError
            >>> ZOO.translate(InvalidArgumentError("no"))
            ValueError('no')
        """
        if self.raises is Errors.OURS or not isinstance(error, OrcaError):
            return error
        kind: type[BaseException] = RuntimeError
        if self.raises is Errors.BUILTIN:
            kind = zoo or getattr(error, "_once_raised_as", None) or _builtin_base(type(error))
        translated = kind(str(error))
        translated.__cause__ = error
        return translated

    def has_no_effect(self, text: str) -> None:
        """Says that an argument changes nothing: an error, or a warning where old scripts give it.

        Example:
            >>> ORCA.has_no_effect("prefix has no effect; leave it out")
            Traceback (most recent call last):
            orca.errors.InvalidArgumentError: prefix has no effect; leave it out
        """
        if self.raises is Errors.OURS:
            raise InvalidArgumentError(text)
        _log.warning("%s", text)

    @contextmanager
    def errors(self, zoo: type[BaseException] | None = None) -> Iterator[None]:
        """Turns Orca's errors from inside the block, or the decorated function, into this generation's."""
        try:
            yield
        except OrcaError as error:
            translated = self.translate(error, zoo)
            if translated is error:
                raise
            raise translated from error


ORCA = Generation(
    root="orca",
    cluster_mode="local",
    cores=Cores.ALL,
    refuses_local_nodes=False,
    torch_backend="spark",
    batch_size_is_per_worker=False,
    scheduler_step_freq="epoch",
    functions_as_metrics=True,
    trusts_pickles=False,
    raises=Errors.OURS,
)
"""As ``BIGDL``, without what only old scripts need."""

BIGDL = Generation(
    root="bigdl",
    cluster_mode=None,
    cores=Cores.ALL_IF_LOCAL_IS_GIVEN,
    refuses_local_nodes=False,
    torch_backend="spark",
    batch_size_is_per_worker=False,
    scheduler_step_freq="epoch",
    functions_as_metrics=True,
    trusts_pickles=True,
    raises=Errors.RUNTIME_ERROR,
)
"""BigDL 2.2, with what later releases added."""

ZOO = Generation(
    root="zoo",
    cluster_mode="local",
    cores=Cores.TWO,
    refuses_local_nodes=True,
    torch_backend="bigdl",
    batch_size_is_per_worker=True,
    scheduler_step_freq="batch",
    functions_as_metrics=False,
    trusts_pickles=True,
    raises=Errors.BUILTIN,
)
"""Analytics Zoo 0.10 to 0.12, with the signatures that its first documents had."""


def once_raised_as(error: AnyError, kind: type[BaseException]) -> AnyError:
    """Marks an error with the type that Analytics Zoo raised; ``ZOO.translate`` takes it.

    Example:
        >>> from orca.errors import InvalidArgumentError
        >>> ZOO.translate(once_raised_as(InvalidArgumentError("no"), AssertionError))
        AssertionError('no')
    """
    error._once_raised_as = kind  # type: ignore[attr-defined]
    return error


def translated(method: Method) -> Method:
    """A method that raises what the ``_generation`` of its object raises.

    Example:
        >>> from orca.errors import FailedPreconditionError
        >>> class Oven:
        ...     _generation = BIGDL
        ...     @translated
        ...     def bake(self):
        ...         raise FailedPreconditionError("it is cold")
        >>> Oven().bake()
        Traceback (most recent call last):
        RuntimeError: it is cold
    """

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._generation.errors():
            return method(self, *args, **kwargs)

    return cast(Method, wrapper)


def _builtin_base(kind: type[BaseException]) -> type[BaseException]:
    """What a class of ours is beside a RuntimeError, which all of them are."""
    builtin = [base for base in kind.__mro__ if base.__module__ == builtins.__name__]
    return next((base for base in builtin if base not in _EVERY_ERROR), RuntimeError)


_EVERY_ERROR = (RuntimeError, Exception, BaseException, object)
