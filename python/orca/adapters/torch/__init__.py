"""All that imports torch."""
