"""TensorFlow's notes on drivers and instruction sets, which C++ writes wherever it runs; imports no framework."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def kept_quiet() -> Iterator[None]:
    """What is written to the standard error inside is shown only when something is raised."""
    sys.stderr.flush()
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        before = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(before, 2)
            said.seek(0)
            shutil.copyfileobj(said, sys.stderr)
            raise
        finally:
            os.dup2(before, 2)
            os.close(before)
