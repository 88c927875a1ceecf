"""Metrics on tensors: ``m(preds, targets)`` adds a batch, ``m.compute()`` gives a tensor.

Arrays of numpy work as well. ``state()`` and ``merge(bytes)`` add up what several workers saw.

Example:
    >>> import torch
    >>> from orca.learn.pytorch.pytorch_metrics import MAE
    >>> metric = MAE()
    >>> metric(torch.tensor([[1, -2], [1, 1]]), torch.tensor([[0, 1], [0, 1]]))
    >>> float(metric.compute())
    1.25
"""

try:
    from orca.adapters.torch.metrics import (
        AUC,
        AUROC,
        MAE,
        MSE,
        ROC,
        Accuracy,
        BinaryAccuracy,
        BinaryCrossEntropy,
        CategoricalAccuracy,
        CategoricalCrossEntropy,
        F1Score,
        FunctionMetric,
        KLDivergence,
        Mean,
        Poisson,
        Precision,
        PrecisionRecallCurve,
        PytorchMetric,
        Recall,
        SparseCategoricalAccuracy,
        SparseCategoricalCrossEntropy,
        Top5Accuracy,
    )
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("orca.learn.pytorch needs torch; run: pip install torch") from error

__all__ = [
    "AUC",
    "AUROC",
    "MAE",
    "MSE",
    "ROC",
    "Accuracy",
    "BinaryAccuracy",
    "BinaryCrossEntropy",
    "CategoricalAccuracy",
    "CategoricalCrossEntropy",
    "F1Score",
    "FunctionMetric",
    "KLDivergence",
    "Mean",
    "Poisson",
    "Precision",
    "PrecisionRecallCurve",
    "PytorchMetric",
    "Recall",
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossEntropy",
    "Top5Accuracy",
]
