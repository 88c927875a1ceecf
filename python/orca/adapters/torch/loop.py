"""Training, evaluation and prediction, as the workers run them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from orca import running
from orca.adapters.torch.commits import Progress, find, leaving_between_steps
from orca.adapters.torch.devices import device_of_worker, seed_cpu
from orca.adapters.torch.exchanges import DeviceGroup
from orca.adapters.torch.feeds import Feed, count_rows, spread
from orca.adapters.torch.places import Places
from orca.adapters.torch.runner import Runner, joined
from orca.adapters.torch.session import ModelSpec, Session, make_metrics
from orca.adapters.torch.trainer import DrivenTrainer, FitOptions, Trainer
from orca.adapters.torch.trees import SharedParts, pack, unpack
from orca.data import Shard
from orca.errors import InvalidArgumentError
from orca.objects import allgather_object, broadcast_object
from orca.outputs import output
from orca.pickles import loads

_log = logging.getLogger("orca")
_sessions: dict[str, tuple[str, Session]] = {}  # by Estimator: the version of its state


@dataclass(frozen=True)
class SessionLost:
    """What a task returns when some worker does not have the Estimator's state.

    Attributes:
        restarts: How often the call had begun anew.
    """

    restarts: int


FRAMES = " on frames"
"""Behind an Estimator's name: what predicts on DataFrames, with weights of its own."""

_KEPT = 4  # Of these.


@dataclass(frozen=True)
class Call:
    """What every call of an Estimator says to its workers."""

    estimator: str
    version: str  # of the state that the workers must have
    next_version: str  # of the state that they have after a call that changes it
    spec: Shard | list[bytes]  # the pickled ModelSpec; in shared memory where it is large
    state: Any  # None, or packed state dicts (SharedParts: pickled) for workers that have none
    has_state: bool  # whether ``state`` says all; False: use what you have
    is_local: bool = True  # whether the driver is on the workers' machine
    seed: int | None = None
    forget: tuple[str, ...] = ()  # Estimators that are gone
    log_level: int | None = None  # None: the driver's
    log_to_driver: bool = True

    def model_spec(self) -> ModelSpec:
        """What the Estimator is made of."""
        parts = self.spec if isinstance(self.spec, list) else list(self.spec.view())
        found: ModelSpec = loads(parts)
        return found


def _with_output(task: Callable[..., Any]) -> Callable[..., Any]:
    """A task whose output goes where the call says."""

    @functools.wraps(task)
    def wrapper(call: Call, *arguments: Any) -> Any:
        with output(call.log_level, shown=call.log_to_driver):
            return task(call, *arguments)

    return wrapper


def _session(call: Call) -> Session | None:
    """This worker's session, if all workers have theirs."""
    for gone in call.forget:
        forget(gone)
    version, session = _sessions.get(call.estimator, ("", None))
    here = (running.rank(), running.world_size())
    has = session is not None and version == call.version and session.place == here
    if all(allgather_object(has)):
        assert session is not None
        device_of_worker(session.spec.device)
        session.connect()
        return session
    if not call.has_state:
        return None
    state = call.state
    if isinstance(state, SharedParts):
        state = loads(state.parts())
    session = _new_session(call, None if state is None else unpack(state))
    _sessions[call.estimator] = (call.version, session)
    # Nobody says when a frame has been predicted for the last time.
    for name in [name for name in _sessions if name.endswith(FRAMES)][:-_KEPT]:
        del _sessions[name]
    return session


def _new_session(call: Call, state: dict[str, Any] | None) -> Session:
    spec = call.model_spec()
    device = device_of_worker(spec.device)
    group = None if device.type == "cpu" else DeviceGroup()
    return Session(spec, state, call.seed, call.is_local, device, group)


