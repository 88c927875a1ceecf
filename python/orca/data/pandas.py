"""``read_csv``, ``read_json`` and ``read_parquet``: files as XShards of frames."""

from orca.data.readers import read_csv, read_json, read_parquet

__all__ = ["read_csv", "read_json", "read_parquet"]
