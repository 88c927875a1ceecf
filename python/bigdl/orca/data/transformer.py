"""Columns of XShards as numbers, and what old scripts take from this module by its star."""

import numpy as np

from bigdl.orca.common import OrcaContext
from bigdl.orca.data import SparkXShards
from bigdl.orca.data.utils import spark_df_to_pd_sparkxshards
from orca.data.transformer import MinMaxScaler, StandardScaler, StringIndex, StringIndexer

__all__ = [
    "MinMaxScaler",
    "OrcaContext",
    "SparkXShards",
    "StandardScaler",
    "StringIndex",
    "StringIndexer",
    "np",
    "spark_df_to_pd_sparkxshards",
]
