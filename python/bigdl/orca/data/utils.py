"""What scripts take from this module."""

from bigdl.orca.common import OrcaContext
from orca.data.utils import *  # noqa: F403
from orca.data.utils import __all__, bind
from orca.generations import BIGDL

spark_df_to_pd_sparkxshards, spark_df_to_rdd_pd = bind(BIGDL, OrcaContext)

__all__ = list(__all__)
