"""What callbacks see of training, and who calls them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from orca import running
from orca.adapters.torch.feeds import split_batch
from orca.adapters.torch.records import write_or_log
from orca.adapters.torch.session import Session
from orca.adapters.torch.suspects import Suspects
from orca.adapters.torch.trees import unpack
from orca.errors import InvalidArgumentError
from orca.learn.pytorch.callbacks import Callback, MainCallback
from orca.learn.pytorch.utils import process_stats
from orca.objects import allgather_object


class Runner:
    """The state of training, as callbacks read and change it.

    Attributes:
        step_loss: Of the last step, over the rows of all workers.
        epoch_stats: Of the last epoch, over the rows of all workers.
        stop: When some worker's is set, training ends after the step, on all workers.
    """

    def __init__(self, session: Session, callbacks: list[Any], parameters: dict[str, Any]) -> None:
        self._session = session
        self._callbacks = _ordered(callbacks)
        self._pocket: dict[str, Any] = {}
        self._parameters = parameters
        self.main: Any = next((c for c in self._callbacks if isinstance(c, MainCallback)), None)
        self.num_epochs = parameters.get("epochs", 1)
        self.first_epoch = 0  # How many had been done before this call.
        self.batch: Any = None
        self.rows = 0
        self.weight = 0.0
        self.batch_idx = 0
        self.output: Any = None
        self.target: Any = None
        self.loss: Any = None
        self.stop = False
        self.step_loss = math.nan
        self.epoch_stats: Any = None
        self.is_resumed = False  # Whether this training goes on after a death.
        self.metrics_stats: Any = None
        self.eval_seconds: list[float] = []  # Of the forward passes of an evaluation.
        self.train_loader: Any = None
        self.val_loader: Any = None
        self.suspects = Suspects()
        if session.criterion is not None:
            self.suspects.ignored = getattr(session.criterion.loss, "ignore_index", -100)

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @property
    def epoch_of_call(self) -> int:
        """The number of this epoch among those of the call, from 1 on."""
        return self._session.epoch - self.first_epoch + 1

    @property
    def epochs_of_call(self) -> int | None:
        """How many epochs the call makes; None when it makes as many as its steps need."""
        return None if self._parameters.get("max_steps") is not None else self.num_epochs

    # --- for callbacks

    @property
    def model(self) -> Any:
        """The model."""
        return self._session.model

    @property
    def optimizer(self) -> Any:
        """The first optimizer, or None."""
        return self._session.optimizers[0] if self._session.optimizers else None

    @property
    def scheduler(self) -> Any:
        """The first scheduler, or None."""
        return self._session.schedulers[0] if self._session.schedulers else None

    @property
    def criterion(self) -> Any:
        """The loss."""
        return None if self._session.criterion is None else self._session.criterion.loss

    @property
    def epochs(self) -> int:
        """How many epochs are done."""
        return self._session.epoch

    @property
    def global_step(self) -> int:
        """How many steps are done."""
        return self._session.global_step

    @property
    def rank(self) -> int:
        """This worker's number."""
        return running.rank()

    @property
    def config(self) -> dict[str, Any]:
        """The Estimator's config."""
        return self._session.spec.config

    def put(self, key: str, value: Any) -> None:
        """Keeps something for later; the key must be new."""
        if key in self._pocket:
            raise InvalidArgumentError(f"there is a {key!r} already; use update()")
        self._pocket[key] = value

    def update(self, key: str, value: Any) -> None:
        """Changes what is kept."""
        self.get(key)
        self._pocket[key] = value

    def get(self, key: str) -> Any:
        """What is kept."""
        if key not in self._pocket:
            raise InvalidArgumentError(
                f"nothing is kept as {key!r}; there is {sorted(self._pocket)}"
            )
        return self._pocket[key]

    def remove(self, key: str) -> None:
        """Forgets it."""
        self.get(key)
        del self._pocket[key]

    def save_checkpoint(self, path: str, save_weights_only: bool = False) -> None:
        """Writes the state, on rank 0. Where that fails, an error is logged and training continues."""
        state = self._session.state()
        if self.rank != 0:
            return
        tensors = unpack(state)
        if save_weights_only:
            tensors = {"epoch": tensors["epoch"], "models": tensors["models"]}
        write_or_log(
            Path(path),
            tensors,
            "the checkpoint was not written to %s: %s; training continues",
            is_private=False,
        )

    def remove_checkpoint(self, path: str) -> None:
        """Removes a file, on rank 0."""
        if self.rank == 0:
            Path(path).unlink(missing_ok=True)

    def forward(self) -> None:
        """Output, target and loss of the batch."""
        features, self.target = split_batch(self.batch)
        self.output = self.suspects.output = self.model(*features)
        if self._session.criterion is not None:
            self.loss, self.weight = self._session.criterion(self.output, self.target, self.rows)

    def forward_only(self) -> None:
        """The output of a batch of features."""
        features = self.batch if isinstance(self.batch, list | tuple) else [self.batch]
        self.output = self.model(*features)

    # --- for the loop

    def begin(self) -> None:
        """Before the first step."""
        for callback in self._callbacks:
            _maybe(callback, "set_model", self.model)
            _maybe(callback, "set_param", self._parameters)
            _maybe(callback, "set_trainer", self)
        self.call("before_run", "on_train_begin")

    def call(self, new: str, old: str = "", *arguments: Any) -> None:
        """One hook of both families on all callbacks."""
        for callback in self._callbacks:
            if old:
                _maybe(callback, old, *arguments)
            _maybe(callback, new, self)

    def epoch_ended(self, found: dict[str, Any], everybody: list[dict[str, Any]] | None) -> None:
        """After an epoch and its validation, on all workers.

        Args:
            found: This worker's statistics.
            everybody: Those of all workers, if they are known.
        """
        if not self._callbacks:
            return
        merged = joined(allgather_object(found) if everybody is None else everybody)
        self.epoch_stats = {name: merged[name] for name in (*found, *merged)}
        self.call("after_train_epoch", "on_epoch_end", self._session.epoch, self.epoch_stats)

    def must_stop(self) -> bool:
        """Whether some worker wants to; all of them ask."""
        if not self._callbacks:
            return False
        return bool(running.allreduce(np.array([int(self.stop)]), "max")[0])

    def drives_backward(self) -> bool:
        """Whether a callback makes the backward pass itself."""
        return self.main is not None and (
            type(self.main).on_iter_backward is not MainCallback.on_iter_backward
        )


def joined(stats: list[dict[str, Any]]) -> dict[str, Any]:
    """One dict of all workers': rows are summed, numbers are means over all rows."""
    known = [each for each in stats if each.get("num_samples")] or stats[:1]
    merged = process_stats(known)
    for name in ("epoch", "batch_count", "val_num_samples", "skipped_steps"):
        if name in stats[0]:
            merged[name] = stats[0][name]
    merged["num_samples"] = sum(int(each.get("num_samples", 0)) for each in stats)
    return merged


def _ordered(callbacks: list[Any]) -> list[Any]:
    main = [c for c in callbacks if isinstance(c, MainCallback)]
    if len(main) > 1:
        raise InvalidArgumentError(
            f"Expect at most one MainCallback instance to be passed to the estimator, got {len(main)}"
        )
    return main + [c for c in callbacks if not isinstance(c, MainCallback)]


def _maybe(callback: Any, name: str, *arguments: Any) -> None:
    hook = getattr(callback, name, None)
    if hook is None:
        return
    # Most hooks of most callbacks do nothing.
    if (
        isinstance(callback, Callback)
        and getattr(type(callback), name, None) is getattr(Callback, name, None)
        and not name.startswith(("before_", "after_", "set_"))
    ):
        return
    hook(*arguments)
