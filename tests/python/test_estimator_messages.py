"""What users read when data, labels, columns, states or creators are wrong."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import checks_estimator as checks
import orca
from orca.data import ArrayStore
from orca.errors import InvalidArgumentError, WorkerFailedError
from orca.learn.pytorch.callbacks import Callback, MainCallback
from orca.learn.pytorch.training_operator import TrainingOperator

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("context")]


def message(action: Any) -> str:
    """What the user reads: the first line, without the traceback."""
    with pytest.raises(WorkerFailedError) as caught:
        action()
    return str(caught.value).splitlines()[0]


# --- F30, F36: a loss, gradient or row that is not finite


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("source", ["arrays", "loader", "creator"])
def test_a_row_that_is_not_finite_is_named(source: str, workers: int, shuffle: bool) -> None:
    x, y = checks.rows(40)
    x[23, 2] = math.nan
    data: Any = (x, y)
    if source != "arrays":
        rows = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))

        def data(config: Any, batch_size: int) -> Any:
            return DataLoader(rows, batch_size=batch_size, shuffle=shuffle)

        data = data({}, 12) if source == "loader" else data
    est = checks.estimator(workers, config={"shuffle": shuffle})
    with pytest.raises(WorkerFailedError) as caught:
        est.fit(data, epochs=1, batch_size=12)
    text = str(caught.value)
    assert f"raised NotFiniteError: rank {caught.value.rank}, step " in text
    assert "the loss is not finite (nan); its data have NaN or Inf: row 23 in the input;" in text
    assert 'correct or leave out these rows, or give fit(on_nan="skip")' in text
    est.shutdown()


class Explodes(nn.Module):
    """Has an infinite loss for one batch whose rows are all fine."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = checks.Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * (math.inf if bool((x[:, 0] == 7.0).any()) else 1.0)


def test_rows_that_look_fine_are_all_named() -> None:
    x, y = checks.rows(60)
    x[17, 0] = 7.0
    est = checks.estimator(2, model=lambda config: Explodes())
    text = message(lambda: est.fit((x, y), batch_size=20))
    assert "rank 1, step 0: the loss is not finite" in text
    assert "it was at its rows 10, 11, 12, 13, 14, 15, 16, 17 and 2 more; lower the" in text
    est.shutdown()


def test_a_batch_of_a_stream_is_named_by_its_number() -> None:
    def creator(config: Any, batch_size: int) -> Any:
        for number in range(4):
            x, y = checks.rows(3, seed=number)
            x[1] = math.nan if number == 2 else x[1]
            yield torch.from_numpy(x), torch.from_numpy(y)

    est = checks.estimator(2)
    assert "NaN or Inf: row 1 of batch 2 in the input;" in message(lambda: est.fit(creator))
    est.shutdown()


def test_the_column_of_a_frame_is_named() -> None:
    frame = pd.DataFrame({name: np.arange(12.0) for name in ("height", "weight", "y")})
    frame.loc[7, "weight"] = math.nan
    frame.loc[6, "y"] = math.inf

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (a + b) * self.scale

    est = checks.estimator(2, model=lambda config: Sum(), loss=nn.MSELoss())
    wanted = {"feature_cols": ["height", "weight"], "label_cols": "y"}
    text = message(lambda: est.fit(frame, batch_size=4, **wanted))
    assert "NaN or Inf: row 7 in column 'weight'; row 6 in column 'y';" in text
    frame["height"] = frame["height"].astype(object)
    frame.at[3, "height"] = np.zeros(2)
    with pytest.raises(
        InvalidArgumentError, match=r"column 'height': row 3 is \(2,\) and row 0 is"
    ):
        est.fit(frame, **wanted)
    frame["since"] = pd.date_range("2020-01-01", periods=12)
    with pytest.raises(InvalidArgumentError, match="column 'since' has the dtype datetime64"):
        est.fit(frame, feature_cols=["weight", "since"], label_cols="y")
    frame.at[3, "height"] = "tall"
    with pytest.raises(
        InvalidArgumentError, match="column 'height': row 3 is 'tall' and row 0 is 0"
    ):
        est.fit(frame, **wanted)
    est.shutdown()


# --- labels


