"""BigDL's Orca: the context. Everything else is in the modules below."""

from bigdl.orca.common import OrcaContext, SafePickle, init_orca_context, stop_orca_context
from orca.roots.modules import submodules

__getattr__ = submodules(__name__)

__all__ = ["OrcaContext", "SafePickle", "init_orca_context", "stop_orca_context"]
