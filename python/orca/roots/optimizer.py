"""What ``bigdl.optim.optimizer`` and ``bigdl.dllib.optim.optimizer`` hold, for star imports, too."""

from __future__ import annotations

from orca.learn.optimizers import (
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    ParallelAdam,
    RMSprop,
)
from orca.learn.optimizers.schedule import (
    Default,
    Exponential,
    MultiStep,
    Plateau,
    Poly,
    SequentialSchedule,
    Step,
    Warmup,
)
from orca.learn.trigger import (
    EveryEpoch,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    SeveralIteration,
    TriggerAnd,
    TriggerOr,
)
from orca.learn.validation_methods import (
    AUC,
    MAE,
    Loss,
    Top1Accuracy,
    Top5Accuracy,
    ValidationMethod,
)

__all__ = [
    "AUC",
    "LBFGS",
    "MAE",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "Default",
    "EveryEpoch",
    "Exponential",
    "Ftrl",
    "Loss",
    "MaxEpoch",
    "MaxIteration",
    "MaxScore",
    "MinLoss",
    "MultiStep",
    "ParallelAdam",
    "Plateau",
    "Poly",
    "RMSprop",
    "SequentialSchedule",
    "SeveralIteration",
    "Step",
    "Top1Accuracy",
    "Top5Accuracy",
    "TriggerAnd",
    "TriggerOr",
    "ValidationMethod",
    "Warmup",
]