@pytest.mark.parametrize(
    ("loss", "label", "ignored"),
    [
        (nn.CrossEntropyLoss(), 3, -100),
        (nn.CrossEntropyLoss(), -1, -100),
        (nn.CrossEntropyLoss(ignore_index=7), -100, 7),
        (nn.NLLLoss(), 3, -100),
        (nn.NLLLoss(ignore_index=7), -100, 7),
        (F.cross_entropy, 3, -100),
    ],
)
def test_a_label_out_of_range_is_named(loss: Any, label: int, ignored: int) -> None:
    x, y = checks.rows(20)
    y[[13, 14]] = label
    y[2] = ignored
    est = checks.estimator(2, loss=loss)
    text = message(lambda: est.fit((x, y), batch_size=10))
    assert "InvalidArgumentError: rank 0: " in text
    assert f"the label {label} of rows 13 and 14 is not in 0 to 2, the 3 classes" in text
    assert f"ignore_index ({ignored})" in text
    with pytest.raises(WorkerFailedError, match=f"the label {label} of rows? 13"):
        est.evaluate((x, y), batch_size=10)
    est.shutdown()


class Steps(TrainingOperator):
    """A loop of its own."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        return super().train_batch(batch, batch_info)


def test_labels_are_named_in_loops_of_the_users() -> None:
    x, y = checks.rows(20)
    y[13] = 5
    est = checks.estimator(2, training_operator_cls=Steps)
    text = message(lambda: est.fit((x, y), batch_size=10))
    assert "rank 0: the label 5 of row 13 is not in the classes of the model's output" in text
    est.shutdown()


def test_a_label_for_every_pixel_is_named_by_its_row() -> None:
    x = np.zeros((6, 1, 4, 4))
    y = np.zeros((6, 4, 4), np.int64)
    y[4, 2, 2] = 9

    def model(config: Any) -> nn.Module:
        return nn.Conv2d(1, 3, 1, dtype=torch.float64)

    est = checks.estimator(1, model=model)
    assert "the label 9 of row 4 is not in 0 to 2" in message(lambda: est.fit((x, y)))
    est.shutdown()


# --- no rows


def nothing(kind: str) -> Any:
    """Data without a row."""
    rows = torch.utils.data.TensorDataset(torch.zeros(0, 5).double(), torch.zeros(0).long())
    if kind == "loader":
        return DataLoader(rows)
    if kind == "creator":
        return lambda config, batch_size: DataLoader(rows, batch_size=batch_size)
    if kind == "stream":
        return lambda config, batch_size: iter([])
    x, y = checks.rows(8)
    store = ArrayStore()
    store.put({"x": x[:0], "y": y[:0]})
    frame = pd.DataFrame({"a": x[:0, 0], "y": y[:0]})
    return {"arrays": (x[:0], y[:0]), "store": store, "frame": frame}[kind]


@pytest.mark.parametrize("operator", [None, Steps])
@pytest.mark.parametrize("kind", ["loader", "creator", "stream", "arrays", "store", "frame"])
def test_no_rows_are_refused(kind: str, operator: Any) -> None:
    data, est = nothing(kind), checks.estimator(2, training_operator_cls=operator)
    columns = {"feature_cols": "a", "label_cols": "y"} if kind == "frame" else {}
    text = r"(epoch 1|data) has no rows"
    with pytest.raises((InvalidArgumentError, WorkerFailedError), match=text):
        est.fit(data, batch_size=4, **columns)
    with pytest.raises((InvalidArgumentError, WorkerFailedError), match=text):
        est.fit(data, batch_size=4, max_steps=3, **columns)
    with pytest.raises((InvalidArgumentError, WorkerFailedError), match="data has no rows"):
        est.evaluate(data, batch_size=4, **columns)
    if kind != "frame":
        with pytest.raises((InvalidArgumentError, WorkerFailedError), match="data has no rows"):
            est.fit(checks.rows(8), batch_size=4, validation_data=data)
    est.shutdown()


def test_less_than_a_batch_with_drop_last_is_refused() -> None:
    est = checks.estimator(2, config={"drop_last": True})
    text = message(lambda: est.fit(checks.rows(8), batch_size=16))
    assert "epoch 1 has no rows to train on; look at the data" in text
    assert "drop_last leaves out what is less than a batch" in text
    est.shutdown()


class Once:
    """Gives its batch to the first who asks."""

    def __init__(self) -> None:
        self._batches = iter([(torch.zeros(2, 5).double(), torch.zeros(2).long())])

    def __iter__(self) -> Any:
        return self._batches


def test_an_iterator_that_is_used_up_is_refused() -> None:
    def creator(config: Any, batch_size: int) -> Any:
        return Once()

    est = checks.estimator(1)
    assert est.fit(creator, epochs=1)[0]["num_samples"] == 2
    text = message(lambda: est.fit(creator, epochs=2))
    assert (
        "epoch 3 has no rows to train on; look at the data: an iterator gives its rows once" in text
    )
    # Steps that are asked for end with the rows.
    assert est.fit(creator, max_steps=5)[0]["num_samples"] == 2
    est.shutdown()


# --- optimizers of something else


class Other:
    """Creators that take another model than the one that is trained."""

    @staticmethod
    def whole(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(checks.net({}).parameters(), lr=0.1)

    @staticmethod
    def head(model: Any, config: dict[str, Any]) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model.second = nn.Linear(7, 3, dtype=torch.float64)
        return optimizer


@pytest.mark.parametrize("elementwise", [None, False])
@pytest.mark.parametrize("operator", [None, Steps])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_optimizer_of_another_model_is_refused(
    workers: int, operator: Any, elementwise: bool | None
) -> None:
    est = checks.estimator(
        workers, optimizer=Other.whole, training_operator_cls=operator, elementwise=elementwise
    )
    text = message(lambda: est.fit(checks.rows(20), batch_size=10))
    assert "SGD updates 4 tensors that the model does not have" in text
    assert "optimizer 0, parameter 0 of shape (7, 5)" in text
    assert "make it with the parameters of the model that from_torch gets" in text
    est.shutdown()


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_optimizer_instance_of_another_model_is_refused(deterministic: bool) -> None:
    optimizer = torch.optim.SGD(checks.net({}).parameters(), lr=0.1)
    est = checks.estimator(2, model=checks.net({}), optimizer=optimizer)
    text = message(lambda: est.fit(checks.rows(20), batch_size=10, deterministic=deterministic))
    assert "SGD updates 4 tensors that the model does not have" in text
    est.shutdown()


def test_an_optimizer_of_a_layer_that_was_replaced_is_refused() -> None:
    est = checks.estimator(2, optimizer=Other.head)
    text = message(lambda: est.fit(checks.rows(20), batch_size=10))
    assert "Adam updates 2 tensors that the model does not have" in text
    assert (
        "optimizer 0, parameter 2 of shape (3, 7), optimizer 0, parameter 3 of shape (3,)" in text
    )
    est.shutdown()


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    def scheduler(optimizer: Any, config: dict[str, Any]) -> Any:
        return torch.optim.lr_scheduler.StepLR(Other.whole(nn.Linear(1, 1), config), 1)

    est = checks.estimator(2, scheduler_creator=scheduler)
    text = message(lambda: est.fit(checks.rows(20), batch_size=10))
    assert "StepLR sets the learning rate of another optimizer" in text
    est.shutdown()


class Weighted(nn.Module):
    """A loss that learns how to weigh."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target) * self.scale