@_with_output
def fit(call: Call, options: FitOptions) -> Any:
    """Trains; returns this worker's statistics an epoch, and on rank 0 the state."""
    # How a sum is divided among threads changes its bits.
    with _threads(1 if options.blocks else None):
        if options.ledger is None:
            return _fit(call, options)
        with leaving_between_steps():
            return _fit(call, options)


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many threads compute inside; None: as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fit(call: Call, options: FitOptions) -> Any:
    progress = find(options.ledger)
    if progress is not None:
        session: Session | None = _resumed(call, progress)
    elif (kept := _last_checkpoint(options)) is not None:
        progress = Progress.of(kept.pop("progress"))
        session = _new_session(call, kept)
        _say_where(session, progress, ", from the last checkpoint")
    else:
        session = _session(call)
        progress = None if options.resume is None else Progress.of(unpack(options.resume))
    if session is None:
        return SessionLost(running.attempt())
    if progress is not None:
        _set_buffers(session, progress.buffers)
    session.may_fuse = progress is None or progress.record.may_fuse
    session.set_blocks(options.blocks)
    if not session.optimizers:
        raise InvalidArgumentError("fit needs an optimizer; give from_torch(optimizer=)")
    if session.criterion is None and session.operator is None:
        raise InvalidArgumentError(
            "If a loss_creator is not provided, you must provide a custom training operator."
        )
    config, threads = session.spec.config, session.gatherers
    feed = options.source.open(options.batch_size, config, True, threads, options.blocks)
    validation = (
        None
        if options.validation is None
        else options.validation.open(options.batch_size, config, False, threads, options.blocks)
    )
    _sessions.pop(call.estimator, None)  # Until it is whole again.
    parameters = {"epochs": options.epochs, "max_steps": options.max_steps}
    runner = Runner(session, list(options.callbacks), parameters)
    runner.is_resumed = progress is not None
    driven = runner.drives_backward() or session.operator_trains()
    if driven and options.blocks:
        raise InvalidArgumentError(
            "deterministic= is not possible: a training operator or a MainCallback makes the steps, and knows "
            "nothing of blocks; leave that to fit"
        )
    if not driven:
        session.release()
    if call.seed is not None:
        seed_cpu(call.seed + 1 + running.rank())
    trainer: Any = (DrivenTrainer if driven else Trainer)(session, options, runner, progress)
    stats: list[dict[str, Any]] = []
    if progress is not None:
        stats = [_of_this_worker(workers) for workers in progress.record.stats]
        runner.epoch_stats = joined(progress.record.stats[-1]) if stats else None
    runner.first_epoch = session.epoch - len(stats)
    resumed = progress is not None and progress.commit.index > 0
    progress = None  # It holds the memory of those who were here before.
    runner.begin()
    # Steps that were asked for count, not epochs.
    many = itertools.count() if options.max_steps is not None else range(len(stats), options.epochs)
    with trainer.keeping_checkpoints():
        for _ in many:
            steps_before = session.global_step
            runner.call("before_train_epoch", "on_epoch_begin", session.epoch)
            found = trainer.epoch(feed)
            made_steps = session.global_step > steps_before or resumed
            resumed = False
            # A loop of the user's may have rows of its own; steps that are asked for end with the rows.
            own = session.operator is not None and not session.operator_counts()
            needs_rows = options.max_steps is None or not stats
            if not made_steps and not own and needs_rows and not trainer.is_over():
                raise InvalidArgumentError(_no_rows(f"epoch {session.epoch + 1}", "train on"))
            scores: dict[str, Any] = {}
            if validation is not None:
                begin = time.perf_counter()
                scores = _evaluate(session, validation, options.metrics, runner, options.profile)
                found |= {_validation_name(key): value for key, value in scores.items()}
                if options.profile:
                    found["profile"] = found.get("profile", {}) | _profile(runner, begin)
            stats.append(found)
            everybody = trainer.finished(found)
            trainer.epoch_ended(scores)
            session.epoch += 1
            runner.epoch_ended(found, everybody)
            trainer.leave()
            if trainer.is_over() or (not made_steps and options.max_steps is not None):
                break
            if runner.must_stop():
                break
    state = session.state()
    _sessions[call.estimator] = (call.next_version, session)
    runner.call("after_run", "on_train_end", runner.epoch_stats)
    trainer.close()
    return stats, pack(state) if running.rank() == 0 else None


def _no_rows(part: str, purpose: str) -> str:
    return (
        f"{part} has no rows to {purpose}; look at the data: an iterator gives its rows once, and drop_last "
        "leaves out what is less than a batch"
    )


def _resumed(call: Call, progress: Progress) -> Session:
    """A session like the one that was interrupted."""
    _sessions.pop(call.estimator, None)
    session = _new_session(call, progress.state())
    session.last_loss = progress.commit.last_loss
    _say_where(session, progress)
    return session


def _last_checkpoint(options: FitOptions) -> dict[str, Any] | None:
    """What this ``fit`` wrote before it began anew; all workers ask together."""
    if running.attempt() == 0 or options.checkpoints is None or options.trigger is None:
        return None
    newest = options.checkpoints.newest() if running.rank() == 0 else None
    found: dict[str, Any] | None = broadcast_object(newest)
    return found


def _say_where(session: Session, progress: Progress, whence: str = "") -> None:
    if running.rank() == 0:
        _log.warning(
            "a worker was lost; training goes on behind step %d of epoch %d%s",
            progress.commit.index,
            session.epoch + 1,
            whence,
        )


def _of_this_worker(workers: list[dict[str, Any]]) -> dict[str, Any]:
    """The statistics of an epoch; there may have been fewer workers."""
    if running.rank() < len(workers):
        return workers[running.rank()]
    return workers[0] | {"num_samples": 0, "batch_count": 0}


