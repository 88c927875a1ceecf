"""``read_csv``, ``read_json`` and ``read_parquet``: files as XShards of frames."""

from bigdl.orca.common import OrcaContext
from orca.data.readers import bind
from orca.generations import BIGDL

read_csv, read_json, read_parquet = bind(BIGDL, OrcaContext)

__all__ = ["read_csv", "read_json", "read_parquet"]
