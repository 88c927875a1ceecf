"""What Estimators of the originals' engine can do beside the rest."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from orca.learn.base_estimator import BaseEstimator

__all__ = ["Estimator"]


class Estimator(BaseEstimator):
    """The base of Estimators with summaries, gradient clipping and checkpoints by trigger."""

    @abstractmethod
    def set_tensorboard(self, log_dir: str, app_name: str) -> None:
        """Says where event files go."""

    @abstractmethod
    def get_train_summary(self, tag: str) -> Any:
        """``[iteration, value, time]`` of training."""

    @abstractmethod
    def get_validation_summary(self, tag: str) -> Any:
        """``[iteration, value, time]`` of a metric."""

    @abstractmethod
    def clear_gradient_clipping(self) -> None:
        """Gradients stay as they are."""

    @abstractmethod
    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Keeps every element of the gradient between two numbers."""

    @abstractmethod
    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """Limits the 2-norm of the gradient."""

    @abstractmethod
    def load_orca_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Goes on from a checkpoint."""
