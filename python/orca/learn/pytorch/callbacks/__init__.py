"""Callbacks of Estimators."""

from orca.learn.pytorch.callbacks.base import Callback, MainCallback

__all__ = ["Callback", "MainCallback"]
