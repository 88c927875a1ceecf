"""Which optimizers the engine steps for, and with what."""

from __future__ import annotations

import sys
from typing import Any

import torch

from orca._native import _core

_ADAMS = (torch.optim.Adam, torch.optim.AdamW)
_torch: Any = sys.modules[torch.optim.Optimizer.__module__]
_TYPES = (torch.float32, torch.float64)


def is_fusable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the engine's step is the optimizer's own: the exact type, and nothing around it."""
    if type(optimizer) not in (torch.optim.SGD, *_ADAMS) or has_hooks(optimizer):
        return False
    own = vars(optimizer).get("step")
    # Schedulers count the calls of a step.
    if own is not None and getattr(own, "__wrapped__", None) is not type(optimizer).step:
        return False
    return all(
        not group.get("capturable")
        and not group.get("differentiable")
        and not any(isinstance(value, torch.Tensor) for k, value in group.items() if k != "params")
        and all(p.dtype in _TYPES for p in group["params"])
        for group in optimizer.param_groups
    )


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody wants to be called around its step."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _torch._global_optimizer_pre_hooks
        or _torch._global_optimizer_post_hooks
    )


def state_keys(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[str]:
    """What the optimizer keeps for every element, as torch calls it, in the engine's order."""
    if type(optimizer) is torch.optim.SGD:
        return ["momentum_buffer"] if group["momentum"] else []
    return ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]


def new_rule(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Any:
    """A step of a group; see ``set_rule``."""
    if type(optimizer) is torch.optim.SGD:
        return _core.Update("sgd")
    return _core.Update("adamw" if group.get("decoupled_weight_decay", False) else "adam")


def set_rule(rule: Any, group: dict[str, Any]) -> None:
    """The settings of this moment: schedulers and callbacks change them."""
    rule.lr, rule.weight_decay, rule.maximize = (
        group["lr"],
        group["weight_decay"],
        group["maximize"],
    )
    if "betas" in group:
        rule.beta1, rule.beta2 = group["betas"]
        rule.eps, rule.amsgrad = group["eps"], group["amsgrad"]
    else:
        rule.momentum, rule.dampening = group["momentum"], group["dampening"]
        rule.nesterov = group["nesterov"]
