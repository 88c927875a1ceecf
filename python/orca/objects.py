"""Python objects between the ranks of a function that ``orca.run`` runs.

Example:
    >>> from orca.objects import allgather_object, broadcast_object
    >>> allgather_object({"rows": 3})
    [{'rows': 3}]
    >>> broadcast_object("from rank 0")
    'from rank 0'
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from orca import running

__all__ = ["allgather_object", "broadcast_object"]


def allgather_object(value: Any) -> list[Any]:
    """Collects every rank's ``value`` on every rank, in the order of the ranks."""
    if running.world_size() == 1:
        return [value]
    mine = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = running.allgather(np.array([len(mine)])).ravel()
    parts = [np.empty(int(size), np.uint8) for size in sizes]
    running.allgather(mine, parts)
    return [pickle.loads(part.tobytes()) for part in parts]


def broadcast_object(value: Any, root: int = 0) -> Any:
    """Gives ``root``'s ``value`` to all ranks; what the others pass is ignored."""
    if running.world_size() == 1:
        return value
    pickled = pickle.dumps(value) if running.rank() == root else b""
    size = running.broadcast(np.array([len(pickled)]), root)
    buffer = np.empty(int(size[0]), np.uint8)
    if running.rank() == root:
        buffer[:] = np.frombuffer(pickled, np.uint8)
    running.broadcast(buffer, root)
    return value if running.rank() == root else pickle.loads(buffer.tobytes())
