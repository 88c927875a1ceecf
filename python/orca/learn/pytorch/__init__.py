"""PyTorch models on the workers of a context.

Example:
    >>> from orca.learn.pytorch import Estimator  # doctest: +SKIP
"""

from orca.learn.pytorch.estimator import Estimator

__all__ = ["Estimator"]
