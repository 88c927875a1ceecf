"""One copy of the weights for all workers of a machine; each updates its share of them.

The user's own optimizer object works on flat slices of the shared weights. That gives the same numbers as working on the
parameters one by one, for any optimizer that treats every element by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from orca import running
from orca._native import _core
from orca.adapters.torch.fused import has_hooks, is_fusable, new_rule, set_rule, state_keys
from orca.adapters.torch.trees import BlockTensor, type_name
from orca.data.arrays import SharedBlock, receive_block
from orca.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from orca.objects import broadcast_object

ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
)


_LINE = 64  # bytes that a layout keeps together


def shared_block(nbytes: int) -> SharedBlock:
    """A new block that all ranks of this machine have mapped."""
    mine = SharedBlock(nbytes) if running.rank() == 0 else None
    number = broadcast_object(mine._hold.id if mine else None)
    try:
        block = mine or receive_block(number)
    except InvalidArgumentError as error:
        raise AbortedError("rank 0 was lost with the memory that it had made") from error
    running.barrier()  # Until then only rank 0 keeps it.
    return block


@dataclass
class _Rule:
    """What the engine does with a slice, and for whom."""

    rule: Any
    settings: dict[str, Any]
    optimizer: torch.optim.Optimizer
    flat: torch.nn.Parameter
    keys: list[str]

    @property
    def is_new(self) -> bool:
        """Whether there was no step: SGD counts none, but it has its momentum afterwards."""
        return bool(self.rule.first)


class SharedState:
    """Weights, gradients and optimizer state of one session.

    Args:
        parameters: The trainable ones, by name, in the order of the optimizers' groups.
        optimizers: Whose groups hold exactly these parameters.
        may_fuse: Whether the engine may make their steps. Its last bits are not torch's: who has ended that goes
            on without it.
    """

    way = "shared weights"

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        optimizers: list[torch.optim.Optimizer],
        *,
        may_fuse: bool = True,
    ) -> None:
        self._names = list(parameters)
        self.parameters = list(parameters.values())
        self.optimizers = optimizers
        self._rank, self._world = running.rank(), running.world_size()
        place = {id(parameter): i for i, parameter in enumerate(self.parameters)}
        groups = [(o, g) for o in optimizers for g in o.param_groups]
        self._group_of = [0] * len(self.parameters)
        for number, (_, group) in enumerate(groups):
            for parameter in group["params"]:
                self._group_of[place[id(parameter)]] = number
        # Per group, as the user's optimizer had them.
        self._members = [[place[id(p)] for p in group["params"]] for _, group in groups]
        self._groups = groups
        self.tensors = [
            (name, type_name(p), p.numel(), group)
            for name, p, group in zip(self._names, self.parameters, self._group_of, strict=True)
        ]
        self.layout = _core.FlatLayout(self.tensors)
        self._offsets = [self.layout.offset(i) for i in range(len(self.parameters))]
        self._weights = shared_block(self.layout.size)
        self.gradients = shared_block(self._gradient_bytes())
        self._states: list[dict[str, Any]] = [{} for _ in self.parameters]  # scalars, by key
        self._keys: list[dict[str, str]] = [{} for _ in self.parameters]  # of banks, with types
        self._banks: dict[tuple[int, str, str, str], SharedBlock] = {}
        self._areas = _areas(self._offsets, self.parameters)
        self._kinds = [0] * len(self.parameters)
        self._slices: list[tuple[int, torch.nn.Parameter, torch.Tensor, list[int]]] = []
        self.commits: Any = None  # Of the ``fit`` that runs.
        self.may_fuse, self.is_fused = may_fuse, False
        self.redo: tuple[SharedBlock, int] | None = None  # a block, and its room for parts
        self._redo: Any = None
        self._updates = 0
        self._rules: list[_Rule] = []
        self._take_over(optimizers)
        self._move_weights()
        self._connect()
        self._slice()
        self._fuse()

    # --- once a call

    def connect(self) -> None:
        """Forms the exchange with the workers of the current call."""
        self.commits = None
        self._connect()
        if self.is_fused:
            self._show_states()
        self._fuse()

    def _gradient_bytes(self) -> int:
        return int(_core.GradientExchange.block_size(self.layout, self._world))

    def _connect(self) -> None:
        self.exchange: Any = _core.GradientExchange(
            running.communicator()._native, self.layout, self.gradients.native, True
        )
        self._set_runs()

    def _set_runs(self) -> None:
        self.exchange.set_runs(self._kinds)

    def _fuse(self) -> None:
        """Lets the engine make the steps of optimizers that it knows."""
        self.is_fused = self._can_fuse()
        if not self.is_fused:
            return
        for group, (optimizer, settings) in enumerate(self._groups):
            number = self.optimizers.index(optimizer)
            for key in state_keys(optimizer, settings):
                for of in sorted({type_name(self.parameters[i]) for i in self._members[group]}):
                    self._bank(number, key, of, of)
        parts = len(self.parameters)
        if self.redo is None:
            size = _core.RedoLog.block_size(self._world, parts)
            self.redo = shared_block(size), parts
        regions = [region.native for region in self.regions()]
        self._redo = _core.RedoLog(self.redo[0].native, self._world, parts, regions)
        self._set_parts()

    def _can_fuse(self) -> bool:
        return self.may_fuse and all(map(is_fusable, self.optimizers)) and self._has_own_types()

    def _has_own_types(self) -> bool:
        """Whether all state is of the parameters' types, as the engine makes it."""
        return all(
            dtype == type_name(p)
            for p, keys in zip(self.parameters, self._keys, strict=True)
            for dtype in keys.values()
        )

    def _set_parts(self) -> None:
        """What the engine updates: the slices, as runs of all workers."""
        numbers = {name: i + 1 for i, name in enumerate(sorted(self._banks))}
        self._rules = []
        parts = []
        for (dtype, group, _, begin, end), (_, flat, _, _) in zip(
            self._runs(), self._slices, strict=True
        ):
            optimizer, settings = self._groups[group]
            owner = self.optimizers.index(optimizer)
            keys = state_keys(optimizer, settings)
            state = optimizer.state.get(flat, {})
            rule = new_rule(optimizer, settings)
            rule.step = float(state.get("step", 0))
            rule.first = bool(keys) and keys[0] not in state
            regions = [numbers[owner, key, dtype, dtype] for key in keys]
            parts.append((dtype, begin, end, regions, self._areas[dtype][0], rule))
            self._rules.append(_Rule(rule, settings, optimizer, flat, keys))
        self._redo.set_parts(parts)

    def _runs(self) -> list[Any]:
        return [run for run in self.layout.runs(self._kinds) if run[3] != run[4]]

    # --- the step

    def step(self, weight: float, loss: float, rows: int, *, leaves: bool, policy: Any) -> Any:
        """Joins the gradients and updates the weights; returns the sum of all workers.

        A worker with a weight of 0 has no gradient. ``policy(total)`` says whether to update, and
        may raise.
        """
        if weight:
            self.exchange.collect(self._pointers())
        if self.commits is not None:
            self.commits.note()
        total = self.exchange.meet(weight, loss, rows, leaves, policy.is_sum)
        self._take_step(total, policy)
        return total

    def _pointers(self) -> list[int]:
        """Where the gradients are."""
        gradients = [p.grad for p in self.parameters]
        return [0 if g is None else _contiguous(g) for g in gradients]

    def _take_step(self, total: Any, policy: Any) -> None:
        if total[0] and policy.goes_on(total):
            if self.is_fused and not (total[7] and self._fits()):
                self._end_fusing()
            if self.is_fused:
                self._update(total, policy)
            else:
                self._step(all_used=total[7], policy=policy)
        self.exchange.leave()
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _step(self, *, all_used: bool, policy: Any) -> None:
        """The optimizers' own step."""
        if not all_used or self.has_idle:
            self._follow(self.exchange.used())
        else:
            for _, flat, gradient, _ in self._slices:
                flat.grad = gradient  # Somebody may have called zero_grad().
        self._reduce()
        policy.clip([s[1] for s in self._slices if s[1].grad is not None])
        if self.commits is not None:
            self.commits.save()
        for optimizer in self.optimizers:
            optimizer.step()
        if self._is_new:
            self._adopt_states()

    def _update(self, total: Any, policy: Any) -> None:
        """The engine's step."""
        limits, largest = policy.limits
        scale = 1.0
        if largest is not None:
            norm = math.sqrt(self._squares(limits))
            scale = largest / (norm + 1e-6) if norm > largest else 1.0
        for each in self._rules:
            rule = each.rule
            set_rule(rule, each.settings)
            rule.step += 1
            rule.scale, rule.clips = scale, limits is not None
            if limits is not None:
                rule.clip_low, rule.clip_high = limits
        self._updates += 1
        number = self._updates if self.commits is None else self.commits.begin_update()
        self._redo.update(self.exchange, self._rank, number, total[1], total[2])
        for each in self._rules:
            each.rule.first = False
        for optimizer in self.optimizers:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # Schedulers ask for it.

    def _reduce(self) -> None:
        """Makes this worker's share of the joined gradient."""
        self.exchange.reduce_share()

    def _squares(self, limits: tuple[float, float] | None) -> float:
        """The squares of the whole joined gradient, added up."""
        squares = np.array([self.exchange.squares_of_share(limits)])
        return float(running.allreduce(squares)[0])

    def _fits(self) -> bool:
        """Whether the optimizers still are what they were: somebody may add hooks, or give SGD a momentum.

        Nor does the engine make the first state of an optimizer when a commit says that there is none.
        """
        has_commit = self.commits is not None and self.commits.has_commit
        return not any(map(has_hooks, self.optimizers)) and all(
            state_keys(each.optimizer, each.settings) == each.keys
            and not (has_commit and each.keys and each.is_new)
            for each in self._rules
        )

    def _end_fusing(self) -> None:
        """From now on the optimizers make the steps: the engine cannot leave parameters alone."""
        self._show_states()
        self.is_fused = self.may_fuse = False
        if self.commits is not None:
            self.commits.switch()
        self._is_new = any(not optimizer.state.get(s[1]) for optimizer, s in self._owners())

    def _show_states(self) -> None:
        """Gives the optimizers the state that the engine has made for them."""
        for each, (dtype, _, _, begin, end) in zip(self._rules, self._runs(), strict=True):
            if not each.keys or each.is_new:
                continue
            state = each.optimizer.state[each.flat]
            if type(each.optimizer) is not torch.optim.SGD:
                state["step"] = torch.tensor(each.rule.step, dtype=torch.get_default_dtype())
            first, last = self._share(begin, end)
            number = self.optimizers.index(each.optimizer)
            for key in each.keys:
                state[key] = self._state_slice(number, key, dtype, dtype, first, last)

    def regions(self) -> list[SharedBlock]:
        """The memory that steps change."""
        return [self._weights, *(self._banks[name] for name in sorted(self._banks))]

    def copies(self, old: list[SharedBlock]) -> list[SharedBlock]:
        """The regions as they are now; every worker copies a part of each.

        Args:
            old: Copies that nobody needs any more. They are written to if they fit.
        """
        regions = self.regions()
        if [block.nbytes for block in old] != [block.nbytes for block in regions]:
            old = [shared_block(block.nbytes) for block in regions]
        for block, copy in zip(regions, old, strict=True):
            begin, end = (
                block.nbytes * rank // self._world for rank in (self._rank, self._rank + 1)
            )
            copy.array("uint8", (end - begin,), begin)[:] = block.array(
                "uint8", (end - begin,), begin
            )
        running.barrier()
        return old

    def pieces(self) -> list[tuple[int, int, int]]:
        """What this worker changes in a step: the number of a region, where in it, and how many bytes."""
        regions = [(region.address, region.nbytes) for region in self.regions()]
        found = []
        for optimizer, (_, flat, _, _) in self._owners():
            state = optimizer.state.get(flat, {}).values()
            for tensor in (flat, *(value for value in state if _is_elementwise(value, flat))):
                at, size = tensor.data_ptr(), tensor.numel() * tensor.itemsize
                for number, (begin, nbytes) in enumerate(regions):
                    if size and begin <= at < begin + nbytes:
                        found.append((number, at - begin, size))
        return found

    def check_untouched(self) -> None:
        """Raises when something beside the optimizer wrote to the weights."""
        places = [(p._version, p.data_ptr()) for p in self.parameters]
        if places == self._places:
            return
        name = next(n for n, a, b in zip(self._names, places, self._places, strict=True) if a != b)
        raise FailedPreconditionError(
            f"something changed {name!r} in place during training; with shared weights the change of "
            "every worker is applied: give from_torch(elementwise=False), and each has its own copy"
        )

    # --- state dicts

    def model_tensors(self) -> dict[int, BlockTensor]:
        """Where each parameter lies, by its id."""
        return {id(p): self._tensor(self._weights, i) for i, p in enumerate(self.parameters)}

    def optimizer_states(self) -> list[dict[str, Any]]:
        """The state dict of each optimizer as if it had the parameters themselves."""
        self._gather_scalars()
        found = []
        for number, optimizer in enumerate(self.optimizers):
            state: dict[int, Any] = {}
            groups = []
            index = 0
            for (owner, group), members in zip(self._groups, self._members, strict=True):
                if owner is not optimizer:
                    continue
                kept = {key: value for key, value in group.items() if key != "params"}
                groups.append(kept | {"params": list(range(index, index + len(members)))})
                for i in members:
                    if self._states[i] or self._keys[i]:
                        state[index] = dict(self._states[i]) | {
                            key: self._state_tensor(number, key, dtype, i)
                            for key, dtype in sorted(self._keys[i].items())
                        }
                    index += 1
            found.append({"state": state, "param_groups": groups})
        return found

    def is_outdated(self) -> bool:
        """Whether an optimizer has other groups than it had."""
        groups = [g for o in self.optimizers for g in o.param_groups]
        return len(groups) != len(self._groups)

    def give_back(self) -> None:
        """Model and optimizers have parameters and state of their own again."""
        self._gather_scalars()
        for (_, group), members in zip(self._groups, self._members, strict=True):
            group["params"] = [self.parameters[i] for i in members]
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
        for number, optimizer in enumerate(self.optimizers):
            optimizer.state.clear()
            for (owner, _), members in zip(self._groups, self._members, strict=True):
                if owner is not optimizer:
                    continue
                for i in members:
                    state = {key: _copy(value) for key, value in self._states[i].items()}
                    for key, dtype in self._keys[i].items():
                        state[key] = self._state_tensor(number, key, dtype, i).tensor().clone()
                    if state:
                        optimizer.state[self.parameters[i]] = state
        running.barrier()  # Nobody writes to the shared weights before all have copied them.

    # --- inside

    def _tensor(self, block: SharedBlock, i: int) -> BlockTensor:
        p = self.parameters[i]
        return BlockTensor(block, type_name(p), tuple(p.shape), self._offsets[i])

    def _bank(self, number: int, key: str, of: str, dtype: str) -> SharedBlock:
        """An optimizer's state for all parameters of a type; all ranks ask for a new one together."""
        name = (number, key, of, dtype)
        if name not in self._banks:
            begin, end = self._areas[of]
            self._banks[name] = shared_block(_scaled(end - begin, of, dtype))
        return self._banks[name]

    def _state_tensor(self, number: int, key: str, dtype: str, i: int) -> BlockTensor:
        p = self.parameters[i]
        of = type_name(p)
        offset = _scaled(self._offsets[i] - self._areas[of][0], of, dtype)
        return BlockTensor(self._bank(number, key, of, dtype), dtype, tuple(p.shape), offset)

    def _state_slice(
        self, number: int, key: str, dtype: str, of: str, first: int, last: int
    ) -> torch.Tensor:
        begin = self._areas[of][0]
        bank = self._bank(number, key, of, dtype)
        return _flat(bank, dtype, *(_scaled(at - begin, of, dtype) for at in (first, last)))

    def _move_weights(self) -> None:
        """The model's parameters become views of the block; rank 0's values win."""
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters):
                view = self._tensor(self._weights, i).tensor()
                if self._rank == 0:
                    view.copy_(parameter)
                parameter.data = view
        running.barrier()
        self._places = [(p._version, p.data_ptr()) for p in self.parameters]

    def _take_over(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """State that the optimizers bring along: of a loaded checkpoint, or an instance's own."""
        for number, optimizer in enumerate(optimizers):
            elementwise = _elementwise_keys(self.parameters, optimizer)
            for i, parameter in enumerate(self.parameters):
                for key, value in optimizer.state.get(parameter, {}).items():
                    if key in elementwise:
                        self._keys[i][key] = type_name(value)
                        place = self._state_tensor(number, key, type_name(value), i).tensor()
                        if self._rank == 0:
                            place.copy_(value)
                    else:
                        self._states[i][key] = value
        running.barrier()
        # What has another state is updated by itself.
        marks = [
            (tuple(sorted(keys.items())), tuple((k, _plain(v)) for k, v in sorted(state.items())))
            for keys, state in zip(self._keys, self._states, strict=True)
        ]
        known: dict[Any, int] = {}
        self._kinds = [known.setdefault(mark, len(known)) for mark in marks]

    def _share(self, begin: int, end: int) -> tuple[int, int]:
        """The part of a run that this worker updates."""
        first, last = _core.FlatLayout.share(begin, end, self._rank, self._world)
        return first, last

    def _slice(self) -> None:
        """Gives every optimizer its slices of the shared weights, with their state."""
        self._set_runs()
        bank = self.exchange.bank()
        self._slices = []
        for _, group in self._groups:
            group["params"] = []
        for optimizer in self.optimizers:
            optimizer.state.clear()
        for dtype, group, kind, begin, end in self.layout.runs(self._kinds):
            if begin == end:
                continue
            first, last = self._share(begin, end)
            members = [
                i
                for i, offset in enumerate(self._offsets)
                if begin <= offset < end and self._kinds[i] == kind and self._group_of[i] == group
            ]
            weights = _flat(self._weights, dtype, first, last)
            flat = torch.nn.Parameter(weights)
            gradient = _as_type(torch.from_numpy(bank[first:last]), dtype)
            flat.grad = gradient
            optimizer, settings = self._groups[group]
            settings["params"].append(flat)
            state = {key: _copy(value) for key, value in self._states[members[0]].items()}
            number = self.optimizers.index(optimizer)
            for key, kept_as in self._keys[members[0]].items():
                state[key] = self._state_slice(number, key, kept_as, dtype, first, last)
            if state:
                optimizer.state[flat] = state
            self._slices.append((group, flat, gradient, members))
        self.has_idle = False
        if self.is_fused:
            self._set_parts()
        if self.commits is not None:
            self.commits.follow()
        self._is_new = any(not optimizer.state.get(s[1]) for optimizer, s in self._owners())

    def _owners(self) -> list[tuple[torch.optim.Optimizer, Any]]:
        return [(self._groups[s[0]][0], s) for s in self._slices]

    def _follow(self, used: list[bool]) -> None:
        """A parameter that no worker has a gradient of is left alone in this step."""
        if any(len({used[i] for i in s[3]}) > 1 for s in self._slices):
            self._gather_scalars()
            known: dict[tuple[int, bool], int] = {}
            self._kinds = [
                known.setdefault((kind, flag), len(known))
                for kind, flag in zip(self._kinds, used, strict=True)
            ]
            self._slice()
        for _, flat, gradient, members in self._slices:
            flat.grad = gradient if used[members[0]] else None
        self.has_idle = not all(used)

    def _gather_scalars(self) -> None:
        """Notes what the optimizers know of each slice for its parameters."""
        if self.is_fused:
            self._show_states()
        for optimizer, (_, flat, _, members) in self._owners():
            state = optimizer.state.get(flat, {})
            scalars = {k: v for k, v in state.items() if not _is_elementwise(v, flat)}
            keys = {k: type_name(v) for k, v in state.items() if _is_elementwise(v, flat)}
            for i in members:
                self._states[i] = {k: _copy(v) for k, v in scalars.items()}
                self._keys[i] = dict(keys)

    def _adopt_states(self) -> None:
        """Moves what the optimizers have made in their first step into shared memory."""
        for optimizer, (_, flat, _, _) in self._owners():
            number = self.optimizers.index(optimizer)
            state = optimizer.state.get(flat, {})
            for key in sorted(k for k, v in state.items() if _is_elementwise(v, flat)):
                of = type_name(flat)
                first = flat.data_ptr() - self._base() if flat.numel() else self._areas[of][0]
                last = first + flat.numel() * flat.itemsize
                view = self._state_slice(number, key, type_name(state[key]), of, first, last)
                view.copy_(state[key])
                state[key] = view
        self._is_new = any(
            flat.grad is None and not optimizer.state.get(flat)
            for optimizer, (_, flat, _, _) in self._owners()
        )
        if self.commits is not None:
            self.commits.follow()

    def _base(self) -> int:
        return int(self._weights.array("uint8", (1,)).ctypes.data)


def _areas(offsets: list[int], parameters: list[torch.nn.Parameter]) -> dict[str, tuple[int, int]]:
    """From where to where the parameters of each type lie; a layout is sorted by type."""
    found: dict[str, tuple[int, int]] = {}
    for offset, p in zip(offsets, parameters, strict=True):
        begin, end = found.get(type_name(p), (offset, offset))
        lines = -(-p.numel() * p.itemsize // _LINE)
        found[type_name(p)] = min(begin, offset), max(end, offset + lines * _LINE)
    return found


def _scaled(nbytes: int, of: str, dtype: str) -> int:
    """The bytes of as many elements of another type."""
    return int(nbytes // getattr(torch, of).itemsize * getattr(torch, dtype).itemsize)


def _flat(block: SharedBlock, dtype: str, first: int, last: int) -> torch.Tensor:
    count = (last - first) // getattr(torch, dtype).itemsize
    return BlockTensor(block, dtype, (count,), first).tensor()


def _contiguous(gradient: torch.Tensor) -> int:
    if not gradient.is_contiguous():
        # In place, so that the memory lives as long as the parameter's gradient.
        gradient.set_(gradient.contiguous())  # type: ignore[call-overload]
    return gradient.data_ptr()


def _elementwise_keys(
    parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> set[str]:
    """The keys of an optimizer's state that have one value for every element of a parameter."""
    found: dict[str, bool] = {}
    for parameter in parameters:
        for key, value in optimizer.state.get(parameter, {}).items():
            fits = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if parameter.dim() == 0:  # Where counters have the same shape, the name decides.
                fits = fits and key not in ("step", "mu_product", "eta", "mu", "ax")
            found[key] = found.get(key, True) and fits
    return {key for key, fits in found.items() if fits}


def _is_elementwise(value: Any, flat: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == flat.shape


def _as_type(data: torch.Tensor, dtype: str) -> torch.Tensor:
    return data.view(getattr(torch, dtype))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.detach().double().reshape(-1).tolist())
    return value if isinstance(value, int | float | bool | str | type(None)) else repr(value)


def global_norm(slices: list[torch.nn.Parameter]) -> float:
    """The 2-norm of the whole gradient, of which each worker has a part."""
    squares = sum(float(s.grad.double().pow(2).sum()) for s in slices if s.grad is not None)
    return math.sqrt(float(running.allreduce(np.array([squares]))[0]))
