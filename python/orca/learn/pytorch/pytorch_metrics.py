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
    from orca.adapters.torch.metrics import *  # noqa: F403
    from orca.adapters.torch.metrics import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("orca.learn.pytorch needs torch; run: pip install torch") from error
