"""XShards."""

from orca.data.utils import spark_df_to_ray_dataset
from orca.data.xshards import SharedValue, bind_root
from orca.generations import BIGDL
from orca.roots.modules import submodules

XShards, SparkXShards = bind_root(BIGDL)

__getattr__ = submodules(__name__)

__all__ = ["SharedValue", "SparkXShards", "XShards", "spark_df_to_ray_dataset"]
