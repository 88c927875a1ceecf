"""Orca: distributed training on a C++ engine.

``import orca`` loads the engine and no framework. What needs one is imported by name:

- ``init_orca_context``, ``run``, ``submit``: functions on supervised workers of this machine;
- ``orca.comm``: collectives on numpy arrays and everything that speaks DLPack;
- ``orca.data``: arrays in shared memory and shuffled batches of their rows;
- ``orca.distributed``: the same collectives as a backend of ``torch.distributed``.

Example:
    >>> import orca
    >>> orca.__version__.count(".")
    2
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from orca._native import _core
from orca.errors import OrcaError, WorkerFailedError
from orca.roots.neighbours import warn_of_neighbours

if TYPE_CHECKING:
    from orca.context import OrcaContext, init_orca_context, stop_orca_context
    from orca.running import (
        allgather,
        allreduce,
        alltoall,
        barrier,
        broadcast,
        communicator,
        gather,
        local_rank,
        local_world_size,
        rank,
        reduce,
        reduce_scatter,
        report,
        run,
        submit,
        world_size,
    )

__all__ = [
    "OrcaContext",
    "OrcaError",
    "WorkerFailedError",
    "__version__",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "communicator",
    "gather",
    "init_orca_context",
    "local_rank",
    "local_world_size",
    "rank",
    "reduce",
    "reduce_scatter",
    "report",
    "run",
    "stop_orca_context",
    "submit",
    "world_size",
]

__version__: str = _core.version

warn_of_neighbours()

_IN_CONTEXT = {"OrcaContext", "init_orca_context", "stop_orca_context"}


def __getattr__(name: str) -> Any:
    """Imports the modules behind the names above when they are first used: numpy takes a while."""
    if name not in __all__:
        raise AttributeError(f"module 'orca' has no attribute {name!r}")
    module = importlib.import_module("orca.context" if name in _IN_CONTEXT else "orca.running")
    value = globals()[name] = getattr(module, name)
    return value
