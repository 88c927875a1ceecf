"""Epochs of trials, as a worker makes them: each on one worker, with its model, its optimizers and their state to itself."""

from __future__ import annotations

import copy
import io
import itertools
import math
import os
import pickle
import socket
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from orca import running
from orca._native import _core
from orca.adapters.torch.arguments import refuse_strangers, strangers
from orca.adapters.torch.devices import seed_cpu
from orca.adapters.torch.feeds import Feed, split_batch
from orca.adapters.torch.losses import Criterion
from orca.adapters.torch.names import load_plain_state, plain_state
from orca.adapters.torch.optimizers import load_optimizer_state
from orca.adapters.torch.records import check_fits
from orca.adapters.torch.suspects import Suspects
from orca.adapters.torch.trainer import STRIDE, NotFiniteError
from orca.adapters.torch.trees import SharedParts, map_leaves, pack, unpack
from orca.automl.metrics import first_not_finite
from orca.automl.reads import NotingDict
from orca.errors import InvalidArgumentError
from orca.phases import phase
from orca.pickles import dumps, loads
from orca.worker import failure_of

if TYPE_CHECKING:
    from orca.adapters.torch.tuning import TorchSpec

_SMALL = 64 << 10  # Bytes that travel with the answer; more lies in shared memory.
_KEPT = 4  # Trials that a worker goes on with as they are.
_STORABLE = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool)
_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


@dataclass(frozen=True)
class Order:
    """What a worker is told of an epoch.

    Attributes:
        search: The pickled ``TorchSpec`` and metric, which all trials of the search have in common; see ``shared``.
        name: The trial's.
        ended: Trials that nobody goes on with.
        epochs: How many it has made: who has made others does not know it.
        config: Its values.
        seed: Of its random numbers.
        batch_size: Of rows that are cut into batches.
        source: Of the rows to train on; None where ``common`` has it.
        validation: Of those to measure on; None: the mean loss of training is what is measured.
        state: To go on from; None: from what the worker has, or from the beginning.
        common: Source and validation, packed, where all trials of the search have the same: a worker unpacks them once.
        is_local: Whether the driver is on the worker's machine, and finds what lies in shared memory there.
    """

    search: Any
    name: int
    ended: tuple[int, ...]
    epochs: int
    config: dict[str, Any]
    seed: int
    batch_size: int
    source: Any
    validation: Any
    state: State | None
    common: bytes = b""
    is_local: bool = True


@dataclass(frozen=True)
class State:
    """All that a trial goes on with.

    Attributes:
        weights: The model's state dict as ``torch.save`` writes it.
        rest: What else there is, packed; None: the weights are another trial's, and it begins with them.
    """

    weights: Any
    rest: Any


@dataclass(frozen=True)
class Made:
    """An epoch that a worker has made.

    Attributes:
        value: What it measured; NaN also when what was learned is not finite.
        state: What the trial goes on with.
        seconds: How long it took.
        read: Keys of the configuration that the trial's functions have read so far.
    """

    value: float
    state: State
    seconds: float
    read: tuple[str, ...]


@dataclass(frozen=True)
class Failed:
    """An epoch that a worker could not make.

    Attributes:
        failure: What a ``WorkerFailedError`` is made of.
    """

    failure: dict[str, Any]


_trials: OrderedDict[int, _Trial] = OrderedDict()
# Of the last epoch, with the bytes that they were unpacked from: the next trial has the same, and finds them mapped.
_sources: list[Any] = []


def make(order: Order) -> Made | None:
    """Makes one; None: this worker does not know the trial."""
    begin = time.monotonic()
    for name in order.ended:
        _trials.pop(name, None)
    trial = _trials.pop(order.name, None)  # Until it is whole again.
    if trial is None or trial.epochs != order.epochs:
        trial = None
        if order.state is None and order.epochs > 0:
            return None
        trial = _Trial(order)
        if order.state is not None:
            trial.load(order.state)
    value = trial.epoch(order, *_sources_of(order))
    while len(_trials) >= _KEPT:
        _trials.popitem(last=False)
    _trials[order.name] = trial
    return Made(value, trial.state(order.is_local), time.monotonic() - begin, tuple(trial.read))


