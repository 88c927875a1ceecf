"""XShards."""

from orca.data.xshards import SharedValue, bind_root
from orca.generations import ZOO

XShards, SparkXShards = bind_root(ZOO)

__all__ = ["SharedValue", "SparkXShards", "XShards"]
