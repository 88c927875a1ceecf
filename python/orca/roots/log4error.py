"""The checks of BigDL 2.x, which scripts and extensions import by these names."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["invalidInputError", "invalidOperationError", "outputUserMessage"]

_log = logging.getLogger("orca")


def outputUserMessage(errMsg: str, fixMsg: str | None = None) -> None:  # noqa: N802, N803
    """Logs an error of the user's, and how to mend it."""
    _log.error("%s\n%s", " Usage Error ".center(60, "*"), errMsg)
    if fixMsg:
        _log.error("%s\n%s", " How to fix ".center(60, "*"), fixMsg)
    _log.error("%s", " Call Stack ".center(60, "*"))


def invalidInputError(condition: Any, errMsg: str, fixMsg: str | None = None) -> None:  # noqa: N802, N803
    """Raises ``RuntimeError(errMsg)`` unless ``condition`` holds.

    Example:
        >>> invalidInputError(1 > 0, "one is not positive")
    """
    if not condition:
        outputUserMessage(errMsg, fixMsg)
        raise RuntimeError(errMsg)


def invalidOperationError(  # noqa: N802
    condition: Any,
    errMsg: str,  # noqa: N803
    fixMsg: str | None = None,  # noqa: N803
    cause: BaseException | None = None,
) -> None:
    """As ``invalidInputError``; raises ``cause`` where there is one."""
    if not condition:
        outputUserMessage(errMsg, fixMsg)
        raise cause if cause is not None else RuntimeError(errMsg)
