"""Search engines, by the names of the old API."""

from orca.automl.search.factory import SearchEngineFactory
from orca.automl.search.tensorboardlogger import TensorboardLogger

__all__ = ["SearchEngineFactory", "TensorboardLogger"]