def make_all(orders: list[Order]) -> list[Made | Failed]:
    """Makes whole trials of one epoch, one after the other: nobody goes on with them."""
    made: list[Made | Failed] = []
    directory = os.getcwd()  # noqa: PTH109 - a Path takes longer.
    for order in orders:
        try:
            made.append(_made_once(order))
        except Exception as error:
            name, message, text, parts = failure_of(error, __file__)
            who = f"rank 0 ({socket.gethostname()}, process {os.getpid()})"
            failure = {"text": f"{who} raised {name}: {message}", "rank": 0, "type": name}
            made.append(Failed(failure | {"traceback": text, "parts": parts}))
        os.chdir(directory)  # As each would find it alone.
    return made


def _made_once(order: Order) -> Made:
    begin = time.monotonic()
    trial = _Trial(order)
    value = trial.epoch(order, *_sources_of(order))
    weights = State(trial.weights(order.is_local), None)
    return Made(value, weights, time.monotonic() - begin, tuple(trial.read))


def _sources_of(order: Order) -> tuple[Any, Any]:
    """Of the rows to train on and to measure on."""
    if not order.common:
        _sources[:] = [order.source, order.validation]
    elif _sources[2:] != [order.common]:
        _sources[:] = [*loads([order.common], running.shard_home()), order.common]
    return _sources[0], _sources[1]


def forget() -> None:
    """Frees what this worker keeps of trials."""
    _trials.clear()
    _sources.clear()


def saved(state: dict[str, Any]) -> bytes:
    """A state dict as ``torch.save`` writes it; where it is plain tensors the engine does, which is quicker."""
    if all(map(_is_storable, state.values())):
        begins = {value.data_ptr() for value in state.values()}
        if len(begins) == len(state):  # What shares its memory stays so.
            found: bytes = _core.torch_file(
                {name: value.detach().contiguous().numpy() for name, value in state.items()}
            )
            return found
    file = io.BytesIO()
    torch.save(map_leaves(state, _to_cpu), file)
    return file.getvalue()


