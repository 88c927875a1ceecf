"""Statistics in a file."""

from __future__ import annotations

import csv
import io
import logging
from pathlib import Path
from typing import Any

from orca.files import write_whole
from orca.learn.pytorch.callbacks.base import Callback

__all__ = ["CSVLogger"]

_log = logging.getLogger("orca")


class CSVLogger(Callback):
    """Writes one line per epoch, with the statistics of all workers, on rank 0.

    Args:
        filename: Where.
        append: Whether to add to a file that is there.
    """

    def __init__(self, filename: str, append: bool = False) -> None:
        self.filename, self.append = filename, append

    def before_run(self, runner: Any) -> None:
        """Makes the file, unless training resumes: then the epochs that it makes again are removed."""
        if runner.rank != 0:
            return
        if runner.is_resumed:
            columns, lines = self._read()
            if columns:
                self._write(columns, [line for line in lines if _number(line) <= runner.epochs])
        elif not self.append:
            Path(self.filename).write_text("")

    def after_train_epoch(self, runner: Any) -> None:
        """One line."""
        if runner.rank != 0:
            return
        stats = {k: v for k, v in runner.epoch_stats.items() if not isinstance(v, dict)}
        line = {k: v if isinstance(v, int | str) else float(v) for k, v in stats.items()}
        try:
            self._add(line)
        except OSError as error:
            _log.error(
                "%s has no line for epoch %s: %s; training continues",
                self.filename,
                line.get("epoch"),
                error,
            )

    def _add(self, line: dict[str, Any]) -> None:
        columns, lines = self._read()
        if set(line) <= set(columns):
            with Path(self.filename).open("a", newline="") as file:
                csv.DictWriter(file, columns).writerow(line)
        else:  # Such as the steps that were skipped, of which earlier epochs have none.
            self._write(list(dict.fromkeys([*columns, *line])), [*lines, line])

    def _read(self) -> tuple[list[str], list[dict[str, Any]]]:
        path = Path(self.filename)
        if not path.exists():
            return [], []
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            lines = list(reader)
            return list(reader.fieldnames or ()), lines

    def _write(self, columns: list[str], lines: list[dict[str, Any]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(lines)
        content = text.getvalue().encode()
        # A link stays, and the mode is that of other files of the user.
        write_whole(
            Path(self.filename).resolve(), lambda file: file.write(content), is_private=False
        )


def _number(line: dict[str, Any]) -> float:
    """The epoch of a line."""
    try:
        return float(line["epoch"])
    except (KeyError, TypeError, ValueError):
        return 0.0  # Somebody else's line.
