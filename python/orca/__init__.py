"""Orca: distributed training on a C++ engine.

``import orca`` loads the engine and no framework. What needs one is imported by name:

- ``orca.comm``: collectives on numpy arrays and everything that speaks DLPack;
- ``orca.distributed``: the same collectives as a backend of ``torch.distributed``.

Example:
    >>> import orca
    >>> orca.__version__.count(".")
    2
"""

from orca._native import _core
from orca.errors import OrcaError

__all__ = ["OrcaError", "__version__"]

__version__: str = _core.version