def _set_buffers(session: Session, data: bytes) -> None:
    """The models' buffers become what this worker had, if that is known."""
    at = 0
    for model in session.models if data else ():
        for buffer in model.buffers():
            size = buffer.numel() * buffer.itemsize
            if size:
                found = torch.frombuffer(bytearray(data[at : at + size]), dtype=buffer.dtype)
                buffer.data.copy_(found.reshape(buffer.shape))
            at += size


def _validation_name(key: str) -> str:
    return key if key == "val_loss" else f"val_{key.lower()}"


@dataclass(frozen=True)
class EvaluateOptions:
    """The arguments of one ``evaluate``."""

    batch_size: int
    source: Any
    metrics: tuple[Any, ...]
    num_steps: int | None = None
    callbacks: tuple[Any, ...] = ()
    info: dict[str, Any] | None = None
    profile: bool = False
    places: Places | None = None


@_with_output
def evaluate(call: Call, options: EvaluateOptions) -> Any:
    """Evaluates; every worker returns the same metrics."""
    if options.places is not None:
        options.places.check()
    session = _session(call)
    if session is None:
        return SessionLost(running.attempt())
    begin = time.perf_counter()
    feed = options.source.open(options.batch_size, session.spec.config, False, session.gatherers)
    runner = Runner(session, list(options.callbacks), {})
    runner.call("before_run")
    found = _evaluate(session, feed, options.metrics, runner, options.profile, options)
    runner.call("after_run")
    if options.profile:
        found["profile"] = _profile(runner, begin)
    return found


def _profile(runner: Runner, begin: float) -> dict[str, float]:
    """Where the time of this worker's evaluation went; forward passes of the user's own loop are not known."""
    seconds = runner.eval_seconds
    means = {"mean_eval_fwd_s": sum(seconds) / len(seconds)} if seconds else {}
    return {"mean_validation_s": time.perf_counter() - begin} | means


def _evaluate(
    session: Session,
    feed: Feed,
    wanted: tuple[Any, ...],
    runner: Runner,
    profile: bool,
    options: EvaluateOptions | None = None,
) -> dict[str, Any]:
    metrics = make_metrics(wanted)
    steps, info, places = (
        (None, None, None) if options is None else (options.num_steps, options.info, options.places)
    )
    batches = session.batches(
        itertools.islice(feed.epoch(0, 0), steps), threaded=not feed.runs_user_code
    )
    if places is not None:
        batches = places.watched(batches)
    runner.eval_seconds = []
    runner.call("before_val_epoch")
    watched = runner.suspects.watched(feed, batches)
    if session.operator_validates():
        given = (batch for _, batch, _ in watched)
        takes = len(inspect.signature(session.operator.validate).parameters)
        with runner.suspects:
            own = session.operator.validate(*(given, info or {}, metrics)[:takes])
        rows = int(own.pop("num_samples", 0))
        sums = {
            name: ([float(value) * rows], [float(rows)]) if rows else ([], [])
            for name, value in own.items()
        }
    else:
        with runner.suspects:
            rows, losses, weights = _score(session, watched, metrics, runner, profile)
        sums = {} if session.criterion is None else {"val_loss": (losses, weights)}
    everybody = allgather_object((rows, sums, {n: m.state() for n, m in metrics.items()}))
    found: dict[str, Any] = {"num_samples": sum(each[0] for each in everybody)}
    if not found["num_samples"] and not session.operator_validates():
        raise InvalidArgumentError(_no_rows("the data", "evaluate"))
    for name, metric in metrics.items():
        metric.reset()
        for each in everybody:
            metric.merge(each[2][name])
        found[name] = metric.compute()
    for name in sorted(set().union(*(each[1] for each in everybody))):
        parts = [each[1][name] for each in everybody if name in each[1]]
        total, divisor = (_exact_sum([v for part in parts for v in part[i]]) for i in (0, 1))
        is_sum = session.criterion is not None and session.criterion.is_sum
        found[name] = total if is_sum else (total / divisor if divisor else math.nan)
    runner.metrics_stats = found
    runner.call("after_val_epoch")
    return found


def _exact_sum(values: list[float]) -> float:
    """The same in any order, as long as all are finite."""
    if all(map(math.isfinite, values)):
        with contextlib.suppress(OverflowError):
            return math.fsum(values)
    return sum(values)


