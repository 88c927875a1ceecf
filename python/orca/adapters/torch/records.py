"""What training leaves on the disk: checkpoints and TensorBoard's event files, written by rank 0."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import pickle
import pickletools
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from orca import running
from orca._native import _core
from orca.adapters.torch.names import plain_state
from orca.adapters.torch.shared_state import SharedState
from orca.adapters.torch.trees import type_name, unpack
from orca.data.arrays import SharedBlock
from orca.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OrcaError,
    UnavailableError,
)
from orca.files import check_archive, is_own, write_whole
from orca.generations import Generation
from orca.objects import broadcast_object

_log = logging.getLogger("orca")
_KEEP = 5  # Checkpoints of one training.


@dataclass(frozen=True)
class CheckpointPlace:
    """Where the checkpoints of one ``fit`` are.

    Attributes:
        folder: ``<model_dir>/models/<time>``.
        fit: Tells them from those of another ``fit`` in the same second.
    """

    folder: str
    fit: str

    @classmethod
    def below(cls, model_dir: str) -> CheckpointPlace:
        """A new one, in the driver."""
        folder = Path(model_dir) / "models" / time.strftime("%Y-%m-%d_%H-%M-%S")
        return cls(str(folder), uuid.uuid4().hex)

    def newest(self) -> dict[str, Any] | None:
        """The state of the last one from which this ``fit`` can go on as if nothing had happened."""
        store = _core.CheckpointStore(self.folder)
        for iteration in reversed(store.list()):
            try:
                checkpoint = store.open(iteration)
            except OrcaError as error:
                _log.warning("checkpoint %d is passed over: %s", iteration, error)
                continue
            if json.loads(checkpoint.fields).get("fit") == self.fit:
                return _read(checkpoint)
        return None


class Checkpoints:
    """Writes ``<folder>/models/<time>/model.<iteration>`` beside training, when a trigger fires.

    Args:
        place: Where they go.
        trigger: An engine's trigger.
    """

    def __init__(self, place: CheckpointPlace, trigger: Any) -> None:
        self._trigger = trigger
        self._fit = place.fit
        self._last = -1
        self._is_due = False
        self._writer: Any = None
        self._submitted = 0
        self._copies: list[SharedBlock] = []
        if running.rank() == 0:
            where = Path(place.folder)
            where.mkdir(parents=True, exist_ok=True)
            self._writer = _core.AsyncWriter(str(where), _KEEP)

    def prime(self, session: Any) -> None:
        """Tells the trigger where training is when it goes on: the next epoch is not its first."""
        self._trigger.fires(session.epoch + 1, session.global_step, session.last_loss)

    def demand(self) -> None:
        """A checkpoint after the next step, or after its epoch if that has no other; on all workers."""
        self._is_due = True

    def after_step(
        self,
        session: Any,
        loss: float,
        progress: Callable[[], dict[str, Any]],
        *,
        epoch_ended: bool,
        is_last: bool = False,
        is_exact: bool = True,
    ) -> bool:
        """Asks the trigger, on all workers alike; says whether a checkpoint is written.

        Args:
            session: What is trained.
            loss: Of the step.
            progress: Says how far the ``fit`` is; called on all workers.
            epoch_ended: Whether its epoch is done, with its validation and the schedulers' steps.
            is_last: Whether the epoch has no other step. It is written when the epoch has ended: who
                goes on from there does not train the epoch again.
            is_exact: Whether who goes on from there trains on every row as often as if he had never stopped.
        """
        epoch = session.epoch + 1 + epoch_ended
        fires = self._trigger.fires(epoch, session.global_step, loss) or self._is_due
        self._is_due = bool(fires) and is_last
        if not fires or is_last or self._last == session.global_step:
            return False
        self._last = session.global_step
        state = session.state(epoch=session.epoch + epoch_ended) | {"progress": progress()}
        copies = self._copy(session.sync)
        if self._writer is not None:
            parts, fields = to_parts(unpack(state, copies))
            self._submitted += 1
            place = (session.global_step, int(state["epoch"]), 0)
            whose = {"fit": self._fit} if is_exact else {}
            self._writer.submit(place, parts, json.dumps(fields | whose))
        return True

    def _copy(self, sync: Any) -> dict[int, SharedBlock]:
        """Copies of shared memory by its addresses, unless the last ones are still being written: then rank 0 makes its own."""
        if not isinstance(sync, SharedState):
            return {}
        writer = self._writer
        is_idle = writer is None or writer.saved + writer.replaced == self._submitted
        if not broadcast_object(is_idle):
            return {}
        self._copies = sync.copies(self._copies)
        places = [block.address for block in sync.regions()]
        return dict(zip(places, self._copies, strict=True))

    def close(self) -> None:
        """Returns when all is on the disk, or cannot be."""
        if self._writer is not None:
            try:
                self._writer.flush(600.0)
            except OrcaError as error:
                _log.warning("the last checkpoint was not written: %s", error)


def to_parts(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """State dicts as named tensors, and the rest as what JSON can hold."""
    tensors: dict[str, Any] = {}

    def leaf(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            name = str(len(tensors))
            whole = value.detach().contiguous()
            tensors[name] = (type_name(whole), list(whole.shape), _bytes(whole))
            return {"tensor": name}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(float(value))}  # JSON has no such numbers.
        if isinstance(value, str | int | float | bool | type(None)):
            return {"value": value}
        raise InvalidArgumentError(
            f"a {type(value).__name__} in the state cannot go into a checkpoint; keep numbers, texts "
            "and tensors in state dicts"
        )

    tree = _keyed(state, leaf)
    return {"state": tensors}, {"tree": tree}


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _keyed(tree: Any, leaf: Any) -> Any:
    """Dicts as lists of pairs: keys of JSON are texts only."""
    if isinstance(tree, dict):
        return {"dict": [[_keyed(k, leaf), _keyed(v, leaf)] for k, v in tree.items()]}
    if isinstance(tree, list | tuple):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [_keyed(item, leaf) for item in tree]}
    return leaf(tree)


def _unkeyed(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    ((kind, value),) = tree.items()
    if kind == "dict":
        return {_unkeyed(k, tensors): _unkeyed(v, tensors) for k, v in value}
    if kind in ("list", "tuple"):
        items = [_unkeyed(item, tensors) for item in value]
        return tuple(items) if kind == "tuple" else items
    if kind == "float":
        return float(value)
    return tensors[value] if kind == "tensor" else value


def load_checkpoint(path: str, version: int | None, *, trust: bool, generation: Generation) -> Any:
    """The state of the newest whole checkpoint below ``path``, or of a number.

    A folder of a ``ModelCheckpoint``, and the ``state.pkl`` of a ``model_dir``, are checkpoints, too.
    """
    root = Path(path)
    if root.is_file():
        return load_file(root, trust=trust, generation=generation)
    if (root / "manifest.json").exists():
        return _read(_core.Checkpoint.open(str(root)))
    folders = sorted({f.parent for f in root.rglob("model.*") if f.is_dir()}, reverse=True)
    for folder in folders:
        store = _core.CheckpointStore(str(folder))
        if version is not None:
            if version in store.list():
                return _read(store.open(version))
        elif (found := store.latest()) is not None:
            return _read(found)
    if version is None and (file := _newest_file(root)) is not None:
        return load_file(file, trust=trust, generation=generation)
    for file in sorted(root.rglob("model.*")):
        if file.is_file() and file.suffix[1:].isdecimal():
            raise FailedPreconditionError(_of_the_engine(file))
    raise FailedPreconditionError(
        f"Cannot find PyTorch checkpoint, please check your checkpoint path. ({path} has no "
        f"{'model.<iteration>' if version is None else f'model.{version}'} that is whole)"
    )


def _newest_file(folder: Path) -> Path | None:
    """What a ``ModelCheckpoint`` or the spark backend left in a folder."""
    last = folder / "last.ckpt"
    if last.is_file():
        return last
    written = sorted(folder.glob("*.ckpt"), key=lambda file: file.stat().st_mtime_ns)
    state = folder / "state.pkl"
    return written[-1] if written else state if state.is_file() else None


def _of_the_engine(file: Path) -> str:
    return (
        f"{file} was written by BigDL's engine on the JVM, whose objects cannot be read without it; "
        "load it with the release that wrote it, run torch.save(estimator.get_model().state_dict(), "
        "path) there, and load that file"
    )


def _read(checkpoint: Any) -> dict[str, Any]:
    tensors = {}
    for name, (dtype, shape, data) in checkpoint.tensors("state").items():
        kind = getattr(torch, dtype)
        raw = bytearray(memoryview(data))
        flat = torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)
        tensors[name] = flat.reshape(shape)
    state: dict[str, Any] = _unkeyed(json.loads(checkpoint.fields)["tree"], tensors)
    return state


def write_file(path: Path, value: Any, *, is_private: bool = True, **options: Any) -> None:
    """Writes with ``torch.save``, completely or not at all; see ``write_whole``."""
    write_whole(path, lambda file: torch.save(value, file, **options), is_private=is_private)


def write_last_state(path: Path, state: Any) -> None:
    """Writes what a training has made."""
    write_or_log(
        path,
        state,
        "the state after the training was not written to %s: %s; the estimator has it: make room, and call save(path)",
    )


def write_or_log(path: Path, value: Any, text: str, *, is_private: bool = True) -> None:
    """As ``write_file``; a disk that is full costs an error in the log, and not the training.

    Args:
        path: The file.
        value: What ``torch.save`` takes.
        text: What to say, with places for the path and the reason.
        is_private: Whether other users cannot read it.
    """
    try:
        write_file(path, value, is_private=is_private)
    except (OSError, RuntimeError) as error:  # torch has words of its own for a full disk.
        cause = error.__context__
        why = cause if isinstance(cause, OSError) and not isinstance(error, OSError) else error
        _log.error(text, path, why)


def load_file(path: Path, *, trust: bool, generation: Generation) -> Any:
    """What ``torch.save`` or ``pickle.dump`` wrote. What is not tensors alone runs code, and must be trusted."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_OLD_TORCH))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FailedPreconditionError(
            f"Cannot load the PyTorch model. Please check your model path. ({error})"
        ) from error
    if is_java(path):
        raise FailedPreconditionError(_of_the_engine(path))
    # The spark backend of BigDL wrote its state.pkl with pickle alone.
    is_plain = head.startswith(b"\x80") and head != _OLD_TORCH
    why: OrcaError | None = None
    if is_plain:
        if trust:
            return _unpickle(path)
        _check_pickles(path)
    else:
        try:
            return read_file(path, weights_only=not trust)
        except InvalidArgumentError as error:
            why = error
    # What is loaded is what was looked at, even if another file has this name by then.
    with path.open("rb") as file:
        if not (generation.trusts_pickles and is_own(file)):
            raise InvalidArgumentError(
                f"{path} is not tensors alone: loading it runs code of whoever wrote it; give "
                "load(..., trust=True) if you trust that"
            ) from why
        warnings.warn(f"{path} is a pickle of this user's; loading it runs its code", stacklevel=2)
        with _reading(path):
            return _OnCpu(file).load() if is_plain else torch.load(file, "cpu", weights_only=False)


