"""What the arguments of an Estimator mean, and which of them cannot work."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from orca.adapters.torch.feeds import LoaderSource
from orca.errors import InvalidArgumentError
from orca.generations import Generation
from orca.learn.pytorch.callbacks import Callback
from orca.pickles import dumps

_log = logging.getLogger("orca")


@dataclass(frozen=True)
class Rules:
    """What the name of a backend meant.

    Attributes:
        one_worker_a_core: Else as many as ``workers_per_node`` says.
        batch_is_a_workers: Whether ``batch_size`` counts the rows of one worker.
        epochs_are_absolute: Whether ``fit(epochs=n)`` trains until epoch n, else n more.
        returns_self: Whether ``fit`` returns the Estimator, else statistics.
        engine_names: Whether metrics are called as the engine of BigDL called them.
        as_float32: Whether columns, and features of XShards that are integers, reach the model as float32.
    """

    one_worker_a_core: bool = False
    batch_is_a_workers: bool = False
    epochs_are_absolute: bool = False
    returns_self: bool = False
    engine_names: bool = False
    as_float32: bool = False

    @staticmethod
    def of(backend: str, generation: Generation) -> Rules:
        """Those of a backend, in one generation."""
        if backend != "bigdl":
            return Rules(batch_is_a_workers=generation.batch_size_is_per_worker)
        return Rules(
            one_worker_a_core=True,
            epochs_are_absolute=True,
            returns_self=True,
            engine_names=True,
            as_float32=True,
        )


def name_unsendable(arguments: tuple[Any, ...]) -> None:
    """Raises again what cannot be sent, by the names that the user knows."""
    for options in arguments:
        if dataclasses.is_dataclass(options):
            given = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
            if isinstance(given.get("source"), LoaderSource):
                given = {"data": given["source"].loader} | given
            dumps(tuple(given.values()), tuple(given))


def mounted(folder: str | None) -> str | None:
    """Where Databricks mounts its file system."""
    if folder is None or not folder.startswith("dbfs:/"):
        return folder
    return f"/dbfs/{folder.removeprefix('dbfs:/')}"


def is_creator(data: Any) -> bool:
    """Whether data is made by calling it."""
    return callable(data) and not isinstance(data, DataLoader)


def check_positive(name: str, value: Any) -> None:
    """Refuses what is no positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgumentError(f"{name} should be a positive integer, but got {value!r}")


def read_callbacks(given: Any) -> tuple[Any, ...]:
    """The callbacks of a call, each of which has a hook of ``Callback``."""
    if given is None:
        return ()
    remedy = "give a list of callbacks, as in callbacks=[TqdmCallback()]"
    if isinstance(given, str | Callback) or not isinstance(given, Iterable):
        raise InvalidArgumentError(f"callbacks must be a list, got {given!r}; {remedy}")
    callbacks = tuple(given)
    for callback in callbacks:
        if isinstance(callback, type) or not any(hasattr(callback, hook) for hook in _HOOKS):
            raise InvalidArgumentError(f"{callback!r} is not a callback; {remedy}")
    return callbacks


_HOOKS = [name for name in vars(Callback) if name.startswith(("on_", "before_", "after_", "set_"))]


def warn_of_batch_size(data: Any, batch_size: int | None) -> None:
    """A DataLoader has a batch size of its own."""
    if not isinstance(data, DataLoader) or batch_size is None or data.batch_size == batch_size:
        return
    own = "of its own" if data.batch_size is None else f"of {data.batch_size} rows"
    _log.warning(
        "batch_size=%s has no effect on a DataLoader, which gives batches %s", batch_size, own
    )


def strangers(
    trained: Mapping[str, torch.Tensor], owners: Iterable[Any], *, are_used: bool
) -> list[str]:
    """What the optimizers update, and neither the models nor the loss have.

    Args:
        trained: What the optimizers update, by name.
        owners: Models and losses; those that are no modules have no parameters.
        are_used: Whether there was a backward pass, so that what has a gradient is known to be used. Else
            these are strangers only if there is nothing but strangers.
    """
    modules = [owner for owner in owners if isinstance(owner, nn.Module)]
    known = {id(p) for module in modules for p in module.parameters()}
    found = {name: p for name, p in trained.items() if id(p) not in known}
    if not are_used and len(found) < len(trained):
        return []
    return [
        f"{name} of shape {tuple(p.shape)}"
        for name, p in found.items()
        if not are_used or p.grad is None
    ]


def refuse_strangers(found: Sequence[str], optimizers: Iterable[Any]) -> None:
    """Names what ``strangers`` found, if there is anything."""
    if not found:
        return
    kinds = " and ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in optimizers))
    raise InvalidArgumentError(
        f"{kinds} updates {len(found)} tensors that the model does not have, and the loss does not use: "
        f"{', '.join(found[:4])}{', ...' if len(found) > 4 else ''}; make it with the parameters of "
        "the model that from_torch gets, after all layers are in their places, or give a creator "
        "f(model, config)"
    )
