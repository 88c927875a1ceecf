"""Epochs of training on a worker."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from orca import running
from orca.adapters.torch.block_state import BlockState, own_blocks
from orca.adapters.torch.commits import Commits, Progress, gather_notes
from orca.adapters.torch.epoch_progress import EpochProgress, Losses
from orca.adapters.torch.feeds import Feed, split_batch
from orca.adapters.torch.records import CheckpointPlace, Checkpoints, Summary, is_number
from orca.adapters.torch.replicas import DrivenReplicas
from orca.adapters.torch.runner import Runner
from orca.adapters.torch.session import Session
from orca.adapters.torch.shared_state import SharedState, global_norm
from orca.adapters.torch.stopping import is_told
from orca.adapters.torch.suspects import Suspects
from orca.adapters.torch.training_operator import TrainingOperator
from orca.adapters.torch.trees import map_leaves, unpack
from orca.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, OrcaError
from orca.learn.trigger import SeveralIteration, Trigger
from orca.objects import allgather_object, broadcast_object

_log = logging.getLogger("orca")
STRIDE = 0x9E3779B97F4A7C15
"""Between seeds: far apart, whatever the first one is."""


class NotFiniteError(OrcaError, ArithmeticError):
    """A loss or a gradient is NaN or infinite."""


@dataclass
class FitOptions:
    """The arguments of one ``fit``."""

    epochs: int
    batch_size: int
    source: Any
    metrics: tuple[Any, ...] = ()
    validation: Any = None
    max_steps: int | None = None
    seed: int = 0
    on_nan: str = "raise"
    clip_value: tuple[float, float] | None = None
    clip_norm: float | None = None
    profile: bool = False
    callbacks: tuple[Any, ...] = ()
    info: dict[str, Any] | None = None
    checkpoints: CheckpointPlace | None = None
    trigger: Any = None  # of checkpoints
    summary: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    use_tqdm: bool = False
    ledger: Any = None
    stop: Any = None  # What says that the driver got a SIGTERM.
    random: int = 0  # What the random numbers of each step come from.
    resume: Any = None  # What a checkpoint says of an earlier ``fit``.
    blocks: int = 0  # Into which the rows of a step are cut; 0: the number of workers decides.


class Policy:
    """What to do with a step before it is taken."""

    def __init__(self, options: FitOptions, session: Session, suspects: Suspects) -> None:
        self._options, self._session, self._suspects = options, session, suspects
        self.is_sum = bool(session.criterion and session.criterion.is_sum)
        self.skipped = 0
        self.went_on = False
        self.evaluate_again: Any = None  # The batch of this step, once more.
        self._fault: OrcaError | None = None  # of a backward pass in a loop of the user's

    def goes_on(self, total: Any) -> bool:
        """Whether the weights are updated; the same on all workers."""
        self.went_on = True
        if self._is_fine(total):
            return True
        if self._options.on_nan == "skip":
            self.skipped += 1
            self.went_on = False
            return False
        raise self._fault_of(total)

    def heed(self, total: Any) -> None:
        """After a backward pass in a loop of the user's, on all workers; his next step is judged."""
        if not self._is_fine(total):
            self._fault = self._fault_of(total)

    def judge(self, parameters: list[torch.nn.Parameter]) -> None:
        """Before a step that the user makes with the gradients of all workers.

        Not after the backward pass: who scales his loss leaves steps out himself.
        """
        fault, self._fault = self._fault, None
        if fault is not None and not all(_is_finite(parameter.grad) for parameter in parameters):
            if self._options.on_nan == "raise":
                raise fault
            self.skipped += 1
            for parameter in parameters:
                parameter.grad = None
        self.clip([parameter for parameter in parameters if parameter.grad is not None])

    def _is_fine(self, total: Any) -> bool:
        _, _, _, bad_loss, bad_gradient, _, _, _ = total
        return (bad_loss < 0 and bad_gradient < 0) or self._options.on_nan == "ignore"

    def _fault_of(self, total: Any) -> OrcaError:
        """What is wrong with a step, in the words of the worker where it is."""
        _, loss, _, bad_loss, bad_gradient, bad_tensor, _, _ = total
        rank = bad_loss if bad_loss >= 0 else bad_gradient
        what = "loss is" if bad_loss >= 0 else f"gradient of {self._session.names[bad_tensor]!r} is"
        mine = (self._suspects.not_finite(), self._suspects.where())
        rows, where = broadcast_object(mine if running.rank() == rank else None, rank)
        cure = (
            f"its data have {rows}; correct or leave out these rows"
            if rows
            else f"it was at {where}; lower the learning rate, clip gradients, look at these rows"
        )
        # Only one worker's is the cause.
        kind = NotFiniteError if rank == running.rank() else AbortedError
        return kind(
            f"rank {rank}, step {self._session.global_step}: the {what} not finite"
            f'{f" ({loss})" if bad_loss >= 0 else ""}; {cure}, or give fit(on_nan="skip")'
        )

    @property
    def limits(self) -> tuple[tuple[float, float] | None, float | None]:
        """Of each element of the joined gradient, and of its norm."""
        return self._options.clip_value, self._options.clip_norm

    def clip(self, parameters: list[torch.nn.Parameter]) -> None:
        """Limits the joined gradients."""
        if self._options.clip_value is not None:
            low, high = self._options.clip_value
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.clamp_(low, high)
        limit = self._options.clip_norm
        if limit is None:
            return
        if isinstance(self._session.sync, SharedState):
            norm = global_norm(parameters)
        else:
            squares = [p.grad.double().pow(2).sum() for p in parameters]  # type: ignore[union-attr]
            norm = math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0
        if norm > limit:
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.mul_(limit / (norm + 1e-6))


