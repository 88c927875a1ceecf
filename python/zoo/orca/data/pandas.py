"""``read_csv``, ``read_json`` and ``read_parquet``: files as XShards of frames."""

from orca.data.readers import bind
from orca.generations import ZOO
from zoo.orca.common import OrcaContext

read_csv, read_json, read_parquet = bind(ZOO, OrcaContext)

__all__ = ["read_csv", "read_json", "read_parquet"]
