"""Analytics Zoo's Orca: the context. Everything else is in the modules below."""

from orca.roots.modules import submodules
from zoo.orca.common import OrcaContext, SafePickle, init_orca_context, stop_orca_context

__getattr__ = submodules(__name__)

__all__ = ["OrcaContext", "SafePickle", "init_orca_context", "stop_orca_context"]
