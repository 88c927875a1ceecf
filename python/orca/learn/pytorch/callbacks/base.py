"""What a callback may do, in both families of hooks that BigDL had."""

from __future__ import annotations

from typing import Any

__all__ = ["Callback", "MainCallback"]


class Callback:
    """Is told how training goes on, on every worker.

    Override any of two families of hooks. The first gets names and numbers, the second one
    argument, the ``runner``: it has ``model``, ``optimizer``, ``scheduler``, ``criterion``, ``batch``,
    ``batch_idx``, ``output``, ``loss``, ``target``, ``epochs``, ``num_epochs``, ``global_step``, ``rank``,
    ``config``, ``epoch_stats``, ``metrics_stats``, and ``stop``, which ends training when it is set.
    """

    model: Any = None
    params: Any = None
    trainer: Any = None

    def set_model(self, model: Any) -> None:
        """Gets the model before training."""
        self.model = model

    def set_param(self, param: Any) -> None:
        """Gets the arguments of ``fit`` before training."""
        self.params = param

    def set_trainer(self, trainer: Any) -> None:
        """Gets the runner before training."""
        self.trainer = trainer

    def on_train_begin(self) -> None:
        """Training begins."""

    def on_train_end(self, logs: Any = None) -> None:
        """Training ends."""

    def on_epoch_begin(self, epoch: int) -> None:
        """An epoch begins."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch ends; ``logs`` are its statistics."""

    def on_batch_begin(self, batch: int) -> None:
        """A step begins."""

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step ends."""

    def before_run(self, runner: Any) -> None:
        """Training, evaluation or prediction begins."""

    def after_run(self, runner: Any) -> None:
        """It ends."""

    def before_epoch(self, runner: Any) -> None:
        """A pass over some data begins."""

    def after_epoch(self, runner: Any) -> None:
        """It ends."""

    def before_iter(self, runner: Any) -> None:
        """A batch begins."""

    def after_iter(self, runner: Any) -> None:
        """It ends."""

    def before_train_epoch(self, runner: Any) -> None:
        """An epoch of training begins."""
        self.before_epoch(runner)

    def after_train_epoch(self, runner: Any) -> None:
        """It ends."""
        self.after_epoch(runner)

    def before_train_iter(self, runner: Any) -> None:
        """A step of training begins."""
        self.before_iter(runner)

    def after_train_iter(self, runner: Any) -> None:
        """It ends."""
        self.after_iter(runner)

    def before_val_epoch(self, runner: Any) -> None:
        """A pass of evaluation begins."""
        self.before_epoch(runner)

    def after_val_epoch(self, runner: Any) -> None:
        """It ends."""
        self.after_epoch(runner)

    def before_val_iter(self, runner: Any) -> None:
        """A batch of evaluation begins."""
        self.before_iter(runner)

    def after_val_iter(self, runner: Any) -> None:
        """It ends."""
        self.after_iter(runner)

    def before_pred_epoch(self, runner: Any) -> None:
        """A pass of prediction begins."""
        self.before_epoch(runner)

    def after_pred_epoch(self, runner: Any) -> None:
        """It ends."""
        self.after_epoch(runner)

    def before_pred_iter(self, runner: Any) -> None:
        """A batch of prediction begins."""
        self.before_iter(runner)

    def after_pred_iter(self, runner: Any) -> None:
        """It ends."""
        self.after_iter(runner)

    @staticmethod
    def every_n_epoch(runner: Any, n: int) -> bool:
        """After an epoch: whether it was the n-th, 2n-th and so on."""
        return n > 0 and runner.epochs % n == 0

    @staticmethod
    def every_n_iter(runner: Any, n: int) -> bool:
        """After a step: whether it was the n-th, 2n-th and so on."""
        return n > 0 and runner.global_step % n == 0


class MainCallback(Callback):
    """Takes the place of the steps themselves; at most one a call.

    What it does not override is done as without it.
    """

    def on_iter_forward(self, runner: Any) -> None:
        """Computes ``runner.output``, ``runner.target`` and ``runner.loss`` of ``runner.batch``."""
        runner.forward()

    def on_train_forward(self, runner: Any) -> None:
        """The forward pass of training."""
        self.on_iter_forward(runner)

    def on_val_forward(self, runner: Any) -> None:
        """The forward pass of evaluation."""
        self.on_iter_forward(runner)

    def on_pred_forward(self, runner: Any) -> None:
        """The forward pass of prediction; sets ``runner.output``."""
        runner.forward_only()

    def on_iter_backward(self, runner: Any) -> None:
        """The backward pass, and the optimizer's step."""
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()

    def on_lr_adjust(self, runner: Any) -> None:
        """After an epoch: a step of the scheduler."""
        if runner.scheduler is not None:
            runner.scheduler.step()