def _is_finite(gradient: Any) -> bool:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool(torch.isfinite(values).all())


class Trainer:
    """Epochs whose steps are ours."""

    def __init__(
        self,
        session: Session,
        options: FitOptions,
        runner: Runner,
        progress: Progress | None = None,
    ) -> None:
        self._session, self._options, self._runner = session, options, runner
        self._policy = Policy(options, session, runner.suspects)
        self._progress, self._is_pending = progress, False
        self._stats = [] if progress is None else list(progress.record.stats)
        self._cursor = 0, Losses()
        self._rows = self._batches = 0  # of this worker, in this epoch
        self._commits = (
            None
            if options.ledger is None
            else Commits(options.ledger, session, progress, self._stats)
        )
        # What this worker makes of a step: some of its blocks, or one part of as many as there are workers.
        rank = running.rank()
        self._own = own_blocks(options.blocks) if options.blocks else range(rank, rank + 1)
        self._begin_step = session.global_step if progress is None else progress.record.begin_step
        self._is_first = True
        self._has_joined = False
        self._is_told = False  # To write a last checkpoint, and to end.
        self._summary = Summary(options.summary, options.tags)
        self._checkpoints = (
            Checkpoints(options.checkpoints, Trigger.convert_trigger(options.trigger))
            if options.checkpoints is not None and options.trigger is not None
            else None
        )
        if self._checkpoints is not None and progress is not None:
            self._checkpoints.prime(session)

    @property
    def _loss(self) -> float:
        """The last one; it outlives this ``fit``."""
        return self._session.last_loss

    @_loss.setter
    def _loss(self, loss: float) -> None:
        self._session.last_loss = loss

    def is_over(self) -> bool:
        """Whether all steps that were asked for are done."""
        return self._steps_left is not None and self._steps_left <= 0

    @property
    def _steps_left(self) -> int | None:
        """Of those that were asked for."""
        limit = self._options.max_steps
        return None if limit is None else limit - self._session.global_step + self._begin_step

    def epoch_ended(self, scores: dict[str, Any]) -> None:
        """After an epoch and its validation."""
        self._hear()
        self._summary.validation(self._session, scores)
        first: Any = next((value for name, value in scores.items() if name != "num_samples"), None)
        if is_number(first):
            self._session.last_score = float(first)
        if self._checkpoints is not None:
            self._checkpoints.after_step(
                self._session, self._loss, lambda: self._progress_at(0, Losses()), epoch_ended=True
            )

    def _hear(self, has_all: bool | None = None) -> None:
        """After a step or an epoch, on all workers alike: whether training ends here.

        Args:
            has_all: Whether all workers have been told, if that is known.
        """
        options = self._options
        if options.stop is None or self._is_told:
            return
        if has_all is None:
            mine = np.array([int(is_told(options.stop))])
            has_all = bool(running.allreduce(mine, "min")[0])
        if not has_all:
            return
        self._is_told = True
        if self._checkpoints is None:
            assert options.checkpoints is not None
            never = SeveralIteration(1 << 62)
            self._checkpoints = Checkpoints(options.checkpoints, never.get_trigger())
        self._checkpoints.demand()

    def leave(self) -> None:
        """Ends training where it was told to, when its last checkpoint is on the disk."""
        if not self._is_told:
            return
        assert self._checkpoints is not None
        self._checkpoints.close()
        running.barrier()  # One that raises ends the others.
        raise FailedPreconditionError("the driver got a SIGTERM; training ended with a checkpoint")

    def finished(self, found: dict[str, Any]) -> list[dict[str, Any]] | None:
        """After an epoch: what it was like here outlives this worker; what it was like on all, if that is known."""
        keeps = (self._commits, self._checkpoints, self._options.stop)
        if all(each is None for each in keeps):
            return None
        self._stats.append(allgather_object(found))
        return self._stats[-1]

    def _progress_at(self, index: int, losses: Losses) -> dict[str, Any]:
        """What a checkpoint says beside the state: who loads it goes on behind this step of the epoch."""
        notes: list[Any] = []  # At an epoch's begin there is nothing to say.
        if index > 0:
            commits, session = self._commits, self._session
            notes = (
                commits.notes()
                if commits is not None and commits.has_commit
                else gather_notes(session, self._rows, self._batches)
            )
        sync = self._session.sync
        return {
            "index": index,
            "loss_sum": losses.sum,
            "loss_rows": losses.rows,
            "skipped": self._policy.skipped,
            "begin_step": self._begin_step,
            "stats": map_leaves(self._stats, _storable),
            "before": self._session.buffers_before,
            "notes": notes,
            "may_fuse": not isinstance(sync, SharedState) or sync.may_fuse,
            "seed": self._options.seed,
            "random": self._options.random,
        }

    def close(self) -> None:
        """Returns when all records are on the disk."""
        if isinstance(self._session.sync, SharedState):
            self._session.sync.commits = None  # With the memory of its logs.
        self._summary.close()
        if self._checkpoints is not None:
            self._checkpoints.close()

    @contextlib.contextmanager
    def keeping_checkpoints(self) -> Iterator[None]:
        """When training breaks off inside, it returns with all checkpoints on the disk: who goes on looks there."""
        try:
            yield
        except BaseException:
            if self._checkpoints is not None:
                self._checkpoints.close()
            raise

    def epoch(self, feed: Feed) -> dict[str, Any]:
        """One pass over this worker's batches; returns its statistics."""
        session, options = self._session, self._options
        for model in session.models:
            model.train()
        session.refresh()
        begin = time.perf_counter()
        start, rows_done, batches, losses = self._begin_epoch(feed)
        if options.blocks and session.sync is None:
            self._announce(session.choose_sync(written=False), feed)
        self._watch = {"fwd": 0.0, "bwd": 0.0}
        threaded = not feed.runs_user_code
        stream = session.batches(feed.epoch(session.epoch, options.seed, start), threaded=threaded)
        known = feed.steps is not None
        runner, suspects = self._runner, self._runner.suspects
        progress = EpochProgress(options, feed, runner, losses.rows)
        stops = False
        if self._is_pending:  # The last step was finished after a death.
            self._is_pending, total = False, (0.0, self._loss, 0)
            self._cursor, self._rows, self._batches = (start, losses), rows_done, batches
            self._after_step(total, is_last=start == feed.steps)
            runner.step_loss = self._loss
            logs = {"train_loss": self._loss, "num_samples": 0}
            runner.call("after_train_iter", "on_batch_end", start - 1, logs)
            stops = bool(runner) and runner.must_stop()
        for index in itertools.count(start):
            if stops or self.is_over():
                break
            batch, rows = self._fetch(stream, feed, index)
            if self._is_first:
                suspects.compare()
                self._is_first = False
            if rows < 0 and known:
                break
            loss: Any = math.nan
            weight: Any = 0.0
            before: list[torch.Tensor] = []
            runner.batch_idx = index
            if session.has_norms:
                self._join_norms(feed, index)
            if self._commits is not None:
                self._commits.mark_step()
            if runner:
                runner.call("before_train_iter", "on_batch_begin", index)
            if options.blocks:
                rows = self._add_blocks(stream, feed, index, batch, rows)
            elif rows > 0:
                self._seed(1)
                if session.sync is None and session.group is None:
                    before = session.weights()
                with suspects:
                    loss, weight = self._forward_backward(batch, rows)
            elif session.share.is_joined:
                self._follow_norms(batch)
            if session.sync is None:
                written = bool(before) and session.is_changed(before)
                self._announce(session.choose_sync(written=written), feed)
            assert session.sync is not None
            if session.rates:
                session.set_rates()
            self._policy.evaluate_again = self._again(batch, rows)
            self._policy.went_on = False
            if self._commits is not None:
                self._commits.rows = rows_done + max(rows, 0)
                self._commits.batches = batches + (rows > 0)
            total = session.sync.step(
                weight,
                loss,
                max(rows, 0),
                leaves=rows < 0 or is_told(options.stop),
                policy=self._policy,
            )
            self._policy.evaluate_again = None  # It knows all of this, and the model's memory.
            if total[6] and not known and not total[2]:
                break
            self._hear(None if options.blocks else total[6])  # Blocks do not say it.
            session.sync.check_untouched()
            session.global_step += 1
            if rows > 0:
                rows_done += rows
                batches += 1
            if self._policy.went_on:
                losses.add(total)
                self._loss = total[1]
            self._cursor, self._rows, self._batches = (index + 1, losses), rows_done, batches
            commits = self._commits is not None and self._commits.prepare()
            self._after_step(total, is_last=index + 1 == feed.steps)
            progress.step(index, total, self._steps_left)
            if runner:
                runner.step_loss = total[1]
                logs = {"train_loss": total[1], "num_samples": max(rows, 0)}
                runner.call("after_train_iter", "on_batch_end", index, logs)
            if self._commits is not None and commits:
                self._commits.commit(index + 1, losses, self._policy.skipped)
            if self._is_told and index + 1 != feed.steps:
                self.leave()
            if runner and runner.must_stop():
                break
            if self.is_over():
                break
        progress.end()
        if session.has_norms:
            session.join_norms(joined=session.joins_norms)  # A loop of the user's may come next.
        session.average_buffers(rows_done)
        if session.spec.step_freq == "epoch":
            if runner.main is not None:
                runner.main.on_lr_adjust(runner)
            else:
                for scheduler in session.schedulers:
                    scheduler.step()
        found: dict[str, Any] = {
            "epoch": session.epoch + 1,
            "batch_count": batches,
            "num_samples": rows_done,
            **losses.summary(),
        }
        if self._policy.skipped:
            found["skipped_steps"], self._policy.skipped = self._policy.skipped, 0
        if options.profile:
            seconds = time.perf_counter() - begin
            found["profile"] = {
                "mean_train_epoch_s": seconds,
                **{f"mean_{k}_s": v / max(batches, 1) for k, v in self._watch.items()},
            }
        return found

    def _begin_epoch(self, feed: Feed) -> tuple[int, int, int, Losses]:
        """The step to begin with, what this worker has done before, and the losses."""
        session, progress, self._progress = self._session, self._progress, None
        if progress is not None:
            self._skip_epochs(feed)
        if progress is not None and progress.commit.index > 0:
            commit = progress.commit
            session.buffers_before = unpack(progress.record.before)
            self._policy.skipped, self._policy.went_on = commit.skipped, True
            self._is_pending = bool(commit.is_pending)
            losses = Losses(commit.loss_sum, commit.loss_rows, commit.last_loss)
            return commit.index, progress.rows, progress.batches, losses
        session.note_buffers()
        if self._commits is not None:
            self._commits.begin_epoch(Losses())
        return 0, 0, 0, Losses()

    def _skip_epochs(self, feed: Feed) -> None:
        """Those of this ``fit`` that are done."""
        for number in range(self._session.epoch - len(self._stats), self._session.epoch):
            feed.skip(number, self._options.seed)

    def _fetch(self, stream: Iterator[Any], feed: Feed, index: int, place: int = 0) -> Any:
        """A batch and its rows: of a step, or of the block at a place among this worker's; -1: the end."""
        self._seed(0, place)  # For rows that are changed at random.
        suspects = self._runner.suspects
        with suspects.fetching(feed, index * len(self._own) + place):
            batch, rows = next(stream, (None, -1))
        suspects.batch = batch
        return batch, rows

    def _add_blocks(
        self, stream: Iterator[Any], feed: Feed, index: int, batch: Any, rows: int
    ) -> int:
        """Makes the gradients of this worker's blocks, the first of which is there; returns their rows."""
        sync, suspects, done = self._session.sync, self._runner.suspects, 0
        assert isinstance(sync, BlockState)
        sync.begin()
        bad: Any = None  # The first block that is not finite.
        for place, block in enumerate(self._own):
            if place:
                batch, rows = self._fetch(stream, feed, index, place)
            if rows > 0:
                self._seed(1, place)
                with suspects:
                    loss, weight = self._forward_backward(batch, rows)
                is_sum = self._policy.is_sum
                if not sync.add(block, float(weight), loss, rows, is_sum=is_sum) and bad is None:
                    bad = index * len(self._own) + place, batch
            done += rows
        if bad is not None:
            suspects.accuse(feed, *bad)
        return done

    def _seed(self, part: int, place: int = 0) -> None:
        """Random numbers of a part of a step are the same whenever it is made, and others on every worker.

        Where there are blocks: others for every block, and the same whoever has it.
        """
        parts = self._options.blocks or running.world_size()
        number = 2 * (self._session.global_step * parts + self._own[place]) + part
        torch.default_generator.manual_seed((self._options.random + number * STRIDE) % (1 << 63))

    def _again(self, batch: Any, rows: int) -> Any:
        def again() -> tuple[Any, Any, int]:
            if rows <= 0:
                return 0.0, math.nan, 0
            loss, weight = self._forward_backward(batch, rows)
            return weight, loss, rows

        return again

    def _forward_backward(self, batch: Any, rows: int) -> tuple[Any, Any]:
        """Loss and weight; what is in a GPU's memory stays there until all of it is fetched at once."""
        runner = self._runner
        runner.batch, runner.rows, runner.weight = batch, rows, float(rows)
        profile = self._options.profile
        begin = self._session.clock() if profile else 0.0
        if runner.main is not None:
            runner.main.on_train_forward(runner)
        else:
            runner.forward()
        middle = self._session.clock() if profile else 0.0
        if self._session.share.is_joined:
            self._weigh(runner.weight)
        runner.loss.backward()
        if profile:
            self._watch["fwd"] += middle - begin
            self._watch["bwd"] += self._session.clock() - middle
        loss = runner.loss.detach()
        return loss if loss.is_cuda else loss.item(), runner.weight

    def _weigh(self, weight: Any) -> None:
        """Before a backward pass over joined batch norms: what this worker's part weighs."""
        weight = float(weight)
        total = float(running.allreduce(np.array([weight]))[0])
        self._session.share.value = (
            1.0 if self._policy.is_sum and weight else (weight / total if total else 0.0)
        )

    def _join_norms(self, feed: Feed, index: int) -> None:
        """One row has no variance: where a worker has one, batch norms see those of all workers."""
        session = self._session
        joined = session.joins_norms or (not self._options.blocks and feed.leaves_one_row(index))
        if joined and not session.joins_norms and not self._has_joined and running.rank() == 0:
            _log.info(
                "in steps where a worker has one row, as in step %d, batch norms see the rows of all workers",
                session.global_step + 1,
            )
        self._has_joined = self._has_joined or joined
        session.join_norms(joined=joined)

    def _follow_norms(self, batch: Any) -> None:
        """Goes with the others through joined batch norms, with no rows of its own."""
        batch = self._runner.batch if batch is None else batch
        if batch is None:
            raise InvalidArgumentError(
                "batch norms that see the rows of all workers need a row on every worker in the first step; give "
                "more rows, a larger batch_size, or fewer workers"
            )
        features, _ = split_batch(map_leaves(batch, lambda leaf: leaf[:0]))
        output = self._runner.model(*features)
        self._weigh(0.0)
        outputs = output if isinstance(output, list | tuple) else [output]
        sum(part.sum() for part in outputs).backward()  # type: ignore[union-attr]
        for parameter in self._runner.model.parameters():
            parameter.grad = None

    def _after_step(self, total: Any, *, is_last: bool) -> None:
        session = self._session
        if session.spec.step_freq == "batch" and self._policy.went_on:
            for scheduler in session.schedulers:
                scheduler.step()
        self._summary.step(session, total[1], total[2])
        if self._checkpoints is not None:
            self._checkpoints.after_step(
                session,
                total[1],
                lambda: self._progress_at(*self._cursor),
                epoch_ended=False,
                is_last=is_last,
            )
        if running.rank() == 0:
            running.report(session.global_step, loss=total[1])

    def _announce(self, sync: Any, feed: Feed) -> None:
        if running.rank() != 0:
            return
        session = self._session
        assert session.criterion is not None
        rows = "rows as they come" if feed.rows is None else f"{feed.rows} rows"
        steps = "" if feed.steps is None else f", {feed.steps} steps an epoch"
        _log.info(
            "training on %d workers x %s, %s (%s); %s%s; losses are weighed by %s%s",
            running.world_size(),
            f"{torch.get_num_threads()} threads"
            if session.device.type == "cpu"
            else f"1 GPU ({torch.cuda.get_device_name(session.device)})",
            sync.way,
            session.reason,
            rows,
            steps,
            session.criterion.rule,
            "; batch norms see the rows of all workers" if session.joins_norms else "",
        )


