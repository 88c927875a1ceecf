"""Data in shared memory: arrays and texts, shuffled batches of their rows, and lists of shards.

- ``Shard``, ``ArrayStore``: rows that all workers of a machine read where they are;
- ``XShards``: a list of arrays, frames or any objects, in partitions that the workers transform.
"""

from orca.data.arrays import ArrayStore, Float32, Shard, SharedBlock, Texts
from orca.data.xshards import SharedValue, SparkXShards, XShards

__all__ = [
    "ArrayStore",
    "Float32",
    "Shard",
    "SharedBlock",
    "SharedValue",
    "SparkXShards",
    "Texts",
    "XShards",
]
