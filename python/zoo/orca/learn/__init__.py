"""Estimators, metrics, triggers and optimizers."""

from orca.roots.modules import submodules

__getattr__ = submodules(__name__)