def _storable(value: Any) -> Any:
    """What a checkpoint can hold of a statistic: a metric of the user's may be anything."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(value.copy())
    is_plain = isinstance(value, torch.Tensor | str | int | float | bool | type(None))
    return value if is_plain else repr(value)


class DrivenTrainer(Trainer):
    """Epochs whose steps are the user's: a training operator's, or a callback's."""

    def __init__(self, session: Session, *rest: Any) -> None:
        super().__init__(session, *rest)
        if not isinstance(session.sync, DrivenReplicas):
            session.drive("a training loop of its own")

    def epoch(self, feed: Feed) -> dict[str, Any]:
        """One pass over this worker's batches; returns its statistics."""
        session, progress, self._progress = self._session, self._progress, None
        if progress is not None:
            self._skip_epochs(feed)
        self._seed(0)  # An epoch that is made again has the same random numbers.
        session.note_buffers()
        if session.sync is not None and session.sync.is_outdated():
            session.drive("a training loop of its own")
        assert isinstance(session.sync, DrivenReplicas)
        session.sync.policy = self._policy
        suspects = self._runner.suspects
        threaded = not feed.runs_user_code
        stream = session.batches(feed.epoch(session.epoch, self._options.seed), threaded=threaded)
        steps = _Steps(suspects.watched(feed, stream), session.sync, self)
        with suspects:
            if session.operator is not None:
                info = {"scheduler_step": session.spec.step_freq, **(self._options.info or {})}
                batches = self._counted(steps, feed)
                found = dict(session.operator.train_epoch(batches, info))
            else:
                found = self._callback_epoch(steps, feed)
        steps.finish()
        missed = session.sync.settle(steps.count, (*session.schedulers, *session.rates))
        self._agree(found.get("train_loss"))
        if session.operator_counts():
            session.operator.global_step += missed
        session.average_buffers(steps.rows)
        counted = {"batch_count": steps.count, "num_samples": steps.rows}
        if self._policy.skipped:
            counted["skipped_steps"], self._policy.skipped = self._policy.skipped, 0
        return {"epoch": session.epoch + 1} | counted | found

    def met(self, rows: int) -> None:
        """Between two steps, on all workers; this one had so many rows in the last."""
        if self._is_first:
            self._runner.suspects.compare()
            self._is_first = False
            self._announce_driven()
        if self._options.summary is None:
            return
        is_known = rows > 0 and math.isfinite(self._loss)
        mine = [rows, rows if is_known else 0, rows * self._loss if is_known else 0.0]
        total, known, losses = running.allreduce(np.array(mine, dtype=np.float64))
        if total:
            loss = float(losses / known) if known else None
            self._summary.step(self._session, loss, int(total))

    def wants_stop(self) -> bool:
        """Whether this worker has had enough."""
        return self.is_over() or self._runner.stop

    def _announce_driven(self) -> None:
        if running.rank() != 0:
            return
        operator = self._session.operator
        own = (
            operator is not None and type(operator).train_epoch is not TrainingOperator.train_epoch
        )
        _log.info(
            "training on %d workers x %d threads, a copy of the weights in each worker (%s); gradients "
            "are joined after each backward pass, clipped and looked at before each step of an optimizer%s",
            running.world_size(),
            torch.get_num_threads(),
            self._session.reason,
            "; losses of steps are in the summary only if train_epoch calls TrainingOperator's"
            if own and self._options.summary is not None
            else "",
        )

    def begin_step(self) -> None:
        """This worker has a batch for the next step."""
        if self._commits is not None:
            self._commits.mark_step()

    def watch_step(self) -> None:
        """The others make a step, and this worker has no batch left."""
        self._session.global_step += 1

    def step_ended(self, *, is_last: bool) -> None:
        """This worker has made a step; ``is_last``: the epoch has no other."""
        if self._session.operator is not None:
            self._loss = self._session.operator.last_loss
        self._session.global_step += 1
        if self._checkpoints is not None:
            self._checkpoints.after_step(
                self._session,
                self._loss,
                lambda: self._progress_at(0, Losses()),  # From the begin of the epoch.
                epoch_ended=False,
                is_last=is_last,
                is_exact=False,  # A loop of the user's cannot begin in the middle.
            )

    def _counted(self, steps: _Steps, feed: Feed) -> Iterator[Any]:
        for batch in steps:
            if self._session.rates:
                self._session.set_rates()
            steps.is_open = True
            yield batch
            steps.is_open = False  # Not reached when the loop breaks off.
            self.step_ended(is_last=steps.count == feed.steps)

    def _agree(self, mean: Any) -> None:
        """What schedules look at, and the number of steps, are the same on all workers.

        Args:
            mean: The epoch's loss, if the user's loop tells that; where nobody knows the last step's.
        """
        session = self._session
        if math.isnan(self._loss) and is_number(mean):
            self._loss = float(mean)
        everybody = allgather_object((session.global_step, self._loss))
        session.global_step = min(step for step, _ in everybody)
        known = [loss for _, loss in everybody if math.isfinite(loss)]
        if session.rates and known:
            self._loss = sum(known) / len(known)

    def _callback_epoch(self, steps: _Steps, feed: Feed) -> dict[str, Any]:
        runner, session = self._runner, self._session
        for model in session.models:
            model.train()
        rows, total = 0, 0.0
        for index, batch in enumerate(steps):
            assert isinstance(session.sync, DrivenReplicas)
            runner.batch, runner.rows, runner.batch_idx = batch, session.sync.rows, index
            runner.call("before_train_iter", "on_batch_begin", index)
            if session.rates:
                session.set_rates()
            runner.main.on_train_forward(runner)
            runner.main.on_iter_backward(runner)
            self._loss = float(runner.loss.detach())
            rows, total = rows + runner.rows, total + runner.rows * self._loss
            if session.spec.step_freq == "batch":
                for scheduler in session.schedulers:
                    scheduler.step()
            self.step_ended(is_last=steps.count == feed.steps)
            runner.step_loss = self._loss
            logs = {"train_loss": self._loss, "num_samples": runner.rows}
            runner.call("after_train_iter", "on_batch_end", index, logs)
        if session.spec.step_freq == "epoch":
            runner.main.on_lr_adjust(runner)
        return {"train_loss": total / rows if rows else math.nan, "last_train_loss": self._loss}