@pytest.mark.parametrize("kind", ["module", "function"])
def test_an_optimizer_may_have_what_the_loss_learns(kind: str) -> None:
    model, loss = checks.net({}), Weighted()
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)

    def weighted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target) * loss.scale

    est = checks.estimator(
        2, model=model, optimizer=optimizer, loss=loss if kind == "module" else weighted
    )
    assert est.fit(checks.rows(20), batch_size=10)[0]["num_samples"] == 20
    est.shutdown()


# --- shapes


@pytest.mark.parametrize("operator", [None, Steps])
def test_batches_of_other_shapes_on_another_rank_are_named(operator: Any) -> None:
    def creator(config: Any, batch_size: int) -> Any:
        x, y = torch.zeros(8, 5 + orca.rank(), dtype=torch.float64), torch.zeros(8).long()
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch_size)

    est = checks.estimator(2, training_operator_cls=operator)
    text = message(lambda: est.fit(creator, batch_size=4))
    assert (
        "rank 1 was at its rows 2 and 3: float64 (*, 6), int64 (*,); rank 0's first batch" in text
    )
    assert "was float64 (*, 5), int64 (*,)" in text
    est.shutdown()


def test_batches_may_have_other_shapes_on_other_ranks() -> None:
    """As those that are padded to their longest row."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(1, keepdim=True) * self.scale

    def creator(config: Any, batch_size: int) -> Any:
        return [(torch.ones(2, 3 + orca.rank()), torch.ones(2, 1))]

    est = checks.estimator(2, model=lambda config: Mean(), loss=nn.MSELoss())
    assert est.fit(creator)[0]["num_samples"] == 4
    est.shutdown()


def test_loaders_of_different_lengths_are_refused() -> None:
    """F33."""

    def creator(config: Any, batch_size: int) -> Any:
        return checks.loader({"rows": 8 + 8 * orca.rank()}, batch_size)

    est = checks.estimator(2)
    text = message(lambda: est.fit(creator, batch_size=4))
    assert "2 steps an epoch on rank 0, 4 steps on rank 1; let the data creator make" in text
    est.shutdown()


class Poisoned(Dataset[Any]):
    """One row is not like the others."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if index != 17:
            return torch.zeros(5, dtype=torch.float64), 1
        if self.kind == "raises":
            raise OSError("cannot decode")
        return torch.zeros(6, dtype=torch.float64), 1


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("kind", ["raises", "wide"])
def test_a_poisoned_row_is_named(kind: str, processes: int) -> None:
    """F36."""
    loader = DataLoader(Poisoned(kind), batch_size=8, shuffle=True, num_workers=processes)
    est = checks.estimator(2)
    with pytest.raises(WorkerFailedError) as caught:
        est.fit(loader)
    text = str(caught.value)
    if kind == "raises":
        assert "was fetching row 17 of the dataset" in text
        assert caught.value.remote_type == "OSError"
        assert "__getitem__" in caught.value.remote_traceback
        assert "cannot decode" in text
    else:
        assert caught.value.remote_type == "InvalidArgumentError"
        # Whichever of the two comes first in the batch.
        assert "row 17 of the" in text
        assert "float64 (6,), int" in text
        assert "float64 (5,), int" in text
        assert "collate_fn" in text
    est.shutdown()


