"""Keras models that are trained and measured in one call, by their old names."""

from orca.adapters.keras.trial_model import KerasBaseModel, KerasModelBuilder

__all__ = ["KerasBaseModel", "KerasModelBuilder"]
