"""Starts Spark when a program with a context imports pyspark.

``col("x")`` and many other names of pyspark want a SparkContext that is there; they do not make one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["install", "remove"]


class _StartingLoader(Loader):
    """Loads pyspark, then calls ``after``."""

    def __init__(self, loader: Any, after: Callable[[], None]) -> None:
        self._loader = loader
        self._after = after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Who asks the module how it was loaded gets the answer that he would have got without us.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._after()


class _PysparkFinder(MetaPathFinder):
    """Finds pyspark as all others do, and has it loaded by us."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after
        self._process = os.getpid()
        self._looking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "pyspark" or os.getpid() != self._process:
            return None
        if getattr(self._looking, "now", False):
            return None
        self._looking.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.now = False
        if spec is not None and spec.loader is not None:
            spec.loader = _StartingLoader(spec.loader, self._after)
        return spec


def install(after: Callable[[], None]) -> None:
    """From now on ``after`` is called when pyspark has been imported."""
    remove()
    sys.meta_path.insert(0, _PysparkFinder(after))


def remove() -> None:
    """Imports are as before."""
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _PysparkFinder)]