def test_a_stream_that_breaks_names_the_batch() -> None:
    def creator(config: Any, batch_size: int) -> Any:
        yield from checks.loader({"rows": 6}, 3)
        raise OSError("the disk is gone")

    est = checks.estimator(2)
    text = message(lambda: est.fit(creator))
    assert "OSError: the disk is gone; rank" in text
    assert "was fetching its batch 2" in text
    est.shutdown()


# --- columns, states, what cannot be sent, creators


def test_a_wrong_column_is_named_with_its_neighbour() -> None:
    frame = pd.DataFrame({"height": [1.0], "weight": [2.0], "label": [0]})
    est = checks.estimator(1)
    with pytest.raises(InvalidArgumentError) as caught:
        est.fit(frame, feature_cols=["heigth"], label_cols="label")
    assert str(caught.value) == (
        "there is no column 'heigth'; there is ['height', 'weight', 'label']; did you mean 'height'?"
    )
    with pytest.raises(InvalidArgumentError, match=r"no column 'zzz'; there is \[.*\]$"):
        est.fit(frame, feature_cols=["height"], label_cols="zzz")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda s: s.update(last=s.pop("second.bias")),
            r"'second.bias' \(3,\) is here and not there, 'last' \(3,\) is there and not here",
        ),
        (
            lambda s: s.pop("first.bias"),
            r"'first.bias' \(7,\) is here and not there, nothing else is there",
        ),
        (
            lambda s: s.update(more=torch.zeros(2, 2)),
            r"'more' \(2, 2\) is there and not here; load it into the model that",
        ),
        (
            lambda s: s.update({"first.weight": torch.zeros(7, 4)}),
            r"'first.weight' is \(7, 4\) there and \(7, 5\) here; load",
        ),
    ],
)
def test_a_state_of_another_model_names_both_sides(change: Any, text: str, tmp_path: Path) -> None:
    est = checks.estimator(1)
    state = est.get_state_dict()
    change(state["models"][0])
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(InvalidArgumentError, match=text):
        est.load(str(tmp_path / "other.pt"))
    with pytest.raises(
        InvalidArgumentError, match="the state of 2 models, and this Estimator has 1"
    ):
        est.load_state_dict({"models": [{}, {}]})


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = checks.Net()
        self.inner.guard = threading.Lock()


class LockedCallback(Callback):
    def __init__(self) -> None:
        self.tools = {"guard": threading.Lock()}


