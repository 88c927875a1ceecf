"""The only place where frameworks are imported, one folder each."""
