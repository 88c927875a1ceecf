"""Search engines, by the names of the old API."""
