"""Search engines by the name of what runs them."""

from __future__ import annotations

from typing import Any, ClassVar

from orca.errors import InvalidArgumentError
from orca.generations import ORCA, Generation

__all__ = ["SearchEngineFactory"]


class SearchEngineFactory:
    """Makes search engines.

    Example:
        >>> from orca.automl.search import SearchEngineFactory
        >>> SearchEngineFactory.create_engine(backend="ray", logs_dir="/tmp/logs", name="demo").name
        'demo'
    """

    _generation: ClassVar[Generation] = ORCA

    @classmethod
    def create_engine(cls, backend: str = "ray", *args: Any, **kwargs: Any) -> Any:
        """An engine; ``"ray"``, the only name there is, stands for Orca's own.

        Args:
            backend: ``"ray"``.
            *args: Of ``RayTuneSearchEngine``.
            **kwargs: Of ``RayTuneSearchEngine``.
        """
        with cls._generation.errors():
            if backend != "ray":
                raise InvalidArgumentError(
                    f"The backend {backend!r} is not supported for automl; give 'ray'"
                )
            return cls._engines()(*args, **kwargs)

    @staticmethod
    def _engines() -> Any:
        # It needs AutoEstimators, which write with a module of this package.
        from orca.automl.search.ray_tune import RayTuneSearchEngine

        return RayTuneSearchEngine
