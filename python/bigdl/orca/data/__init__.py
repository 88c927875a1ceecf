"""XShards."""

from orca.data.xshards import SharedValue, bind_root
from orca.generations import BIGDL

XShards, SparkXShards = bind_root(BIGDL)

__all__ = ["SharedValue", "SparkXShards", "XShards"]
