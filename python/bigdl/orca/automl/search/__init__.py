"""Search engines, bound to BigDL 2.x."""

from typing import Any

from bigdl.orca.automl.search.ray_tune import RayTuneSearchEngine
from orca.automl import search
from orca.automl.search import TensorboardLogger
from orca.generations import BIGDL
from orca.roots.modules import submodules

__getattr__ = submodules(__name__)

__all__ = ["SearchEngineFactory", "TensorboardLogger"]


class SearchEngineFactory(search.SearchEngineFactory):
    """Makes search engines."""

    _generation = BIGDL

    @staticmethod
    def _engines() -> Any:
        return RayTuneSearchEngine
