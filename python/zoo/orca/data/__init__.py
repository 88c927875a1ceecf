"""XShards."""

from orca.data.xshards import SharedValue, bind_root
from orca.generations import ZOO
from orca.roots.modules import submodules

XShards, SparkXShards = bind_root(ZOO)

__getattr__ = submodules(__name__)

__all__ = ["SharedValue", "SparkXShards", "XShards"]