def test_what_cannot_be_sent_is_named_by_its_path() -> None:
    """F37."""
    data = checks.rows(4)
    with pytest.raises(
        InvalidArgumentError, match=r"model\S*\.guard \(_thread.lock\) cannot be sent"
    ):
        checks.estimator(1, model=Locked()).fit(data)
    guard = threading.Lock()

    def creator(config: Any) -> nn.Module:
        with guard:
            return checks.net(config)

    with pytest.raises(InvalidArgumentError, match=r"model's variable guard \(_thread.lock\)"):
        checks.estimator(1, model=creator).fit(data)
    est = checks.estimator(1)
    with pytest.raises(
        InvalidArgumentError, match=r"callbacks\[0\]\.tools\['guard'\] \(_thread.lock"
    ):
        est.fit(data, callbacks=[LockedCallback()])

    def loader(config: Any, batch_size: int) -> Any:
        with guard:
            return checks.loader(config, batch_size)

    with pytest.raises(InvalidArgumentError, match=r"^data's variable guard \(_thread.lock\)"):
        est.fit(loader)
    est.fit(data)
    est.shutdown()


def test_a_data_creator_that_raises_shows_its_own_traceback() -> None:
    """F34."""

    def opens_the_archive() -> Any:
        raise OSError("no such disk")

    def creator(config: dict[str, Any], batch_size: int) -> Any:
        return opens_the_archive() if orca.rank() == 1 else checks.loader(config, batch_size)

    est = checks.estimator(2)
    with pytest.raises(
        WorkerFailedError, match=r"rank 1 .* raised OSError: no such disk"
    ) as caught:
        est.fit(creator)
    assert "in opens_the_archive" in caught.value.remote_traceback
    est.shutdown()


# --- F35: creators that take long


def test_a_creator_that_takes_long_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORCA_SLOW_PHASE", "0.1")
    caplog.set_level(logging.WARNING, "orca")
    released = tmp_path / "released"

    def creator(config: dict[str, Any], batch_size: int) -> Any:
        while orca.rank() == 1 and not released.exists():
            time.sleep(0.01)
        return checks.loader(config, batch_size)

    def warnings() -> list[str]:
        return [r.getMessage() for r in caplog.records if "data_creator" in r.getMessage()]

    def release() -> None:
        deadline = time.monotonic() + 60
        while not warnings() and time.monotonic() < deadline:
            time.sleep(0.01)
        released.touch()

    est = checks.estimator(2)
    waiter = threading.Thread(target=release)
    waiter.start()
    est.fit(creator)
    waiter.join()
    text = warnings()[0]
    assert text.startswith("[rank 1] data_creator has run for 0.1 s and has not returned; it is in")
    assert f"in creator, {__file__}:" in text
    monkeypatch.setenv("ORCA_SLOW_PHASE", "soon")
    with pytest.raises(
        WorkerFailedError, match="ORCA_SLOW_PHASE='soon' is not a number of seconds"
    ):
        est.fit(creator)
    est.shutdown()


def test_creators_run_once_a_worker_and_fit(tmp_path: Path) -> None:
    def creator(config: dict[str, Any], batch_size: int) -> Any:
        with (tmp_path / str(orca.rank())).open("a") as file:
            file.write("x")
        return checks.loader(config, batch_size)

    est = checks.estimator(2)
    for times in (1, 2, 3):
        est.fit(creator, epochs=3)
        assert [(tmp_path / r).read_text() for r in "01"] == ["x" * times] * 2
        if times == 2:
            est.shutdown()  # The workers have to be given the state again.
    est.shutdown()


# --- loops of the user's obey the same rules


class OwnBackward(MainCallback):
    def on_iter_backward(self, runner: Any) -> None:
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()


