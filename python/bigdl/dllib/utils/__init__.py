"""Checks and triggers."""
