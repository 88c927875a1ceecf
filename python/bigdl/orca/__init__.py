"""BigDL's Orca: the context. Everything else is in the modules below."""

from bigdl.orca.common import OrcaContext, SafePickle, init_orca_context, stop_orca_context

__all__ = ["OrcaContext", "SafePickle", "init_orca_context", "stop_orca_context"]
