"""The other name of ``bigdl.dllib.nncontext``."""

from bigdl.dllib.nncontext import *  # noqa: F403
from bigdl.dllib.nncontext import __all__ as __all__
