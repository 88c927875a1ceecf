"""``fit(deterministic=True)``: the same bits for any number of workers, also when it changes in the middle."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

import orca
from orca.errors import InvalidArgumentError, WorkerFailedError
from orca.learn.metrics import Accuracy
from orca.learn.pytorch import Estimator
from orca.learn.pytorch.callbacks import Callback, MainCallback
from orca.learn.trigger import SeveralIteration

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]
ROWS, BATCH, CLASSES = 83, 20, 5  # The last step has 3 rows.
STEPS = -(-ROWS // BATCH)


class LeNet(nn.Module):
    """With a batch norm, whose buffers a step changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.norm = nn.BatchNorm2d(16)
        self.last = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.first(x.reshape(-1, 1, 28, 28))), 2)
        x = torch.max_pool2d(torch.relu(self.norm(self.second(x))), 2)
        return self.last(x.flatten(1))


class Mlp(nn.Sequential):
    def __init__(self, drop: float = 0.3) -> None:
        torch.manual_seed(2)
        super().__init__(
            nn.Flatten(), nn.Linear(784, 33), nn.Tanh(), nn.Dropout(drop), nn.Linear(33, CLASSES)
        )


class Transformer(nn.Module):
    """The rows of an image are its words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        layer = nn.TransformerEncoderLayer(28, 4, 40, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.register_buffer("places", torch.randn(28, 28))  # A constant.
        self.last = nn.Linear(28, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(x.reshape(-1, 28, 28) + self.places).mean(1))


MODELS = {"lenet": LeNet, "mlp": Mlp, "transformer": Transformer}
OPTIMIZERS = {
    "sgd": lambda m, _: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda m, _: torch.optim.Adam(m.parameters(), lr=0.003, weight_decay=0.01),
    "adamw": lambda m, _: torch.optim.AdamW(m.parameters(), lr=0.003, amsgrad=True),
    # Steps of torch's own.
    "rmsprop": lambda m, _: torch.optim.RMSprop(m.parameters(), lr=0.001, centered=True),
    "nadam": lambda m, _: torch.optim.NAdam(m.parameters(), lr=0.003),
}


def data(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(4)
    return draw.normal(size=(rows, 784)).astype(np.float32), draw.integers(0, CLASSES, rows)


def estimator(workers: int, **given: Any) -> Any:
    """One that nobody has trained."""
    return Estimator.from_torch(
        **(
            {"model": Mlp(), "optimizer": OPTIMIZERS["adam"], "loss": nn.CrossEntropyLoss()} | given
        ),
        workers_per_node=workers,
    )


def digest(of: Any) -> str:
    """Of all that was learned."""
    found, state = hashlib.sha256(), of.get_state_dict()
    for value in _tensors([state["models"], state["optimizers"]]):
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree.detach().contiguous()
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def trained(workers: int, given: Any = None, *, prepare: Any = None, **options: Any) -> Any:
    """A digest of what so many workers learn, and the losses."""
    made = {k: options.pop(k) for k in ("model", "optimizer", "loss") if k in options}
    est = estimator(workers, **made)
    if prepare is not None:
        prepare(est)
    defaults = {"epochs": 2, "batch_size": BATCH, "deterministic": True, "max_restarts": 100}
    stats = est.fit(data() if given is None else given, **(defaults | options))
    found = digest(est), [(each["train_loss"], each["last_train_loss"]) for each in stats]
    est.shutdown()
    return found


class Dies(Callback):
    """Kills the worker of a rank at certain steps, once each; and writes down who lives."""

    def __init__(self, folder: Path, when: dict[int, int]) -> None:
        self.folder, self.when = folder, when
        folder.mkdir(exist_ok=True)

    def before_run(self, runner: Any) -> None:
        (self.folder / f"rank{orca.rank()}.{os.getpid()}").touch()

    def after_train_iter(self, runner: Any) -> None:
        mark = self.folder / f"killed.{runner.global_step}"
        if self.when.get(runner.global_step) == orca.rank() and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.product
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_any_number_of_workers_learns_the_same_bits(model, optimizer):
    given = {"optimizer": OPTIMIZERS[optimizer]}
    expected = trained(1, model=MODELS[model](), **given)
    for workers in (2, 3, 4):
        assert trained(workers, model=MODELS[model](), **given) == expected, workers
    assert trained(2, model=MODELS[model](), seed=1, **given) != expected


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [("lenet", "adam"), ("mlp", "sgd"), ("transformer", "adamw"), ("lenet", "nadam")],
)
def test_a_worker_that_dies_changes_no_bit(tmp_path, model, optimizer):
    def run(workers: int, when: dict[int, int], name: str, **options: Any) -> Any:
        return trained(
            workers,
            model=MODELS[model](),
            optimizer=OPTIMIZERS[optimizer],
            callbacks=[Dies(tmp_path / name, when)],
            **options,
        )

    expected = run(1, {}, "nobody")
    assert run(3, {1: 2, 2: 0, STEPS: 1, STEPS + 2: 0}, "replaced") == expected
    when = {2: 3, STEPS + 1: 0}
    assert run(4, when, "fewer", on_failure="shrink") == expected
    assert len(list((tmp_path / "fewer").glob("killed.*"))) == 2


@contextlib.contextmanager
def _kills(folder: Path, seed: int) -> Iterator[None]:
    """Kills workers at any moment; not the same rank twice, which at the same step would be an error."""
    chance, over = random.Random(seed), threading.Event()

    def kill() -> None:
        last = ""
        for _ in range(5):
            if over.wait(chance.uniform(0.01, 0.2)):
                return
            found = [(file.stem, int(file.suffix[1:])) for file in sorted(folder.glob("rank*"))]
            alive = [each for each in found if Path(f"/proc/{each[1]}").exists()]
            if others := [each for each in alive if each[0] != last]:
                last, pid = chance.choice(others)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_kills_at_any_moment_change_no_bit(tmp_path, optimizer):
    given = {"model": LeNet(), "optimizer": OPTIMIZERS[optimizer], "epochs": 4}
    expected = trained(1, **given)
    for seed in range(4):
        folder = tmp_path / str(seed)
        dies = Dies(folder, {})
        with _kills(folder, seed):
            assert trained(2 + seed % 2, callbacks=[dies], **given) == expected, seed


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop"])
def test_a_fit_goes_on_with_another_number_of_workers(optimizer):
    given = {"model": LeNet(), "optimizer": OPTIMIZERS[optimizer]}
    expected = trained(1, epochs=3, **given)[0]
    state: Any = None
    for workers in (2, 3, 1):
        est = estimator(workers, **given)
        if state is not None:
            est.load_state_dict(state)
        est.fit(data(), epochs=1, batch_size=BATCH, deterministic=True)
        found, state = digest(est), est.get_state_dict()
        est.shutdown()
    assert found == expected
    # And in the same Estimator, with one that is not deterministic in between: nothing of it stays.
    est = estimator(2, **given)
    for options in ({"deterministic": True}, {"max_steps": 1}, {"deterministic": True}):
        est.fit(data(), epochs=1, batch_size=BATCH, **options)
    assert digest(est) != expected
    est.load_state_dict(state)
    assert digest(est) == expected
    est.shutdown()


def test_a_checkpoint_goes_on_with_another_number_of_workers(tmp_path):
    class Stops(Callback):
        def after_train_iter(self, runner: Any) -> None:
            if runner.global_step == STEPS + 3:
                raise ZeroDivisionError("enough")

    def fit(workers: int, **options: Any) -> Any:
        est = estimator(workers, model=LeNet(), model_dir=str(tmp_path / "states"))
        trigger = {"checkpoint_trigger": SeveralIteration(2), "resume": "auto"}
        est.fit(data(), epochs=2, batch_size=BATCH, deterministic=True, **trigger, **options)
        return digest(est)

    with pytest.raises(WorkerFailedError, match="enough"):
        fit(2, callbacks=[Stops()])
    assert fit(3) == trained(1, model=LeNet())[0]


def _reference(model: nn.Module, optimizer: Any, steps: list[list[int]]) -> None:
    """Plain torch, a step for all rows of a batch."""
    x, y = map(torch.from_numpy, data())
    for rows in steps:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def test_it_is_the_training_of_one_process():
    order = [list(range(i, min(i + BATCH, ROWS))) for i in range(0, ROWS, BATCH)]
    for name in ("sgd", "adamw", "rmsprop"):
        model = Mlp(drop=0.0)
        _reference(model, OPTIMIZERS[name](model, {}), order)
        est = estimator(
            2, model=Mlp(drop=0.0), optimizer=OPTIMIZERS[name], config={"shuffle": False}
        )
        est.fit(data(), epochs=1, batch_size=BATCH, deterministic=True)
        for found, wanted in zip(est.get_model().parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        est.shutdown()


def test_running_statistics_are_means_over_blocks_by_rows():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(8)
            self.norm, self.last = nn.BatchNorm1d(3), nn.Linear(3, CLASSES)
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.1]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return self.last(self.norm(x))

    x = np.random.default_rng(5).normal(size=(7, 3)).astype(np.float32)
    y = np.zeros(7, np.int64)
    est = estimator(2, model=Net(), config={"shuffle": False})
    est.fit((x, y), epochs=1, batch_size=7, deterministic=3)
    state = est.get_model().state_dict()
    est.shutdown()
    blocks = [(x[:3], 3), (x[3:5], 2), (x[5:], 2)]
    mean = sum(0.1 * rows.mean(0) * n for rows, n in blocks) / 7
    var = 0.9 + sum(0.1 * rows.var(0, ddof=1) * n for rows, n in blocks) / 7
    np.testing.assert_allclose(state["norm.running_mean"], mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(state["norm.running_var"], var, rtol=1e-6)
    assert int(state["norm.num_batches_tracked"]) == int(state["seen"]) == 1
    assert torch.equal(state["mask"], torch.tensor([0.0, -torch.inf, 0.1]))


@pytest.mark.parametrize("clip", ["norm", "value"])
@pytest.mark.parametrize("optimizer", ["adam", "nadam"])
def test_clipping_has_the_same_bits(clip, optimizer):
    def prepare(est: Any) -> None:
        if clip == "norm":
            est.set_l2_norm_gradient_clipping(0.05)
        else:
            est.set_constant_gradient_clipping(-0.001, 0.002)

    given = {"optimizer": OPTIMIZERS[optimizer], "model": LeNet()}
    expected = trained(1, prepare=prepare, **given)
    assert expected != trained(1, **given)
    for workers in (2, 3, 4):
        assert trained(workers, prepare=prepare, **given) == expected, workers


def test_losses_that_are_sums_or_leave_rows_out():
    x, y = data()
    left_out = y.copy()
    left_out[::2] = -100  # Some blocks have no label that counts.
    for loss, labels in (
        (nn.CrossEntropyLoss(reduction="sum"), y),
        (nn.CrossEntropyLoss(), left_out),
    ):
        expected = trained(1, (x, labels), loss=loss)
        for workers in (2, 3):
            assert trained(workers, (x, labels), loss=loss) == expected, workers


@pytest.mark.parametrize("batch_size", [1, 2, 5, 13, 100])
def test_small_and_large_batches(batch_size):
    rows = data(17)
    expected = trained(1, rows, batch_size=batch_size)
    for workers in (2, 3, 4):
        assert trained(workers, rows, batch_size=batch_size) == expected, workers
    assert trained(4, rows, batch_size=batch_size, deterministic=4) == trained(
        1, rows, batch_size=batch_size, deterministic=4
    )


class Noisy(Dataset[Any]):
    """Rows that are changed at random when they are fetched."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        x, y = data()
        return torch.from_numpy(x[i]) + torch.randn(784), int(y[i])


