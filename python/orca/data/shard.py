"""XShards by the module that old scripts import them from."""

from orca.data.xshards import SharedValue, SparkXShards, XShards

__all__ = ["SharedValue", "SparkXShards", "XShards"]
