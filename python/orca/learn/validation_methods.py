"""BigDL's names for metrics, as ``validation_methods=`` of old scripts gives them.

Each has a ``metric()``: the one of ``orca.learn.metrics`` that it means. ``engine_name`` is its key
in the results of the bigdl backend.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = ["AUC", "MAE", "Loss", "Top1Accuracy", "Top5Accuracy", "ValidationMethod"]


class ValidationMethod:
    """The base of all validation methods."""

    engine_name: ClassVar[str]

    def __init__(self, bigdl_type: str = "float") -> None:
        pass

    def metric(self) -> Any:
        """The metric that it means; None for the loss, which every evaluation calculates."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Top1Accuracy(ValidationMethod):
    """How often the largest output is the right one."""

    engine_name = "Top1Accuracy"

    def metric(self) -> Any:
        """See ``ValidationMethod``."""
        from orca.learn.metrics import Accuracy

        return Accuracy()


class Top5Accuracy(ValidationMethod):
    """How often the right one is among the five largest outputs."""

    engine_name = "Top5Accuracy"

    def metric(self) -> Any:
        """See ``ValidationMethod``."""
        from orca.learn.metrics import Top5Accuracy

        return Top5Accuracy()


class MAE(ValidationMethod):
    """The mean of the absolute errors."""

    engine_name = "MAE"

    def metric(self) -> Any:
        """See ``ValidationMethod``."""
        from orca.learn.metrics import MAE

        return MAE()


class AUC(ValidationMethod):
    """The area under the receiver operating characteristic."""

    engine_name = "AucScore"

    def __init__(self, threshold_num: int = 200, bigdl_type: str = "float") -> None:
        self.threshold_num = threshold_num

    def metric(self) -> Any:
        """See ``ValidationMethod``."""
        from orca.learn.metrics import AUC

        return AUC(self.threshold_num)


class Loss(ValidationMethod):
    """The loss: the one given, or the estimator's."""

    engine_name = "Loss"

    def __init__(self, cri: Any = None, bigdl_type: str = "float") -> None:
        self.criterion = cri

    def metric(self) -> Any:
        """See ``ValidationMethod``."""
        return None
