"""XShards by the module that old scripts import them from."""

from bigdl.orca.data import SharedValue, SparkXShards, XShards

__all__ = ["SharedValue", "SparkXShards", "XShards"]