class _Steps:
    """Batches, between which the workers meet."""

    def __init__(self, stream: Iterator[Any], sync: DrivenReplicas, trainer: DrivenTrainer) -> None:
        self._stream = stream
        self._sync, self._trainer = sync, trainer
        self._is_done = False
        self._last = 0  # rows of the last step
        self.count = self.rows = 0
        self.is_open = False  # whether the last step has not been counted

    def __iter__(self) -> Iterator[Any]:
        for _, batch, rows in self._stream:
            if not self._meet(True, self._trainer.wants_stop()):
                return
            self._trainer.begin_step()
            self._sync.rows = self._last = rows
            self.count, self.rows = self.count + 1, self.rows + rows
            yield batch
        self.finish()

    def finish(self) -> None:
        """Goes on with the others until all are done."""
        if self.is_open and not self._sync.own_passes:  # Broken off before its step.
            self.count, self.rows, self._last = self.count - 1, self.rows - self._last, 0
        while not self._is_done:
            goes_on = self._meet(False)
            if self.is_open and self._sync.had_passes:
                self._trainer.step_ended(is_last=not goes_on)
            self.is_open = False
            if goes_on:
                self._trainer.watch_step()

    def _meet(self, has_batch: bool, stop: bool = False) -> bool:
        goes_on = self._sync.boundary(has_batch, stop)
        self._is_done = not goes_on
        self._trainer.met(self._last)
        self._last = 0
        return goes_on
