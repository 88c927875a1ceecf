"""A copy of the weights in each worker; all of them make the same update.

For every model and optimizer that cannot share: optimizers that look at whole parameters, sparse gradients, code of the
user's that writes to weights or drives its own backward passes, workers on several machines, GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from orca import running
from orca._native import _core
from orca.adapters.torch.exchanges import DeviceExchange, DeviceGroup, HostExchange
from orca.adapters.torch.optimizers import load_optimizer_state
from orca.adapters.torch.shared_state import shared_block
from orca.adapters.torch.trees import pack, type_name, unpack
from orca.data import SharedBlock
from orca.objects import allgather_object, broadcast_object


class Replicas:
    """The gradients of one session.

    Args:
        parameters: The trainable ones, by name.
        optimizers: Any.
        group: Of the GPUs that have the parameters; None when the CPU has them.
    """

    way = "a copy of the weights in each worker"

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        optimizers: list[torch.optim.Optimizer],
        group: DeviceGroup | None = None,
    ) -> None:
        self.parameters = list(parameters.values())
        self.optimizers = optimizers
        self._group = group
        for parameter in self.parameters:
            _broadcast(parameter.data)
        if group is None:
            self._make_room(parameters)
        self.connect()

    def _make_room(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        self.layout = _core.FlatLayout(
            [(name, type_name(p), p.numel(), 0) for name, p in parameters.items()]
        )
        self._shared = running.local_world_size() == running.world_size()
        size = _core.GradientExchange.block_size(
            self.layout, running.world_size() if self._shared else 1
        )
        self._block = shared_block(size) if self._shared else SharedBlock(size)

    def connect(self) -> None:
        """Forms the exchange with the workers of the current call."""
        self.exchange: HostExchange | DeviceExchange
        if self._group is not None:
            self.exchange = DeviceExchange(self.parameters, self._group)
            return
        native = _core.GradientExchange(
            running.communicator()._native, self.layout, self._block.native, self._shared
        )
        self.exchange = HostExchange(native, self.parameters)

    def step(self, weight: Any, loss: Any, rows: int, *, leaves: bool, policy: Any) -> Any:
        """Joins the gradients and updates this worker's weights; returns the sum of all workers."""
        total = self.join(weight, loss, rows, leaves=leaves, policy=policy)
        if total[0] and policy.goes_on(total):
            policy.clip([p for p in self.parameters if p.grad is not None])
            for optimizer in self.optimizers:
                if isinstance(optimizer, torch.optim.LBFGS):
                    optimizer.step(lambda: self._again(policy))
                else:
                    optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        return total

    def _again(self, policy: Any) -> float:
        """The loss and the gradients of this step's batch at other weights, on all workers."""
        for parameter in self.parameters:
            parameter.grad = None
        weight, loss, rows = policy.evaluate_again()
        total = self.join(weight, loss, rows, leaves=False, policy=policy)
        policy.clip([p for p in self.parameters if p.grad is not None])
        return float(total[1])

    def join(self, weight: Any, loss: Any, rows: int, *, leaves: bool, policy: Any) -> Any:
        """Makes every worker's gradients those of all rows together."""
        exchange = self.exchange
        sparse: dict[int, torch.Tensor] = {}
        if weight:
            for i, parameter in enumerate(self.parameters):
                if parameter.grad is not None and parameter.grad.is_sparse:
                    sparse[i] = parameter.grad
            exchange.collect(sparse)
        total = exchange.meet(weight, loss, rows, leaves, policy.is_sum)
        if total[0]:
            self._spread(weight, total, sparse, policy.is_sum)
        exchange.leave()
        return total

    def _spread(
        self, weight: Any, total: Any, sparse: dict[int, torch.Tensor], is_sum: bool
    ) -> None:
        exchange = self.exchange
        used = exchange.used()
        for parameter, is_used in zip(self.parameters, used, strict=True):
            if not is_used:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.empty_like(parameter, memory_format=torch.contiguous_format)
        exchange.reduce_all()
        exchange.spread()
        if not total[7]:
            alone = running.world_size() == 1
            factor = 1.0 if is_sum or alone else float(weight) / total[0]
            self._join_sparse(sparse, factor)

    def _join_sparse(self, mine: dict[int, torch.Tensor], factor: float) -> None:
        parts = {}
        # A worker whose labels are all ignored has gradients, which are NaN.
        for i, gradient in mine.items() if factor else ():
            whole = gradient.coalesce()
            parts[i] = (whole.indices().cpu().numpy(), (whole.values() * factor).cpu().numpy())
        everybody = allgather_object(parts)
        for i in sorted(set().union(*everybody)):
            found = [each[i] for each in everybody if i in each]
            indices = torch.cat([torch.from_numpy(f[0]) for f in found], dim=1)
            values = torch.cat([torch.from_numpy(f[1]) for f in found])
            parameter = self.parameters[i]
            whole = torch.sparse_coo_tensor(
                indices, values, parameter.shape, device=parameter.device
            )
            parameter.grad = whole.coalesce()

    def check_untouched(self) -> None:
        """Everybody may write to his own copy."""

    def model_tensors(self) -> dict[int, Any]:
        """Nothing lies in shared memory."""
        return {}

    def is_outdated(self) -> bool:
        """Whether an optimizer trains other parameters than it did."""
        now = {
            id(p)
            for o in self.optimizers
            for g in o.param_groups
            for p in g["params"]
            if p.requires_grad
        }
        return now != {id(p) for p in self.parameters}

    def give_back(self) -> None:
        """The optimizers have had the parameters all along."""

    def optimizer_states(self) -> list[dict[str, Any]]:
        """The state dict of each optimizer."""
        return [optimizer.state_dict() for optimizer in self.optimizers]