def _to_cpu(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf


def _is_storable(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.dtype in _STORABLE
        and value.numel() > 0
    )


def loaded(weights: Any) -> dict[str, Any]:
    """The state dict of ``State.weights``."""
    found: dict[str, Any] = torch.load(io.BytesIO(content(weights)), weights_only=True)
    return found


def shared(data: bytes) -> Any:
    """Bytes for other processes of this machine: where they are many, in shared memory."""
    return SharedParts([data]) if len(data) > _SMALL else data


def content(data: Any) -> Any:
    """The bytes of ``State.weights`` and of what ``shared`` gave, wherever they lie."""
    return data.parts()[0] if isinstance(data, SharedParts) else data


def packed(rest: dict[str, Any], *, is_local: bool = True) -> Any:
    """State of optimizers and the like, for ``State.rest``."""
    parts, _ = dumps(pack(rest))
    if is_local and sum(memoryview(part).nbytes for part in parts) > _SMALL:
        return SharedParts(parts)
    return [parts[0], *map(bytearray, parts[1:])]  # Arrays can be written to.


def unpacked(rest: Any) -> dict[str, Any]:
    """What ``packed`` got."""
    found: dict[str, Any] = unpack(loads(rest.parts() if isinstance(rest, SharedParts) else rest))
    return found


class _Trial:
    """A model under way."""

    def __init__(self, order: Order) -> None:
        spec: TorchSpec
        spec, self._metric = pickle.loads(content(order.search))  # Its own: some have a state.
        self._seed = order.seed
        self.epochs = self._steps = 0
        seed_cpu(order.seed)
        config = NotingDict(order.config)
        self.read = config.read
        with phase("model_creator"):
            self._model = spec.new_model(config)
        made = spec.new_optimizer(self._model, config)
        self._optimizers = list(made) if isinstance(made, list | tuple) else [made]
        if not self._optimizers:
            raise InvalidArgumentError(
                "the optimizer creator returned none; return a torch.optim.Optimizer"
            )
        for optimizer in self._optimizers:
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise InvalidArgumentError(
                    f"the optimizer creator returned a {type(optimizer).__name__}; return a "
                    "torch.optim.Optimizer"
                )
        self._is_fused = False
        # A creator may have left some.
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        self._has_gradients = any(p.grad is not None for group in groups for p in group["params"])
        loss = spec.new_loss(config)
        if not callable(loss):
            raise InvalidArgumentError(
                f"the loss creator returned a {type(loss).__name__}; return a loss of torch, or a function of output and target"
            )
        trained = {
            f"parameter {i}": p for i, p in enumerate(p for g in groups for p in g["params"])
        }
        refuse_strangers(strangers(trained, (self._model, loss), are_used=False), self._optimizers)
        self._criterion = Criterion(loss)
        self._suspects = Suspects()
        self._suspects.ignored = getattr(self._criterion.loss, "ignore_index", -100)

    def load(self, state: State) -> None:
        """Goes on from it."""
        found = loaded(state.weights)
        if state.rest is None:
            check_fits(self._model, found)
        load_plain_state(self._model, found)
        if state.rest is None:
            return
        rest = unpacked(state.rest)
        for optimizer, own in zip(self._optimizers, rest["optimizers"], strict=True):
            load_optimizer_state(optimizer, own, set())
        self.epochs, self._steps = rest["epoch"], rest["global_step"]

    def state(self, is_local: bool) -> State:
        """What it goes on with, here or elsewhere."""
        rest = {
            "epoch": self.epochs,
            "global_step": self._steps,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        return State(self.weights(is_local), packed(rest, is_local=is_local))

    def weights(self, is_local: bool) -> Any:
        """What ``State`` has of the model."""
        found = saved(plain_state(self._model))
        return shared(found) if is_local else found

    def epoch(self, order: Order, source: Any, validation: Any) -> float:
        """Trains once on all rows, and measures."""
        seed_cpu(order.seed + 1 + self.epochs)
        try:
            value = self._train(source.open(order.batch_size, {}, True))
            self.epochs += 1
            if validation is not None:
                value = self._measure(validation.open(order.batch_size, {}, False))
            for each in (source, validation):  # Data creators.
                self.read.update(getattr(getattr(each, "loader", None), "read", ()))
        finally:  # They know the data.
            self._suspects.accuse(None, 0, None)
            self._suspects.output = None
        # The last step may have ruined what no loss has seen since. What is not learned, such as a mask, may be infinite.
        learned = [p.detach() for p in self._model.parameters() if p.requires_grad]
        return value if _are_finite(learned) else math.nan

    def _train(self, feed: Feed) -> float:
        """The mean loss of the rows."""
        self._model.train()
        total, rows_done = 0.0, 0
        stream = feed.epoch(self.epochs, self._seed)
        suspects = self._suspects
        for index in itertools.count():
            self._draw_from(0)  # For rows that are changed at random.
            with suspects.fetching(feed, index):
                batch, rows = next(stream, (None, -1))
            if rows < 0:
                break
            suspects.batch = batch
            self._draw_from(1)
            loss = None
            if rows > 0:
                with suspects:
                    loss = self._step(batch, rows)
            self._steps += 1
            if loss is not None:
                running.report(self._steps, loss=loss)
                total += loss * rows
                rows_done += rows
        return total / rows_done if rows_done else math.nan

    def _draw_from(self, part: int) -> None:
        """Random numbers of a part of a step are the same whenever and wherever it is made."""
        number = 2 * self._steps + part
        torch.default_generator.manual_seed((self._seed + number * STRIDE) % (1 << 63))

    def _step(self, batch: Any, rows: int) -> float | None:
        """The loss; None when nothing in the batch counts: all of its labels are ignored, say."""
        weight: Any = 0.0

        def loss_of_batch() -> torch.Tensor:
            nonlocal weight
            if self._has_gradients:
                for optimizer in self._optimizers:
                    optimizer.zero_grad()
            self._has_gradients = True
            loss, weight = self._forward(batch, rows)
            loss.backward()
            return loss

        found = loss_of_batch().item()
        if not float(weight):
            return None
        if not math.isfinite(found):
            raise NotFiniteError(self._fault(found))
        if not self._is_fused:
            self._is_fused = True
            for optimizer in self._optimizers:
                _fuse(optimizer)
        for optimizer in self._optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):  # It looks at the loss several times.
                optimizer.step(loss_of_batch)
            else:
                optimizer.step()
        return float(found)

    def _forward(self, batch: Any, rows: int) -> tuple[torch.Tensor, Any]:
        """The loss, and what it weighs."""
        features, target = split_batch(batch)
        output = self._suspects.output = self._model(*features)
        return self._criterion(output, target, rows)

    def _fault(self, loss: float) -> str:
        rows = self._suspects.not_finite()
        cure = (
            f"its data have {rows}; correct or leave out these rows"
            if rows
            else f"it was at {self._suspects.where()}; lower the learning rate, clip gradients, look at these rows"
        )
        return f"step {self._steps}: the loss is not finite ({loss}); {cure}"

    def _measure(self, feed: Feed) -> float:
        self._model.eval()
        sides: tuple[list[Any], list[Any]] = ([], [])
        total = divisor = 0.0
        watched = self._suspects.watched(feed, feed.epoch(0, 0))
        with torch.no_grad(), self._suspects:
            for _, batch, rows in watched:
                if self._metric is None:
                    loss, weight = self._forward(batch, rows)
                    if weight := float(weight):
                        total += float(loss) * (1.0 if self._criterion.is_sum else weight)
                        divisor += weight
                else:
                    features, target = split_batch(batch)
                    output = self._suspects.output = self._model(*features)
                    for side, part in zip(sides, (target, output), strict=True):
                        side.append(_array(part))
        if self._metric is None:
            return total if self._criterion.is_sum else total / divisor if divisor else math.nan
        truth, found = (np.concatenate(side) for side in sides)
        if (row := first_not_finite(found)) is not None:
            raise NotFiniteError(
                f"the model's output of row {row} is not finite: {found[row]}; lower the learning rate or clip gradients"
            )
        # A copy: one that counts its calls begins anew wherever the trial is.
        return float(np.mean(copy.deepcopy(self._metric)(truth, found)))


def _are_finite(parameters: list[torch.Tensor]) -> bool:
    """Whether all are. A sum is quickly made, and finite only then; it may overflow, which says nothing."""
    total = sum(parameter.sum().item() for parameter in parameters)
    if math.isfinite(abs(total)):
        return True
    return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)