def driven(kind: str, workers: int = 2, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """An Estimator with a loop of the user's, and what its fit is given."""
    operator = Steps if kind == "operator" else None
    callbacks = [OwnBackward()] if kind == "callback" else None
    est = checks.estimator(workers, training_operator_cls=operator, **changes)
    return est, {"callbacks": callbacks}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("rule", ["norm", "value"])
@pytest.mark.parametrize("kind", ["operator", "callback"])
def test_loops_of_the_users_clip_gradients(kind: str, rule: str, workers: int) -> None:
    x, y = checks.rows(30)

    def clipped(model: nn.Module, config: Any) -> torch.optim.Optimizer:
        optimizer = checks.OPTIMIZERS["sgd"](model, config)

        def clip(*_: Any) -> None:
            if rule == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            else:
                nn.utils.clip_grad_value_(model.parameters(), 0.01)

        optimizer.register_step_pre_hook(clip)
        return optimizer

    est, given = driven(kind, workers)
    if rule == "norm":
        est.set_l2_norm_gradient_clipping(0.05)
    else:
        est.set_constant_gradient_clipping(-0.01, 0.01)
    est.fit((x, y), epochs=3, batch_size=8, **given)
    expected, _ = checks.train_plainly(
        x, y, loss=nn.CrossEntropyLoss(), optimizer=clipped, batch_size=8, epochs=3
    )
    for a, b in zip(est.get_model().parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    est.shutdown()


@pytest.mark.parametrize("kind", ["operator", "callback"])
def test_loops_of_the_users_raise_or_skip_what_is_not_finite(kind: str) -> None:
    """F30."""
    x, y = checks.rows(12)
    x[10] = np.nan
    est, given = driven(kind)
    text = message(lambda: est.fit((x, y), batch_size=4, **given))
    assert "rank 1, step 2: the gradient of 'first.weight' is not finite; its data have" in text
    assert "NaN or Inf: row 10 in the input" in text
    est.shutdown()
    est, given = driven(kind)
    stats = est.fit((x, y), batch_size=4, on_nan="skip", **given)
    assert stats[0]["skipped_steps"] == 1
    expected, _ = checks.train_plainly(
        x[:8],
        y[:8],
        loss=nn.CrossEntropyLoss(),
        optimizer=checks.OPTIMIZERS["sgd"],
        batch_size=4,
        epochs=1,
    )
    for a, b in zip(est.get_model().parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    est.fit((x, y), batch_size=4, on_nan="ignore", **given)
    assert not torch.isfinite(est.get_model().first.weight).all()
    est.shutdown()


def test_a_rank_without_batches_hears_of_a_gradient_that_is_not_finite() -> None:
    def creator(config: Any, batch_size: int) -> Any:
        x, y = map(torch.from_numpy, checks.rows(6))
        x[5] = math.nan
        return [(x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)] if orca.rank() == 1 else []

    est, given = driven("operator")
    text = message(lambda: est.fit(creator, **given))
    assert "rank 1, step 2: the gradient of 'first.weight' is not finite" in text
    assert "NaN or Inf: row 1 of batch 2 in the input" in text
    est.shutdown()


class Scaled(TrainingOperator):
    """Leaves steps out itself, as scalers of 16-bit losses do."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        _, target, loss = self.forward_batch(batch, batch_info)
        self.optimizer.zero_grad()
        loss.backward()
        if all(bool(torch.isfinite(p.grad).all()) for p in self.model.parameters()):
            self.optimizer.step()
        return {"train_loss": loss.item(), "num_samples": len(target)}


def test_a_loop_that_leaves_steps_out_itself_goes_on() -> None:
    x, y = checks.rows(12)
    x[2] = np.nan
    est = checks.estimator(2, training_operator_cls=Scaled)
    est.fit((x, y), batch_size=4)
    assert torch.isfinite(est.get_model().first.weight).all()
    est.shutdown()


class OwnEpoch(TrainingOperator):
    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
        for batch in iterator:
            self.train_batch(batch, info)
        return {"train_loss": 1.0}


@pytest.mark.parametrize("kind", ["operator", "callback"])
def test_loops_of_the_users_have_summaries(kind: str, tmp_path: Path) -> None:
    data = checks.rows(30)
    plain = checks.estimator(2)
    est, given = driven(kind)
    for each, name, more in ((plain, "plain", {}), (est, "driven", given)):
        each.set_tensorboard(str(tmp_path), name)
        each.fit(data, epochs=2, batch_size=8, **more)
    for tag in ("Loss", "LearningRate"):
        expected = [(step, value) for step, value, _ in plain.get_train_summary(tag)]
        found = [(step, value) for step, value, _ in est.get_train_summary(tag)]
        assert [step for step, _ in found] == list(range(1, 9))
        assert [v for _, v in found] == pytest.approx([v for _, v in expected], rel=1e-6)
    assert len(est.get_train_summary("Throughput")) == 8
    plain.shutdown()
    est.shutdown()


def test_summaries_count_the_steps_of_all_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def creator(config: Any, batch_size: int) -> Any:
        x, y = map(torch.from_numpy, checks.rows(6))
        return [(x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)][: 1 + 2 * orca.rank()]

    caplog.set_level(logging.INFO)
    est = checks.estimator(2, training_operator_cls=OwnEpoch)
    est.set_tensorboard(str(tmp_path), "app")
    est.fit(creator, epochs=2)
    assert [step for step, _, _ in est.get_train_summary("LearningRate")] == [1, 2, 3, 4, 5, 6]
    assert not est.get_train_summary("Loss")
    assert est.get_state_dict()["global_step"] == 6
    assert any("only if train_epoch calls TrainingOperator's" in r.message for r in caplog.records)
    est.shutdown()
