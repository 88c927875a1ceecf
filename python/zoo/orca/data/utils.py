"""What scripts take from this module."""

from orca.data.utils import *  # noqa: F403
from orca.data.utils import __all__, bind
from orca.generations import ZOO
from zoo.orca.common import OrcaContext

spark_df_to_pd_sparkxshards, spark_df_to_rdd_pd = bind(ZOO, OrcaContext)

__all__ = list(__all__)
