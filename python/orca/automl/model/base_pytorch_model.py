"""PyTorch models that are trained and measured in one call, by their old names."""

from orca.adapters.torch.trial_model import PytorchBaseModel, PytorchModelBuilder

__all__ = ["PytorchBaseModel", "PytorchModelBuilder"]