def read_file(
    path: Path, opened: BinaryIO | None = None, *, weights_only: bool = True, **options: Any
) -> Any:
    """What ``torch.save`` wrote, on the CPU.

    Args:
        path: The file.
        opened: The same, if its owner was looked at.
        weights_only: Whether to run no code of it.
        options: Of ``torch.load``.

    Raises:
        UnavailableError: The file is damaged: a checksum differs, or it cannot be read.
        InvalidArgumentError: It is whole, and holds more than tensors.
    """
    with path.open("rb") as file:
        is_old = file.read(len(_OLD_TORCH)) == _OLD_TORCH  # Those have no checksums.
    if not is_old:
        check_archive(path)
    with _reading(path):
        try:
            source = path if opened is None else opened
            return torch.load(source, "cpu", weights_only=weights_only, **options)
        except pickle.UnpicklingError as error:
            if not weights_only:
                raise
            if is_old:
                _check_pickles(path)
            raise InvalidArgumentError(
                f"{path} is not tensors alone; loading it would run code of whoever wrote it"
            ) from error


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Names the file in the errors of bytes that mean nothing."""
    try:
        yield
    except (OSError, MemoryError, OrcaError, ImportError, AttributeError):
        raise  # The last two are of a class that is not here.
    except Exception as error:
        why = (str(error).splitlines() or [""])[0]
        raise UnavailableError(
            f"{path} is damaged, or not a file of torch.save: {type(error).__name__}: {why}; use "
            "another copy of it, or write it again"
        ) from error


def _check_pickles(path: Path) -> None:
    """Compares the structure of the pickles that a file begins with; runs nothing of them."""
    with _reading(path), path.open("rb") as file:
        is_old = file.read(len(_OLD_TORCH)) == _OLD_TORCH
        # Behind that number: a version, the machine, the value, the names of its storages.
        file.seek(len(_OLD_TORCH) if is_old else 0)
        for _ in range(4 if is_old else 1):
            for _ in pickletools.genops(file):
                pass


def is_java(path: Path) -> bool:
    """Whether a file is a stream of Java objects."""
    with path.open("rb") as file:
        return file.read(2) == b"\xac\xed"


_OLD_TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)  # how files of torch before 1.6 begin


class _OnCpu(pickle.Unpickler):
    """Reads tensors that were pickled on another device."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda data: torch.load(io.BytesIO(data), "cpu", weights_only=False)
        return super().find_class(module, name)


