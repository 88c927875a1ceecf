"""``TrainingOperator``: a training loop that users change part by part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from orca.adapters.torch.losses import Criterion
from orca.errors import InvalidArgumentError

__all__ = ["TrainingOperator"]


class TrainingOperator:
    """One instance on every worker. Override ``setup`` and any of the steps, not the constructor.

    Gradients are those of all workers when ``backward`` returns.

    Example:
        >>> class Twice(TrainingOperator):
        ...     def train_batch(self, batch, batch_info):
        ...         super().train_batch(batch, batch_info)
        ...         return super().train_batch(batch, batch_info)
    """

    def __init__(
        self,
        config: dict[str, Any],
        models: Any,
        optimizers: Any,
        world_rank: int,
        criterion: Any = None,
        schedulers: Any = None,
        use_fp16: bool = False,
        use_tqdm: bool = False,
        sync_stats: bool = False,
        dist_backend: str | None = None,
    ) -> None:
        self._config = config
        self._models = _listed(models)
        self._optimizers = _listed(optimizers)
        self._schedulers = _listed(schedulers)
        self._world_rank = world_rank
        self._criterion = criterion
        self._use_fp16, self._use_tqdm = use_fp16, use_tqdm
        self.sync_stats, self.dist_backend = sync_stats, dist_backend
        self.global_step = 0
        self.last_loss = float("nan")  # of the last batch that train_epoch gave to train_batch
        self.timers: Any = None
        if type(self) is TrainingOperator:
            for name, found in (
                ("models", self._models),
                ("optimizers", self._optimizers),
                ("schedulers", self._schedulers),
            ):
                if len(found) > 1:
                    raise InvalidArgumentError(
                        f"there are several {name}; give a subclass of TrainingOperator that says what "
                        "to do with them"
                    )
        self.setup(config)

    def setup(self, config: dict[str, Any]) -> None:
        """Called once, before everything else."""

    # --- training

    def train_epoch(self, iterator: Iterable[Any], info: dict[str, Any]) -> dict[str, Any]:
        """One pass over the data; returns its statistics."""
        for model in self._models:
            model.train()
        rows, total, last, count = 0, 0.0, float("nan"), 0
        extra: dict[str, tuple[float, int]] = {}
        for index, batch in enumerate(iterator):
            batch_info = {"batch_idx": index, "global_step": self.global_step, **info}
            found = self.train_batch(batch, batch_info=batch_info)
            n = int(found.get("num_samples", 1))
            last = self.last_loss = float(found["train_loss"])
            rows, total, count = rows + n, total + last * n, count + 1
            for name, value in found.items():
                if name not in ("num_samples", "train_loss"):
                    before, seen = extra.get(name, (0.0, 0))
                    extra[name] = (before + float(value) * n, seen + n)
            self.global_step += 1
            if info.get("scheduler_step") == "batch":
                self._step_schedulers()
        if info.get("scheduler_step") == "epoch":
            self._step_schedulers()
        return {
            "batch_count": count,
            "num_samples": rows,
            "train_loss": total / rows if rows else float("nan"),
            "last_train_loss": last,
            **{name: value / seen for name, (value, seen) in extra.items() if seen},
        }

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        """One step; returns at least ``train_loss`` and ``num_samples``."""
        output, target, loss = self.forward_batch(batch, batch_info)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"train_loss": loss.item(), "num_samples": _rows(target, output)}

    def forward_batch(self, batch: Any, batch_info: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Output, target and loss of a batch."""
        *features, target = batch
        if len(features) == 1 and isinstance(features[0], list | tuple):
            features = list(features[0])
        output = self.model(*features)
        outputs = output if isinstance(output, list | tuple) else (output,)
        targets = target if isinstance(target, list | tuple) else (target,)
        criterion = (
            self._criterion.loss if isinstance(self._criterion, Criterion) else self._criterion
        )
        if criterion is None:
            raise InvalidArgumentError(
                "If a loss_creator is not provided, you must provide a custom training operator."
            )
        return output, target, criterion(*outputs, *targets)

    # --- evaluation and prediction

    def validate(
        self,
        val_iterator: Iterable[Any],
        info: dict[str, Any],
        metrics: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """One pass over the data without training; returns its metrics."""
        for model in self._models:
            model.eval()
        rows, total = 0, 0.0
        with torch.no_grad():
            for index, batch in enumerate(val_iterator):
                batch_info = {"batch_idx": index, **info}
                if type(self).validate_batch is not TrainingOperator.validate_batch:
                    found = self.validate_batch(batch, batch_info)
                    n = int(found.get("num_samples", 1))
                    total += float(found.get("val_loss", 0.0)) * n
                else:
                    output, target, loss = self.forward_batch(batch, batch_info)
                    for metric in (metrics or {}).values():
                        metric(output, target)
                    n = _rows(target, output)
                    total += loss.item() * n
                rows += n
        return {"num_samples": rows, "val_loss": total / rows if rows else float("nan")}

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        """The statistics of one batch of evaluation."""
        output, target, loss = self.forward_batch(batch, batch_info)
        return {"val_loss": loss.item(), "num_samples": _rows(target, output)}

    def predict(self, iterator: Iterable[Any]) -> list[Any]:
        """The predictions for all batches."""
        for model in self._models:
            model.eval()
        with torch.no_grad():
            return [self.predict_batch(batch) for batch in iterator]

    def predict_batch(self, batch: Any) -> Any:
        """The prediction for one batch."""
        features = batch if isinstance(batch, list | tuple) else [batch]
        return self.model(*features)

    # --- state

    def state_dict(self) -> dict[str, Any]:
        """What of this operator goes into checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what ``state_dict`` gave."""

    def _step_schedulers(self) -> None:
        for scheduler in self._schedulers:
            scheduler.step()

    @property
    def config(self) -> dict[str, Any]:
        """The Estimator's config."""
        return self._config

    @property
    def model(self) -> Any:
        """The first model."""
        return self._models[0]

    @property
    def models(self) -> list[Any]:
        """All models."""
        return self._models

    @property
    def optimizer(self) -> Any:
        """The first optimizer."""
        return self._optimizers[0]

    @property
    def optimizers(self) -> list[Any]:
        """All optimizers."""
        return self._optimizers

    @property
    def world_rank(self) -> int:
        """This worker's number."""
        return self._world_rank

    @property
    def criterion(self) -> Any:
        """The loss."""
        return self._criterion.loss if isinstance(self._criterion, Criterion) else self._criterion

    @property
    def scheduler(self) -> Any:
        """The first scheduler, or None."""
        return self._schedulers[0] if self._schedulers else None

    @property
    def schedulers(self) -> list[Any]:
        """All schedulers."""
        return self._schedulers

    @property
    def use_fp16(self) -> bool:
        """Accepted and kept; torch.autocast is the way of today."""
        return self._use_fp16

    @property
    def use_tqdm(self) -> bool:
        """Whether a progress bar was asked for."""
        return self._use_tqdm


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _rows(target: Any, output: Any) -> int:
    for value in (target, output):
        first = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(first, torch.Tensor) and first.dim():
            return int(first.shape[0])
    return 1
