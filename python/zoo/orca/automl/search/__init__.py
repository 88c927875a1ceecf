"""Search engines, bound to Analytics Zoo."""

from typing import Any

from orca.automl import search
from orca.automl.search import TensorboardLogger
from orca.generations import ZOO
from orca.roots.modules import submodules
from zoo.orca.automl.search.ray_tune import RayTuneSearchEngine

__getattr__ = submodules(__name__)

__all__ = ["SearchEngineFactory", "TensorboardLogger"]


class SearchEngineFactory(search.SearchEngineFactory):
    """Makes search engines."""

    _generation = ZOO

    @staticmethod
    def _engines() -> Any:
        return RayTuneSearchEngine