def _padded(rows: list[Any]) -> Any:
    """As long as the longest row of those that come together."""
    length = max(int(y) for _, y in rows) + 780
    return torch.stack([x[:length].mean() + x for x, _ in rows]), torch.tensor([y for _, y in rows])


@pytest.mark.parametrize("is_creator", [False, True])
def test_loaders_and_creators(is_creator):
    def create(config: dict[str, Any], batch_size: int) -> Any:
        assert batch_size == BATCH
        return DataLoader(Noisy(), batch_size=batch_size, shuffle=True, collate_fn=_padded)

    given = create if is_creator else create({}, BATCH)
    expected = trained(1, given)
    for workers in (2, 3):
        assert trained(workers, given) == expected, workers


def test_parameters_without_a_gradient():
    class Net(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("other", nn.Linear(784, CLASSES))
            self.steps = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            *layers, other = self
            hidden = nn.Sequential(*layers)(x)
            return hidden + other(x) if x[0, 0] > 0.3 else hidden

    expected = trained(1, model=Net(), epochs=3, batch_size=6)
    for workers in (2, 3):
        assert trained(workers, model=Net(), epochs=3, batch_size=6) == expected, workers
    # Two calls, on the same and on other workers.
    found = []
    for others in ((2, 2), (1, 3)):
        est = estimator(others[0], model=Net())
        est.fit(data(), epochs=1, batch_size=6, deterministic=True)
        if others[0] != others[1]:
            state = est.get_state_dict()
            est = estimator(others[1], model=Net())
            est.load_state_dict(state)
        est.fit(data(), epochs=1, batch_size=6, deterministic=True)
        found.append(digest(est))
        est.shutdown()
    assert found[0] == found[1]


def test_bad_losses_are_named_and_skipped():
    x, y = data()
    x[7] = np.nan
    with pytest.raises(WorkerFailedError, match=r"the loss is not finite.*row 7"):
        trained(2, (x, y))
    expected = trained(1, (x, y), on_nan="skip")
    assert trained(3, (x, y), on_nan="skip") == expected


def test_validation_has_the_same_bits_too():
    def run(workers: int, validation: Any) -> Any:
        est = estimator(workers, metrics=[Accuracy()])
        stats = est.fit(data(), 2, BATCH, validation_data=validation, deterministic=True)
        est.shutdown()
        return [{k: v for k, v in each.items() if k.startswith("val_")} for each in stats]

    x, y = data(31)
    for validation in (
        (x, y),
        DataLoader(TensorDataset(*map(torch.from_numpy, (x, y))), batch_size=7),
    ):
        expected = run(1, validation)
        assert expected[0]["val_num_samples"] == 31
        for workers in (2, 3):
            assert run(workers, validation) == expected, workers
    # What cannot be cut is used as it is.
    lists = DataLoader(Stream(), batch_size=7)
    found = run(1, lambda config: lists)
    assert found[0]["val_num_samples"] == ROWS


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(*map(torch.from_numpy, data()), strict=True)


class Steps(MainCallback):
    def on_iter_backward(self, runner: Any) -> None:
        runner.optimizer.step()


SET = TensorDataset(*map(torch.from_numpy, data()))


@pytest.mark.parametrize(
    ("message", "given", "options"),
    [
        ("IterableDataset", DataLoader(Stream(), batch_size=4), {}),
        ("gives every worker batches of its own", lambda config: [], {}),
        ("num_workers=0", DataLoader(SET, batch_size=4, num_workers=1), {}),
        ("batch_size=None", DataLoader(SET, batch_size=None), {}),
        (
            "DistributedSampler",
            lambda config: DataLoader(SET, sampler=DistributedSampler(SET, 2, 0)),
            {},
        ),
        ("MainCallback makes the steps", None, {"callbacks": [Steps()]}),
        ("LBFGS may look", None, {"optimizer": lambda m, _: torch.optim.LBFGS(m.parameters())}),
    ],
)
def test_what_cannot_be_deterministic_is_named(message, given, options):
    with pytest.raises(WorkerFailedError, match=message):
        trained(2, given, **options)


def test_arguments_that_do_not_fit():
    for wrong in (-1, "yes", 2.0):
        with pytest.raises(InvalidArgumentError, match="give True, or a number of blocks"):
            trained(1, deterministic=wrong)
    with pytest.raises(
        InvalidArgumentError, match=r"3 workers share the 2 blocks.*deterministic=3"
    ):
        trained(3, deterministic=2)
    est = estimator(1, sync_batchnorm=True)
    with pytest.raises(InvalidArgumentError, match="sync_batchnorm joins the rows of workers"):
        est.fit(data(), deterministic=True)
