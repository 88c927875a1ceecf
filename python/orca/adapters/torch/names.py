"""Names of tensors in state dicts, without what wrappers of models put before them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def plain_name(name: str) -> str:
    """A name as the model had it before ``torch.compile``."""
    return name.replace("_orig_mod.", "")


def plain_state(model: nn.Module) -> dict[str, Any]:
    """A model's state dict, by plain names."""
    return {plain_name(name): value for name, value in model.state_dict().items()}


def unwrapped(state: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """A state dict by plain names, also when it is one of DistributedDataParallel."""
    found = {plain_name(name): value for name, value in state.items()}
    if any(name.startswith("module.") for name in plain_state(model)):
        return found
    return {name.removeprefix("module."): value for name, value in found.items()}


def load_plain_state(model: nn.Module, state: dict[str, Any], *, assign: bool = False) -> None:
    """Loads a state dict that has plain names.

    Args:
        model: What gets it.
        state: By plain names.
        assign: Whether the model may use the tensors themselves in the place of its own.
    """
    own = {plain_name(name): name for name in model.state_dict()}
    found = {own.get(name, name): value for name, value in state.items()}
    if assign and not any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        kinds = {name: tensor.dtype for name, tensor in model.state_dict().items()}
        found = {name: value.to(kinds.get(name, value.dtype)) for name, value in found.items()}
        model.load_state_dict(found, assign=True)
    else:
        model.load_state_dict(found)
