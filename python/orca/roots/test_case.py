"""``ZooTestCase``, which tests written for the originals derive from."""

from __future__ import annotations

import shutil
import tempfile
import unittest
from typing import Any

import numpy as np

from orca import context

__all__ = ["ZooTestCase"]


class ZooTestCase(unittest.TestCase):
    """A test with folders of its own, Spark on first use, and comparisons of arrays."""

    def setup_method(self, method: Any) -> None:
        """Before each test."""
        np.random.seed(1337)
        self.tmp_dirs: list[str] = []

    def teardown_method(self, method: Any) -> None:
        """After each test: removes its folders."""
        for folder in self.tmp_dirs:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def sc(self) -> Any:
        """The SparkContext."""
        return context.OrcaContext.get_spark_context()

    @property
    def sqlContext(self) -> Any:  # noqa: N802
        """The SQLContext."""
        return context.OrcaContext.get_sql_context()

    def create_temp_dir(self) -> str:
        """A folder that is removed after the test."""
        self.tmp_dirs.append(tempfile.mkdtemp())
        return self.tmp_dirs[-1]

    def assert_allclose(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Fails unless the arrays are as good as equal."""
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=msg or "")
