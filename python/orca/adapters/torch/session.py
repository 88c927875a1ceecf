"""What a worker keeps of an Estimator between calls: model, optimizer, and how they are kept equal on all workers."""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from orca import running
from orca.adapters.torch.arguments import refuse_strangers, strangers
from orca.adapters.torch.batch_norm import Share, has_batch_norms, join_batch_norms
from orca.adapters.torch.block_state import BlockState
from orca.adapters.torch.devices import CPU, copied_ahead, seed_cpu
from orca.adapters.torch.exchanges import DeviceGroup, add_up
from orca.adapters.torch.losses import Criterion, required_arguments
from orca.adapters.torch.names import load_plain_state, plain_name
from orca.adapters.torch.optimizers import Ftrl, load_optimizer_state, make_optimizer
from orca.adapters.torch.replicas import DrivenReplicas, Replicas, _broadcast
from orca.adapters.torch.shared_state import ELEMENTWISE, SharedState
from orca.adapters.torch.training_operator import TrainingOperator
from orca.adapters.torch.trees import type_name
from orca.errors import InvalidArgumentError, MismatchError
from orca.objects import allgather_object
from orca.phases import phase

_log = logging.getLogger("orca")


@dataclass(frozen=True)
class ModelSpec:
    """What an Estimator is made of; sent to the workers once."""

    model: Any
    optimizer: Any = None
    loss: Any = None
    scheduler: Any = None
    metrics: tuple[Any, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    step_freq: str | None = "epoch"
    elementwise: bool | None = None
    operator: Any = None
    hook: Any = None
    sync_batchnorm: bool = False
    device: torch.device | None = None  # None: the CPU; without a number: each worker's own GPU


class Session:
    """The models, optimizers and schedulers of one Estimator on one worker.

    Args:
        spec: What they are made of.
        state: Where they begin, or None.
        seed: Of a creator's weights, or None.
        is_local: Whether the driver is on the workers' machine.
        device: Where models and batches are.
        group: Of the workers' GPUs; None on CPUs.
    """

    def __init__(
        self,
        spec: ModelSpec,
        state: dict[str, Any] | None,
        seed: int | None,
        is_local: bool = True,
        device: torch.device = CPU,
        group: DeviceGroup | None = None,
    ) -> None:
        self.is_local = is_local
        self.device = device
        self.group = group
        self._owned: dict[str, nn.Parameter] = {}
        self.buffers_before: list[torch.Tensor] = []
        self.spec = spec
        self.place = (running.rank(), running.world_size())
        if spec.hook is not None:
            spec.hook()
        if seed is not None:
            seed_cpu(seed)
        self.models = make_models(spec)
        self.share = Share(partial(add_up, group=self.group))
        self.has_norms = running.world_size() > 1 and any(map(has_batch_norms, self.models))
        self.joins_norms = spec.sync_batchnorm and self.has_norms
        if self.joins_norms:
            self.join_norms(joined=True)
        # Before there are optimizers: some look where the parameters are.
        for model in self.models if self.group is not None else ():
            model.to(device)
        self.optimizers, self.rates = _make_optimizers(spec, self.models)
        for optimizer in self.optimizers:
            if optimizer.state and self.group is not None:  # An instance's own.
                optimizer.load_state_dict(optimizer.state_dict())
        self.schedulers = _make_schedulers(spec, self.optimizers)
        _check_schedulers(self.schedulers, self.optimizers)
        self.criterion = _make_criterion(spec, device)
        if seed is not None:  # Not the same masks of dropout on all workers.
            seed_cpu(seed + 1 + running.rank())
        self.operator: Any = self._make_operator()
        self.epoch = 0
        self.global_step = 0
        self.last_loss = math.nan  # of training
        self.last_score = math.nan  # the first metric of the last validation
        if state is not None:
            self._load(state)
        self._check_alike()
        for model in self.models:
            for tensor in (*model.parameters(), *model.buffers()):
                _broadcast(tensor.data)
        self.sync: SharedState | Replicas | None = None
        self.may_fuse = True
        self.blocks = 0  # Of a step; 0: a worker's rows are one.
        self.reason = ""

    @property
    def model(self) -> nn.Module:
        """The first model."""
        return self.models[0]

    @property
    def gatherers(self) -> int:
        """How many threads gather batches: beside a GPU, the cores have little else to do."""
        return 1 if self.device.type == "cpu" else min(4, torch.get_num_threads())

    def batches(self, stream: Iterator[Any], *, threaded: bool = False) -> Iterator[Any]:
        """Batches with their rows, where the model is; see ``copied_ahead``."""
        if self.device.type == "cpu":
            return stream
        return copied_ahead(stream, self.device, threaded=threaded)

    def join_norms(self, *, joined: bool) -> None:
        """Whether batch norms see the rows of all workers from now on."""
        if joined:
            for model in self.models:
                join_batch_norms(model, self.share)
        self.share.is_joined = joined

    def clock(self) -> float:
        """The time when all that was asked of the GPU is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def weights(self) -> list[torch.Tensor]:
        """A copy of all parameters."""
        return [p.detach().clone() for model in self.models for p in model.parameters()]

    def is_changed(self, weights: list[torch.Tensor]) -> bool:
        """Whether somebody has written to a parameter since."""
        now = [p.detach() for model in self.models for p in model.parameters()]
        return not all(torch.equal(a, b) for a, b in zip(now, weights, strict=True))

    @property
    def names(self) -> list[str]:
        """Of what is trained."""
        return list(self._trained() if self.sync is None else self._owned)

    def refresh(self) -> None:
        """Chooses anew how gradients are joined, when somebody has changed what is trained."""
        if self.sync is None or not self.sync.is_outdated():
            return
        self.sync.give_back()
        self.sync = None

    def release(self) -> None:
        """The next backward passes are ours again, after a loop of the user's."""
        if isinstance(self.sync, DrivenReplicas):
            self.sync.give_back()
            self.sync = None
        for model in self.models:
            model.zero_grad()  # A loop of the user's leaves its last ones.

    def set_blocks(self, blocks: int) -> None:
        """Before a ``fit``: into how many blocks the rows of a step are cut, if at all."""
        if self.sync is not None and (blocks or isinstance(self.sync, BlockState)):
            self.sync.give_back()  # Whoever is new here begins like this, too.
            self.sync = None
        self.blocks = blocks

    def choose_sync(self, *, written: bool) -> SharedState | Replicas:
        """Decides how the gradients of the workers are joined.

        Args:
            written: Whether the first step wrote to a parameter, here.
        """
        parameters = self._trained()
        shares, self.reason = self._may_share(parameters)
        # What a loss of the user's knows beside the model has a gradient by now.
        found = self._strangers(parameters, are_used=not self.blocks)
        everybody = allgather_object((written, found))
        self._refuse([s for s in found if all(s in others for _, others in everybody)])
        if any(written for written, _ in everybody):
            shares, self.reason = False, "the model writes to its parameters"
        self._owned = parameters
        if self.blocks:
            if not shares:
                raise InvalidArgumentError(
                    f"deterministic= needs weights that all workers share, and {self.reason}; leave it out"
                )
            self.sync = BlockState(
                parameters,
                self.optimizers,
                may_fuse=self.may_fuse,
                blocks=self.blocks,
                buffers=self.buffers,
            )
        elif shares:
            self.sync = SharedState(parameters, self.optimizers, may_fuse=self.may_fuse)
        else:
            self.sync = Replicas(parameters, self.optimizers, self.group)
        return self.sync

    def drive(self, why: str) -> None:
        """From now on the user makes the backward passes."""
        if self.sync is not None:
            self.sync.give_back()
        self._owned = self._trained()
        self._refuse(self._strangers(self._owned, are_used=False))
        self.reason = why
        self.sync = DrivenReplicas(self._owned, self.optimizers, self.group)

    def operator_trains(self) -> bool:
        """Whether the training operator makes the steps."""
        changed = ("train_epoch", "train_batch", "forward_batch")
        return self._operator_changes(changed) or self.criterion is None

    def operator_counts(self) -> bool:
        """Whether the steps of the training operator are counted by its base class."""
        return self.operator is not None and not self._operator_changes(("train_epoch",))

    def operator_validates(self) -> bool:
        """Whether the training operator evaluates."""
        return self._operator_changes(("validate", "validate_batch", "forward_batch"))

    def _operator_changes(self, names: tuple[str, ...]) -> bool:
        return self.operator is not None and any(
            getattr(type(self.operator), name) is not getattr(TrainingOperator, name)
            for name in names
        )

    def _make_operator(self) -> Any:
        kind = self.spec.operator
        if kind is None or kind is TrainingOperator:
            return None
        return kind(
            config=dict(self.spec.config),
            models=self.models,
            optimizers=self.optimizers,
            world_rank=running.rank(),
            criterion=self.criterion,
            schedulers=self.schedulers,
        )

    def set_rates(self) -> None:
        """Learning rates of Orca's own optimizers for the next step."""
        for rates in self.rates:
            rates.apply(
                self.optimizers[0],
                self.global_step,
                self.epoch + 1,
                self.last_loss,
                self.last_score,
            )

    def connect(self) -> None:
        """Prepares for another call, which may have other connections."""
        if self.sync is not None:
            self.sync.connect()

    def average_buffers(self, rows: int) -> None:
        """Running statistics become the mean over the workers, each weighed with its rows."""
        if running.world_size() == 1 or self.blocks:  # Blocks leave the same on all workers.
            return
        buffers = self.buffers()
        if not buffers:
            return
        # Not by their versions: torch's own kernels do not count what they write.
        changed = [not torch.equal(a, b) for a, b in zip(buffers, self.buffers_before, strict=True)]
        everybody = allgather_object((rows, changed))
        total = sum(each[0] for each in everybody)
        for i, buffer in enumerate(buffers):
            # A constant stays what it is, to the bit.
            if total == 0 or not any(each[1][i] for each in everybody):
                continue
            if buffer.is_floating_point():
                whole = buffer * (rows / total) if rows else torch.zeros_like(buffer)
                whole = whole.contiguous()
                add_up(whole, self.group)
                buffer.copy_(whole)
            else:
                _broadcast(buffer, max(range(len(everybody)), key=lambda r: everybody[r][0]))

    def buffers(self) -> list[torch.Tensor]:
        """Of all models."""
        return [b for model in self.models for b in model.buffers()]

    def note_buffers(self) -> None:
        """Before an epoch: what of the buffers changes in it is averaged after it."""
        self.buffers_before = [b.clone() for b in self.buffers()]

    def state(self, epoch: int | None = None) -> dict[str, Any]:
        """Everything that a checkpoint keeps, as state dicts."""
        places = {} if self.sync is None else self.sync.model_tensors()
        models = []
        for model in self.models:
            own = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
            models.append(
                {
                    plain_name(name): places.get(own.get(name, 0), value)
                    for name, value in model.state_dict().items()
                }
            )
        optimizers = (
            [o.state_dict() for o in self.optimizers]
            if self.sync is None
            else self.sync.optimizer_states()
        )
        return {
            "epoch": self.epoch if epoch is None else epoch,
            "global_step": self.global_step,
            "models": models,
            "optimizers": optimizers,
            "schedulers": [s.state_dict() for s in (*self.schedulers, *self.rates)],
            **({"last": [self.last_loss, self.last_score]} if self.rates else {}),
            **({} if self.operator is None else {"operator": self.operator.state_dict()}),
        }

    def _load(self, state: dict[str, Any]) -> None:
        converted: set[int] = set()
        for model, found in zip(self.models, state["models"], strict=True):
            load_plain_state(model, found)
            converted |= {
                id(p)
                for name, p in model.named_parameters()
                if found[plain_name(name)].dtype is not p.dtype
            }
        for optimizer, found in zip(self.optimizers, state.get("optimizers", ()), strict=False):
            load_optimizer_state(optimizer, found, converted)
        all_of_them = (*self.schedulers, *self.rates)
        for scheduler, found in zip(all_of_them, state.get("schedulers", ()), strict=False):
            scheduler.load_state_dict(found)
        if self.operator is not None and "operator" in state:
            self.operator.load_state_dict(state["operator"])
        self.epoch = int(state.get("epoch", 0))
        self.global_step = int(state.get("global_step", 0))
        self.last_loss, self.last_score = state.get("last", (math.nan, math.nan))

    def _trained(self) -> dict[str, nn.Parameter]:
        """What the optimizers update, by name."""
        several = len(self.models) > 1
        names = {
            id(p): f"{i}.{plain_name(name)}" if several else plain_name(name)
            for i, model in enumerate(self.models)
            for name, p in model.named_parameters()
        }
        found: dict[str, nn.Parameter] = {}
        for number, optimizer in enumerate(self.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad:
                        fallback = f"optimizer {number}, parameter {len(found)}"
                        found[names.get(id(parameter), fallback)] = parameter
        return found

    def _strangers(self, trained: dict[str, nn.Parameter], *, are_used: bool) -> list[str]:
        """As ``strangers``, of this session's models and loss."""
        loss = None if self.criterion is None else self.criterion.loss
        return strangers(trained, [*self.models, loss], are_used=are_used)

    def _refuse(self, found: list[str]) -> None:
        refuse_strangers(found, self.optimizers)

    def _may_share(self, parameters: dict[str, nn.Parameter]) -> tuple[bool, str]:
        spec = self.spec
        if self.group is not None:
            alone = running.world_size() == 1
            return False, "nothing to join" if alone else "gradients are joined over NCCL"
        if spec.elementwise is False:
            return False, "elementwise=False"
        if not self.is_local:
            return False, "the driver may be on another machine"
        if running.local_world_size() != running.world_size():
            return False, "workers on several machines"
        for optimizer in self.optimizers:
            if type(optimizer) not in (*ELEMENTWISE, Ftrl) and not spec.elementwise:
                return False, f"{type(optimizer).__name__} may look at whole parameters"
            if any(not p.requires_grad for g in optimizer.param_groups for p in g["params"]):
                return False, "the optimizer has frozen parameters"
        owners = [id(p) for o in self.optimizers for g in o.param_groups for p in g["params"]]
        if len(set(owners)) < len(owners):
            return False, "two optimizers update the same parameters"
        for name, parameter in parameters.items():
            if parameter.device.type != "cpu" or parameter.layout is not torch.strided:
                return False, f"{name!r} is not in the memory of the CPU"
        for model in self.models:
            for name, module in model.named_modules():
                if getattr(module, "sparse", False):
                    return False, f"{name!r} has sparse gradients"
                if any(hook for hook in module._forward_pre_hooks.values() if _writes(hook)):
                    return False, f"{name!r} changes its weights in forward"
        return True, f"{type(self.optimizers[0]).__name__} works element by element"

    def _check_alike(self) -> None:
        """Every worker must have made the same model."""
        mine = [
            (f"model {i}: {name}", type_name(t), tuple(t.shape))
            for i, model in enumerate(self.models)
            for name, t in (*model.named_parameters(), *model.named_buffers())
        ]
        for rank, theirs in enumerate(allgather_object(mine)):
            if theirs == mine:
                continue
            for a, b in zip([*mine, None], [*theirs, None], strict=False):
                if a != b:
                    raise MismatchError(
                        f"the workers made different models: rank {running.rank()} has "
                        f"{_describe(a)}, rank {rank} has {_describe(b)}; let the creator make the "
                        "same model everywhere"
                    )


def _describe(entry: Any) -> str:
    return "nothing more" if entry is None else f"{entry[0]} {entry[1]} {entry[2]}"


def _writes(hook: Any) -> bool:
    """Whether a hook is one of torch's old ones that compute a weight before each forward."""
    return type(hook).__module__ in ("torch.nn.utils.spectral_norm", "torch.nn.utils.weight_norm")


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a creator with as many of the arguments as it takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function(*arguments)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(*arguments)
    taken = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return function(*arguments[:taken])


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def make_models(spec: ModelSpec) -> list[nn.Module]:
    """The models of a spec; a creator is called."""
    if isinstance(spec.model, nn.Module):
        return [spec.model]
    if isinstance(spec.model, list | tuple):
        return list(spec.model)
    with phase("model_creator"):
        models = _listed(_call(spec.model, dict(spec.config)))
    for model in models:
        if not isinstance(model, nn.Module):
            raise InvalidArgumentError(
                f"the model creator returned a {type(model).__name__}; return a torch.nn.Module"
            )
    return models


def _make_optimizers(
    spec: ModelSpec, models: list[nn.Module]
) -> tuple[list[torch.optim.Optimizer], list[Any]]:
    if spec.optimizer is None:
        return [], []
    if isinstance(spec.optimizer, torch.optim.Optimizer):
        return [spec.optimizer], []
    if hasattr(spec.optimizer, "get_optimizer"):
        parameters = [p for model in models for p in model.parameters() if p.requires_grad]
        if not parameters:  # Such a model can predict.
            return [], []
        optimizer, rates = make_optimizer(spec.optimizer, parameters)
        return [optimizer], [] if rates is None else [rates]
    model = models[0] if len(models) == 1 else models
    optimizers = _listed(_call(spec.optimizer, model, dict(spec.config)))
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"the optimizer creator returned a {type(optimizer).__name__}; return a "
                "torch.optim.Optimizer"
            )
    return optimizers, []


def _make_schedulers(spec: ModelSpec, optimizers: list[torch.optim.Optimizer]) -> list[Any]:
    if spec.scheduler is None or not optimizers:
        return []
    if hasattr(spec.scheduler, "state_dict"):
        return [spec.scheduler]
    optimizer = optimizers[0] if len(optimizers) == 1 else optimizers
    return _listed(_call(spec.scheduler, optimizer, dict(spec.config)))


def _check_schedulers(schedulers: list[Any], optimizers: list[torch.optim.Optimizer]) -> None:
    """A scheduler of an optimizer that does not train would do nothing."""
    ours = {id(group) for optimizer in optimizers for group in optimizer.param_groups}
    for scheduler in schedulers:
        theirs = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)
        if theirs and not ours & {id(group) for group in theirs}:
            raise InvalidArgumentError(
                f"{type(scheduler).__name__} sets the learning rate of another optimizer than the one that "
                "trains; make it with the optimizer that scheduler_creator gets"
            )


def _make_criterion(spec: ModelSpec, device: torch.device) -> Criterion | None:
    loss = spec.loss
    if loss is None:
        return None
    if isinstance(loss, type) or (
        not isinstance(loss, nn.Module) and required_arguments(loss) in (0, 1)
    ):
        loss = loss() if isinstance(loss, type) else _call(loss, dict(spec.config))
    if isinstance(loss, nn.Module) and device.type != "cpu":
        loss.to(device)
    return Criterion(loss)


def make_metrics(metrics: tuple[Any, ...]) -> dict[str, Any]:
    """New metrics by their names."""
    from orca.learn.metrics import Metric

    found: dict[str, Any] = Metric.convert_metrics_dict(list(metrics), backend="pytorch")
    return found
