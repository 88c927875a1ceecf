"""Which modules the old roots have: what stands for what, and what is not there yet.

Values such as metrics, triggers and optimizers are the same classes in every root, so their modules are the
same modules: ``bigdl.orca.learn.trigger is orca.learn.trigger``. What depends on the generation is a
file below ``python/bigdl`` or ``python/zoo``.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from orca.adapters import spark

__all__ = ["add_root", "submodules"]

_LEARN = {
    f"orca.learn.{name}": f"orca.learn.{name}"
    for name in (
        "base_estimator",
        "metrics",
        "optimizers",
        "pytorch.callbacks",
        "pytorch.pytorch_metrics",
        "pytorch.training_operator",
        "pytorch.utils",
        "ray_estimator",
        "spark_estimator",
        "trigger",
        "utils",
    )
}
_AUTOML = {
    f"orca.automl.{name}": f"orca.automl.{name}"
    for name in (
        "hp",
        "metrics",
        "model",
        "pytorch_utils",
        "search.tensorboardlogger",
        "xgboost.XGBoost",
    )
}
_ALIASES = {
    "bigdl": {
        **_LEARN,
        **_AUTOML,
        "orca.data.file": "orca.data.file",
        "orca.test_zoo_utils": "orca.roots.test_case",
        "orca.torch": "orca.adapters.torch.wrappers",
        "dllib.feature.common": "orca.learn.preprocessing",
        "dllib.nnframes": "orca.adapters.spark.nnframes",
        "dllib.optim.optimizer": "orca.roots.optimizer",
        "dllib.utils.common": "orca.adapters.spark.common",
        "dllib.utils.log4Error": "orca.roots.log4error",
        "dllib.utils.triggers": "orca.learn.trigger",
        "optim.optimizer": "orca.roots.optimizer",
        "util.common": "orca.adapters.spark.common",
    },
    "zoo": {
        **_LEARN,
        **_AUTOML,
        "orca.data.file": "orca.data.file",
        "orca.test_zoo_utils": "orca.roots.test_case",
        "orca.torch": "orca.adapters.torch.wrappers",
        "feature.common": "orca.learn.preprocessing",
        "pipeline.api.torch": "orca.adapters.torch.wrappers",
        "pipeline.nnframes": "orca.adapters.spark.nnframes",
        "util.log4Error": "orca.roots.log4error",
        "util.triggers": "orca.learn.trigger",
    },
}
"""Names below a root, and the modules that they are. What is below them is the same, too."""

_NOT_YET_IN_ORCA = (
    "orca.data.elastic_search",
    "orca.data.image",
    "orca.data.ray_xshards",
    "orca.data.tf",
    "orca.inference",
    "orca.learn.bigdl",
    "orca.learn.horovod",
    "orca.learn.mpi",
    "orca.learn.mxnet",
    "orca.learn.openvino",
    "orca.learn.pytorch.pytorch_pyspark_estimator",
    "orca.learn.pytorch.pytorch_ray_estimator",
    "orca.learn.pytorch.torch_runner",
    "orca.learn.tf",
    "orca.learn.tf2",
    "orca.ray",
    "orca.tfpark",
)
_NOT_YET = {
    "bigdl": (
        *_NOT_YET_IN_ORCA,
        "dllib.estimator",
        "dllib.feature.dataset",
        "dllib.feature.image",
        "dllib.feature.text",
        "dllib.keras",
        "dllib.nn",
        "dllib.utils.file_utils",
        "dllib.utils.tf",
        "dllib.utils.utils",
        "nn",
        "util.engine",
    ),
    "zoo": (
        *_NOT_YET_IN_ORCA,
        "feature.image",
        "feature.text",
        "pipeline.api.keras",
        "pipeline.api.net",
        "pipeline.estimator",
        "pipeline.inference",
        "ray",
        "tfpark",
        "util.tf",
        "util.utils",
    ),
}
"""What the originals have below a root, and this release has not."""


class _SameModule(Loader):
    """Puts a module that has another name already in the place of the one to load."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what it finds here, and so the target keeps its own spec.
        load = (
            spark.load
            if self._target.startswith("orca.adapters.spark.")
            else importlib.import_module
        )
        sys.modules[module.__name__] = load(self._target)


class _RootFinder(MetaPathFinder):
    """Finds the modules of one root that are no files. Must come before the finder of files.

    Else what is below an alias would be found as a file of the target, and loaded a second time.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._aliases = _ALIASES[root]
        self._not_yet = frozenset(_NOT_YET[root])

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        root, _, name = fullname.partition(".")
        if root != self.root or not name:
            return None
        if name in self._not_yet:
            # Not a ModuleNotFoundError: "from package import name" would hide its text.
            raise ImportError(f"{fullname} is not in this release", name=fullname)
        for alias, module in self._aliases.items():
            if name == alias or name.startswith(f"{alias}."):
                module += name.removeprefix(alias)
                return ModuleSpec(fullname, _SameModule(module), origin=module)
        return None


def add_root(root: str) -> None:
    """Makes the modules of ``root`` importable; for its ``__init__``."""
    known = [finder.root for finder in sys.meta_path if isinstance(finder, _RootFinder)]
    if root not in known:
        sys.meta_path.insert(0, _RootFinder(root))


def submodules(package: str) -> Callable[[str], ModuleType]:
    """A package's ``__getattr__`` that imports what is below it when it is first asked for."""
    root, _, path = package.partition(".")
    inside = f"{path}."
    names = {
        alias.removeprefix(inside).partition(".")[0]
        for alias in _ALIASES[root]
        if alias.startswith(inside)
    }

    def find(name: str) -> ModuleType:
        files = (module.name for module in pkgutil.iter_modules(sys.modules[package].__path__))
        if name not in names and name not in files:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    return find
