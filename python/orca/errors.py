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
