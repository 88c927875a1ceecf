"""What every Estimator can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["BaseEstimator"]


class BaseEstimator(ABC):
    """The base of all Estimators."""

    @abstractmethod
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Trains."""

    @abstractmethod
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predicts."""

    @abstractmethod
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates."""

    @abstractmethod
    def get_model(self) -> Any:
        """The model with the learned weights."""

    @abstractmethod
    def save(self, *args: Any, **kwargs: Any) -> Any:
        """Writes the state."""

    @abstractmethod
    def load(self, *args: Any, **kwargs: Any) -> Any:
        """Goes on from a file."""

    @abstractmethod
    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        """Frees what the workers keep."""
