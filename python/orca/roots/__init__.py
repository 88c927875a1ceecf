"""What the import roots ``bigdl`` and ``zoo`` are made of."""
