"""Tuning: what to search (``hp``)."""

from orca.roots.modules import submodules

__getattr__ = submodules(__name__)