def _unpickle(path: Path) -> Any:
    with _reading(path), path.open("rb") as file:
        return _OnCpu(file).load()


def warn_of_optimizer(path: Path) -> None:
    """Analytics Zoo's bigdl backend wrote the optimizer of its engine beside the weights."""
    beside = path.with_name(f"{path.stem}_optim{path.suffix}")
    if beside.is_file() and is_java(beside):
        _log.warning(
            "%s is not read: it is an optimizer of BigDL's engine on the JVM; the Estimator's own "
            "optimizer begins anew",
            beside,
        )


def check_fits(model: torch.nn.Module, state: dict[str, Any]) -> None:
    """Names the first tensor that a model and a state dict do not share."""
    own = plain_state(model)
    cure = "load it into the model that it was saved from"
    extra = next((name for name in state if name not in own), None)
    for name, tensor in own.items():
        if name not in state:
            there = "nothing else" if extra is None else f"{extra!r} {_size(state[extra])}"
            raise InvalidArgumentError(
                f"this is the state of another model: {name!r} {_size(tensor)} is here and not there, "
                f"{there} is there and not here; {cure}"
            )
        if (
            _has_size(tensor)
            and _has_size(state[name])
            and tuple(state[name].shape) != tuple(tensor.shape)
        ):
            raise InvalidArgumentError(
                f"this is the state of another model: {name!r} is {_size(state[name])} there and "
                f"{_size(tensor)} here; {cure}"
            )
    if extra is not None:
        raise InvalidArgumentError(
            f"this is the state of another model: {extra!r} {_size(state[extra])} is there and not "
            f"here; {cure}"
        )


