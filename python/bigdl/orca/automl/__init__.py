"""Tuning: what to search (``hp``)."""
