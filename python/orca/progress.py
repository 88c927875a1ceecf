"""A line that says how far training is, in terminals and notebooks.

Example:
    >>> from orca.progress import describe
    >>> describe({"epoch": 1, "epochs": 2, "step": 30, "steps": 60, "loss": 0.5, "rate": 1200.0, "left": 75.0})
    'epoch 1/2 [##########..........]  50% loss 0.5000, 1200 rows/s, 1:15 left'
"""

from __future__ import annotations

import json
import sys
from typing import Any

LOGGER = "orca.progress"
"""The logger whose records are lines of progress, as JSON."""

_WIDTH = 20
_shown = ""


def describe(fields: dict[str, Any]) -> str:
    """One line of text."""
    text = f"epoch {fields['epoch']}{'/' if fields['epochs'] else ''}{fields['epochs'] or ''} "
    if fields.get("steps"):
        part = min(fields["step"] / fields["steps"], 1.0)
        done = int(part * _WIDTH)
        text += f"[{'#' * done}{'.' * (_WIDTH - done)}] {part:4.0%} "
    else:
        text += f"step {fields['step']} "
    text += f"loss {fields['loss']:.4f}, {fields['rate']:.0f} rows/s"
    left = fields.get("left")
    return text if left is None else f"{text}, {int(left) // 60}:{int(left) % 60:02d} left"


def show(text: str) -> None:
    """Shows a record of ``LOGGER`` in the place of the one before, where somebody may look at it."""
    global _shown
    fields = json.loads(text)
    if not (fields.get("always") or sys.stderr.isatty() or "ipykernel" in sys.modules):
        return
    line = "" if fields.get("ends") else describe(fields)
    sys.stderr.write("\r" + line.ljust(len(_shown)) + ("\r" if not line else ""))
    sys.stderr.flush()
    _shown = line