def _has_size(value: Any) -> bool:
    """Not what a module keeps beside its tensors, nor what a lazy one has not made yet."""
    return not torch.nn.parameter.is_lazy(value) and hasattr(value, "shape")


def _size(value: Any) -> str:
    return str(tuple(value.shape)) if _has_size(value) else type(value).__name__


class Summary:
    """Event files of one training in ``<folder>/train`` and ``<folder>/validation``."""

    def __init__(self, folder: str | None, tags: dict[str, str]) -> None:
        self._tags = tags
        is_on = folder is not None and running.rank() == 0
        self._train = _core.EventWriter(str(Path(folder or "") / "train")) if is_on else None
        self._validation = (
            _core.EventWriter(str(Path(folder or "") / "validation")) if is_on else None
        )
        self._since = time.perf_counter()

    def step(self, session: Any, loss: float | None, rows: int) -> None:
        """The loss if it is known, the learning rate and the rows a second of one step."""
        if self._train is None:
            return
        now = time.perf_counter()
        step = session.global_step
        if loss is not None:
            self._train.add_scalar("Loss", loss, step)
        self._train.add_scalar("LearningRate", session.optimizers[0].param_groups[0]["lr"], step)
        self._train.add_scalar("Throughput", rows / max(now - self._since, 1e-9), step)
        self._since = now

    def validation(self, session: Any, found: dict[str, Any]) -> None:
        """The metrics of one validation."""
        if self._validation is None:
            return
        for name, value in found.items():
            if name != "num_samples" and is_number(value):
                tag = self._tags.get(name, name)
                self._validation.add_scalar(tag, float(value), session.global_step)

    def close(self) -> None:
        """Returns when all is on the disk."""
        for writer in (self._train, self._validation):
            if writer is not None:
                writer.sync()


def is_number(value: Any) -> bool:
    """Whether it is one, or a tensor of one."""
    return isinstance(value, int | float) or (
        isinstance(value, torch.Tensor) and value.numel() == 1
    )