def _array(value: Any) -> Any:
    """A copy: targets are part of their batch's memory, which would stay for all of them."""
    return np.array(value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value)


def _fuse(optimizer: torch.optim.Optimizer) -> None:
    """Has torch make steps in one pass over the memory, where it can and the user has not chosen; there are gradients.

    What is decided in the first step is part of the optimizer's state: the bits are the same wherever it goes on.
    """
    for group in optimizer.param_groups if type(optimizer) in _FUSED else ():
        if group.get("fused") is not None or group.get("foreach") is not None:
            continue
        learned = [p for p in group["params"] if p.requires_grad]
        group["fused"] = (
            not group.get("differentiable")
            and not any(isinstance(value, torch.Tensor) for value in group.values())
            and all(_is_plain(p) and _is_plain(p.grad) for p in learned)
            # A momentum that some have and others have not is more than it can do.
            and len({optimizer.state.get(p, {}).get("momentum_buffer") is None for p in learned})
            <= 1
        )


def _is_plain(part: torch.Tensor | None) -> bool:
    """Whether the elements lie one behind the other: a fused step looks at nothing else."""
    return (
        part is not None
        and part.device.type == "cpu"
        and part.dtype in (torch.float32, torch.float64)
        and part.layout is torch.strided
        and part.is_contiguous()
    )
