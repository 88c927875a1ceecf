"""The c10d backend "orca"; ``orca.distributed`` is its public name."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from orca.adapters.torch.plugin import load_plugin
from orca.errors import InvalidArgumentError
from orca.options import as_text

__all__ = ["Options", "empty", "is_registered", "memory_stats"]


class Options:
    """Settings of a process group, for ``pg_options``.

    Args:
        transport: ``"auto"`` (shared memory between ranks of one host, TCP between hosts) or
            ``"tcp"``.
        streams: TCP connections a pair of ranks.
        wire_bf16: Whether float32 sums cross hosts as bfloat16.
        peer_timeout: Seconds after which a silent peer counts as lost.
        connect_timeout: Seconds that all ranks have to join; without it the group's timeout.
        warn_after: Seconds after which a wait is reported in the log.
        address: The address that other hosts reach this one by.
        host: Ranks with the same value share memory.
        **unknown: Anything else is refused.

    Raises:
        InvalidArgumentError: An option is unknown or has the wrong type.

    Example:
        >>> Options(transport="tcp", streams=2)
        Options(transport=tcp, streams=2)
    """

    def __init__(
        self,
        *,
        transport: str | None = None,
        streams: int | None = None,
        wire_bf16: bool | None = None,
        peer_timeout: float | None = None,
        connect_timeout: float | None = None,
        warn_after: float | None = None,
        address: str | None = None,
        host: str | None = None,
        **unknown: Any,
    ) -> None:
        if "timeout" in unknown:
            raise InvalidArgumentError(
                "option timeout belongs to torch; pass timeout= to init_process_group"
            )
        self.settings = as_text(
            {
                "transport": transport,
                "streams": streams,
                "wire_bf16": wire_bf16,
                "peer_timeout": peer_timeout,
                "connect_timeout": connect_timeout,
                "warn_after": warn_after,
                "address": address,
                "host": host,
                **unknown,
            }
        )

    def __repr__(self) -> str:
        return f"Options({self._lines(', ')})"

    def _lines(self, separator: str = "\n") -> str:
        return separator.join(f"{name}={text}" for name, text in self.settings.items())

    def native(self, timeout: timedelta = timedelta(minutes=30)) -> Any:
        """The same as torch's ``Backend.Options``, e.g. for ``ProcessGroup.split_group``."""
        return _plugin.OrcaOptions(timeout, self._lines())


def empty(*size: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialised tensor in memory that the ranks of a host share.

    Collectives work on it in place, without a copy. May be called before the group is formed.

    Args:
        *size: As ``torch.empty`` takes it.
        dtype: Without it torch's default.

    Returns:
        A tensor on the CPU.

    Example:
        >>> empty(2, 3).shape
        torch.Size([2, 3])
    """
    sizes = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    tensor: torch.Tensor = _plugin.empty(list(sizes), dtype or torch.get_default_dtype())
    return tensor


def is_registered(tensor: torch.Tensor) -> bool:
    """Whether collectives work on ``tensor`` in place: it came from ``empty`` or torch's hooks.

    Example:
        >>> is_registered(empty(1)), is_registered(torch.empty(1))
        (True, False)
    """
    return bool(_plugin.is_registered(tensor))


def memory_stats() -> dict[str, int]:
    """Counts registered memory of this process: ``tensors``, ``bytes`` ever, and ``live`` ones.

    Example:
        >>> sorted(memory_stats())
        ['bytes', 'live', 'tensors']
    """
    return dict(_plugin.memory_stats())


def _native_options(pg_options: Any, timeout: timedelta) -> Any:
    if pg_options is None:
        return _plugin.OrcaOptions(timeout, "")
    if isinstance(pg_options, _plugin.OrcaOptions):
        return _plugin.OrcaOptions(timeout, pg_options.settings)
    if isinstance(pg_options, Mapping):
        pg_options = Options(**pg_options)
    if isinstance(pg_options, Options):
        return pg_options.native(timeout)
    raise InvalidArgumentError(
        f"pg_options is a {type(pg_options).__name__}; pass orca.distributed.Options(...)"
    )


def _create_backend(group: Any, pg_options: Any) -> Any:
    native = _native_options(pg_options, group.timeout)
    native.group_name = group.group_id
    native.global_ranks_in_group = group.global_ranks_in_group
    return _plugin.OrcaBackend(group.store, group.group_rank, group.group_size, native)


_plugin = load_plugin()

# A script that ends without destroy_process_group leaves its groups properly. Processes made by
# multiprocessing run no atexit functions, but finalizers of their own.
atexit.register(_plugin.close_all)
multiprocessing.util.Finalize(None, _plugin.close_all, exitpriority=100)

# Lets DDP ask the backend for the memory of its buckets.
os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")

dist.Backend.register_backend("orca", _create_backend, extended_api=True, devices=["cpu"])
