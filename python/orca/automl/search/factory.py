"""Search engines by the name of what runs them."""

from __future__ import annotations

from typing import Any

from orca.errors import InvalidArgumentError

__all__ = ["SearchEngineFactory"]


class SearchEngineFactory:
    """Makes search engines.

    Example:
        >>> from orca.automl.search import SearchEngineFactory
        >>> SearchEngineFactory.create_engine(backend="ray", logs_dir="/tmp/logs", name="demo").name
        'demo'
    """

    @staticmethod
    def create_engine(backend: str = "ray", *args: Any, **kwargs: Any) -> Any:
        """An engine; ``"ray"``, the only name there is, stands for Orca's own.

        Args:
            backend: ``"ray"``.
            *args: Of ``RayTuneSearchEngine``.
            **kwargs: Of ``RayTuneSearchEngine``.
        """
        # It needs AutoEstimators, which write with a module of this package.
        from orca.automl.search.ray_tune import RayTuneSearchEngine

        if backend != "ray":
            raise InvalidArgumentError(
                f"The backend {backend!r} is not supported for automl; give 'ray'"
            )
        return RayTuneSearchEngine(*args, **kwargs)