def _broadcast(tensor: torch.Tensor, root: int = 0) -> None:
    if running.world_size() == 1 or tensor.numel() == 0:
        return
    whole = tensor.cpu().contiguous()  # The engine's connections are between CPUs.
    running.broadcast(whole, root)
    if whole is not tensor:
        tensor.copy_(whole)


class DrivenReplicas(Replicas):
    """For training loops of the user's: gradients are joined when a backward pass ends.

    A worker that has no batch left goes on joining with nothing of its own until all are done, so
    workers may make different numbers of steps and of backward passes.
    """

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        optimizers: list[torch.optim.Optimizer],
        group: DeviceGroup | None = None,
    ) -> None:
        super().__init__(parameters, optimizers, group)
        self._touched: set[int] | None = None
        self._passes = 0  # since the last boundary, of all workers
        self.had_passes = False  # whether there were some between the last two
        self.own_passes = 0  # of this worker since the last boundary
        self.rows = 1
        self.policy: Any = _Plain
        self._hooks: list[Any] = [
            optimizer.register_step_pre_hook(self._before_step) for optimizer in optimizers
        ]
        self._hooks += [
            parameter.register_post_accumulate_grad_hook(self._hook_of(index))
            for index, parameter in enumerate(self.parameters)
            if parameter.requires_grad
        ]

    def give_back(self) -> None:
        """Backward passes are local again."""
        for hook in self._hooks:
            hook.remove()

    def _hook_of(self, index: int) -> Any:
        def hook(_parameter: torch.Tensor) -> None:
            if self._touched is None:
                self._touched = set()
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(self._join_touched)
            self._touched.add(index)

        return hook

    def _join_touched(self) -> None:
        """At the end of a backward pass: the gradients that it made."""
        touched, self._touched = self._touched or set(), None
        self._passes += 1
        self.own_passes += 1
        aside = {i: p.grad for i, p in enumerate(self.parameters) if i not in touched}
        for i in aside:
            self.parameters[i].grad = None
        total = self.join(float(self.rows), 0.0, self.rows, leaves=False, policy=_Plain)
        self.policy.heed(total)
        for i, gradient in aside.items():
            # What another worker's pass has touched beside ours joins what was there.
            found = self.parameters[i].grad
            if gradient is not None:
                self.parameters[i].grad = gradient if found is None else gradient.add_(found)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.policy.judge([p for p in parameters if p.grad is not None])

    def boundary(self, has_batch: bool, stop: bool = False) -> bool:
        """Between two steps; says whether some worker has another batch, and none wants to stop."""
        said = int(has_batch) + (int(stop) << 32)
        while True:
            total = self.exchange.meet(0.0, 0.0, said, True, False)
            if total[6]:
                self.exchange.leave()
                self.had_passes, self._passes, self.own_passes = self._passes > 0, 0, 0
                return bool(0 < total[2] < 1 << 32)
            self._passes += 1
            self.exchange.reduce_all()
            if not total[7]:
                self._join_sparse({}, 0.0)
            self.exchange.leave()
            self.policy.heed(total)

    def settle(self, steps: int, schedulers: Sequence[Any]) -> int:
        """After an epoch: who made fewer steps takes over from who made the most; returns how many more."""
        counts = allgather_object(steps)
        if len(set(counts)) == 1:
            return 0
        best = counts.index(max(counts))
        for parameter in self.parameters:
            _broadcast(parameter.data, best)
        # A loop may add gradients up over batches, and go on with them in the next epoch.
        mine = None
        if running.rank() == best:
            parts = (self.optimizers, schedulers)
            dicts = ([o.state_dict() for o in part] for part in parts)
            mine = pack([[p.grad for p in self.parameters], *dicts])
        gradients, states, schedules = unpack(broadcast_object(mine, best))
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            load_optimizer_state(optimizer, state)
        for scheduler, state in zip(schedulers, schedules, strict=True):
            scheduler.load_state_dict(state)
        return int(max(counts) - steps)


class _Plain:
    """A mean, and no other rules."""

    is_sum = False

    @staticmethod
    def heed(total: Any) -> None:
        """Anything may be joined."""

    @staticmethod
    def judge(parameters: list[torch.nn.Parameter]) -> None:
        """Any step may be made."""