def _score(
    session: Session, batches: Any, metrics: dict[str, Any], runner: Runner, profile: bool
) -> tuple[int, list[float], list[float]]:
    """Rows of this worker, and the losses of its batches, by their weights, and the weights."""
    rows_done = 0
    losses: list[float] = []
    weights: list[float] = []
    criterion = session.criterion
    for model in session.models:
        model.eval()
    with torch.no_grad():
        for index, batch, rows in batches:
            runner.batch, runner.rows, runner.batch_idx = batch, rows, index
            runner.weight = float(rows)
            if runner:
                runner.call("before_val_iter")
            begin = session.clock() if profile else 0.0
            if runner.main is not None:
                runner.main.on_val_forward(runner)
            else:
                runner.forward()
            if profile:
                runner.eval_seconds.append(session.clock() - begin)
            weight = float(runner.weight)
            if criterion is not None and runner.loss is not None and weight:
                scale = 1.0 if criterion.is_sum else weight
                losses.append(float(runner.loss) * scale)
                weights.append(weight)
            for metric in metrics.values():
                metric(runner.output, runner.target)
            rows_done += rows
            if runner:
                runner.call("after_val_iter")
    return rows_done, losses, weights


# What a worker holds back of its predictions: beyond the memory for shards, they go to files.
_SHARD_BYTES = 64 << 20


@dataclass(frozen=True)
class PredictOptions:
    """The arguments of one ``predict``."""

    batch_size: int
    source: Any
    callbacks: tuple[Any, ...] = ()
    places: Places | None = None


@_with_output
def predict(call: Call, options: PredictOptions) -> Any:
    """Predicts; returns this worker's rows, in order, in shards of some size: there may be many."""
    if options.places is not None:
        options.places.check()
    session = _session(call)
    if session is None:
        return SessionLost(running.attempt())
    source = options.source
    # Whole runs of rows, so that the parts only have to be put behind each other.
    rank, world, rows = running.rank(), running.world_size(), len(source.store)
    begin, end = rank * rows // world, (rank + 1) * rows // world
    shards: list[Shard] = []
    parts: list[Any] = []
    waiting = 0
    batches = source.slices(begin, end, options.batch_size)
    for part in predictions(session, batches, options.callbacks, options.places):
        parts.append(part)
        waiting += _bytes_of(part)
        if waiting >= _SHARD_BYTES:
            shards.append(Shard(join(parts)))
            parts, waiting = [], 0
    return [*shards, Shard(join(parts))] if parts else shards


def predictions(
    session: Session,
    batches: Iterable[Any],
    callbacks: tuple[Any, ...],
    places: Places | None = None,
) -> Iterator[Any]:
    """What the model makes of every batch of features, as arrays."""
    runner = Runner(session, list(callbacks), {})
    session.model.eval()
    runner.call("before_pred_epoch")
    with torch.no_grad():
        slices = ((batch, 0) for batch in batches)
        ahead = session.batches(slices, threaded=True)
        if places is not None:
            ahead = places.watched(ahead)
        for index, (batch, _) in enumerate(ahead):
            runner.batch, runner.batch_idx = spread(list(batch)), index
            runner.call("before_pred_iter")
            if runner.main is not None:
                runner.main.on_pred_forward(runner)
            elif session.operator is not None:
                runner.output = session.operator.predict_batch(runner.batch)
            else:
                runner.forward_only()
            yield _to_numpy(runner.output, count_rows(batch))
            runner.call("after_pred_iter")
    runner.call("after_pred_epoch")


def _to_numpy(output: Any, rows: int) -> Any:
    """The output for so many rows; of one, a model may have squeezed the first dimension away."""
    if isinstance(output, torch.Tensor):
        if output.dtype is torch.bfloat16:
            output = output.float()
        array = output.cpu().numpy()
        if rows == 1 and array.shape[:1] != (1,):
            array = array[None]
        # Trailing dimensions of one element say nothing.
        while array.ndim > 1 and array.shape[-1] == 1:
            array = array[..., 0]
        return array
    if isinstance(output, np.ndarray):
        return output
    if isinstance(output, dict):
        return {key: _to_numpy(value, rows) for key, value in output.items()}
    return tuple(_to_numpy(value, rows) for value in output)


def _bytes_of(output: Any) -> int:
    if isinstance(output, dict):
        return sum(map(_bytes_of, output.values()))
    return sum(map(_bytes_of, output)) if isinstance(output, tuple) else int(output.nbytes)


def join(parts: list[Any]) -> Any:
    """The predictions of batches, behind each other."""
    if isinstance(parts[0], dict):
        return {key: join([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(join([part[i] for part in parts]) for i in range(len(parts[0])))
    return np.concatenate(parts)


def forget(estimator: str) -> None:
    """Frees what this worker keeps of an Estimator."""
    _sessions.pop(estimator, None)
    _sessions.pop(f"{estimator}{FRAMES}", None)


@_with_output
def update_schedulers(call: Call, metric: float | None) -> Any:
    """One step of every scheduler; with a metric for those that want one."""
    session = _session(call)
    if session is None:
        return SessionLost(running.attempt())
    for scheduler in session.schedulers:
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)
    _sessions[call.estimator] = (call.next_version, session)
    return pack(session.state()) if running.rank() == 0 else None
