"""What the engine raises. Every class derives from ``OrcaError`` and from the builtin a user would catch.

Example:
    >>> from orca.comm import Communicator
    >>> try:
    ...     Communicator.connect(rank=3, world=2)
    ... except ValueError as error:
    ...     print(type(error).__name__)
    InvalidArgumentError
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any


class OrcaError(RuntimeError):
    """The base of all errors of the engine."""


class InvalidArgumentError(OrcaError, ValueError):
    """The caller passed something that can never work."""


class FailedPreconditionError(OrcaError):
    """The object is not in a state that allows the call: a closed group, a forked child."""


class MismatchError(OrcaError):
    """Ranks made different calls; the message shows both."""


class WaitTimeoutError(OrcaError, TimeoutError):
    """A deadline passed; the message names who was waited for."""


class PeerLostError(OrcaError, ConnectionError):
    """A peer died, left, fell silent, or its link broke."""


class AbortedError(OrcaError):
    """Somebody aborted the group."""


class UnauthenticatedError(OrcaError, PermissionError):
    """A peer could not prove that it knows the secret."""


class ResourceExhaustedError(OrcaError, MemoryError):
    """Memory, descriptors or processes ran out; the message names the limit."""


class UnavailableError(OrcaError, OSError):
    """An address, a port, a file or a host cannot be used."""


class WorkerFailedError(OrcaError):
    """A function failed on a worker, or the worker died.

    Attributes:
        rank: Of the worker that failed first; -1 when no single one did.
        remote_type: The name of the exception's class; empty when the process died.
        remote_traceback: The worker's own traceback.
        others: One line for each other rank that failed, too.
        cancelled: Whether somebody cancelled the call.
    """

    def __init__(
        self,
        text: str,
        rank: int = -1,
        type: str = "",
        traceback: str = "",
        others: Sequence[str] = (),
        cancelled: bool = False,
        parts: Sequence[Any] = (),
    ) -> None:
        lines = [text]
        if traceback:
            lines.append(f"\n{traceback.rstrip()}")
        if others:
            lines.append(f"\n{len(others)} other rank{'s' if len(others) > 1 else ''} failed, too:")
            lines += [f"  {other.splitlines()[0]}" for other in others]
        super().__init__("\n".join(lines))
        self.rank = rank
        self.remote_type = type
        self.remote_traceback = traceback
        self.others = list(others)
        self.cancelled = cancelled
        self._parts = parts

    def remote_error(self) -> BaseException | None:
        """The exception itself, where it could be sent. Loading it runs code of its class."""
        if not self._parts:
            return None
        error: BaseException = pickle.loads(self._parts[0], buffers=self._parts[1:])
        return error


class ContextLostError(WorkerFailedError):
    """No function can run in the context any more: its agents are lost, or it was stopped. ``rank`` is -1."""


class InternalError(OrcaError):
    """A bug of Orca's."""


BY_CODE: dict[str, type[OrcaError]] = {
    "invalid argument": InvalidArgumentError,
    "failed precondition": FailedPreconditionError,
    "mismatch": MismatchError,
    "timeout": WaitTimeoutError,
    "peer lost": PeerLostError,
    "aborted": AbortedError,
    "unauthenticated": UnauthenticatedError,
    "resource exhausted": ResourceExhaustedError,
    "unavailable": UnavailableError,
    "internal": InternalError,
}
"""The class for every name of a code in the engine."""
