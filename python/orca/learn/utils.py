"""Helpers for checkpoints, as old scripts import them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from orca._native import _core
from orca.errors import InvalidArgumentError

__all__ = ["find_latest_checkpoint"]

_ENGINE_FILES = {
    "bigdl": r"optimMethod-.*",
    "pytorch": r"optimMethod-TorchModel[0-9a-z]*",
    "tf": r"optimMethod-TFParkTraining",
}


def find_latest_checkpoint(
    model_dir: str, model_type: str = "bigdl"
) -> tuple[str | None, str | None, int | None]:
    """The newest checkpoint below a folder: of the last training, and of that the highest number.

    Args:
        model_dir: Where ``fit`` wrote, or BigDL's engine.
        model_type: ``"bigdl"``, ``"pytorch"`` or ``"tf"``: whose optimizers count among files of BigDL's engine.

    Returns:
        The folder, the prefix of the optimizer's file, and the number; the prefix is None for a
        checkpoint of Orca, which holds all in one. ``(None, None, None)`` when there is none.
    """
    if model_type not in _ENGINE_FILES:
        raise InvalidArgumentError(
            f'model_type {model_type!r} is not known; give "bigdl", "pytorch" or "tf"'
        )
    found: list[tuple[str, int, str, str | None]] = []
    pattern = re.compile(rf"({_ENGINE_FILES[model_type]})\.(\d+)")
    for path in Path(model_dir).rglob("*.*"):
        match = pattern.fullmatch(path.name)
        if match and path.is_file():
            found.append((path.parent.name, int(match[2]), str(path.parent), match[1]))
        elif re.fullmatch(r"model\.\d+", path.name) and path.is_dir():
            newest = _core.CheckpointStore(str(path.parent)).latest()
            if newest is not None:
                found.append((path.parent.name, newest.progress[0], str(path.parent), None))
    if not found:
        return None, None, None
    _, version, folder, prefix = max(found, key=lambda each: each[:2])
    return folder, prefix, version


_WITH_SPARK = (
    "arrays2dict",
    "convert_predict_rdd_to_dataframe",
    "convert_predict_rdd_to_xshard",
    "convert_predict_xshards_to_dataframe",
    "dataframe_to_xshards",
    "update_predict_xshards",
)


def __getattr__(name: str) -> Any:
    if name.lstrip("_") in _WITH_SPARK:
        raise ImportError(f"{__name__}.{name} is not in this release: it is for Spark and XShards")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
