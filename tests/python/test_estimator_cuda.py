"""``Estimator.from_torch(device="cuda")``: on GPUs where there are some, its arguments and its arithmetic everywhere."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import checks_devices as devices
import checks_estimator as checks
import orca
from orca.adapters.torch.devices import _by_thread, _one_ahead, read_device, workers_on
from orca.adapters.torch.trees import unpack
from orca.data import ArrayStore
from orca.errors import FailedPreconditionError, InvalidArgumentError, WorkerFailedError
from orca.learn.metrics import Accuracy
from orca.learn.pytorch.callbacks import Callback
from orca.learn.trigger import SeveralIteration

pytestmark = pytest.mark.slow

GPUS = torch.cuda.device_count()
on_gpu = pytest.mark.skipif(GPUS == 0, reason="no GPU on this machine")


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    if GPUS:
        torch.ones(
            1, device="cuda"
        )  # Also a backward pass of the CPU begins with this, and leaves a socket.
    orca.init_orca_context("local", cores=3)
    yield
    orca.stop_orca_context()


def on_cuda(**changes: Any) -> Any:
    """An Estimator with one worker on a GPU."""
    given: dict[str, Any] = {"device": "cuda:0", "workers_per_node": None}
    return checks.estimator(**(given | changes))


def plain(optimizer: Any, epochs: int, *, loss: Any = None, device: str = "cuda") -> nn.Module:
    x, y = checks.rows(37)
    chosen = nn.CrossEntropyLoss() if loss is None else loss
    model, _ = checks.train_plainly(
        x, y, loss=chosen, optimizer=optimizer, batch_size=7, epochs=epochs, device=device
    )
    return model.cpu()


def same(found: nn.Module, expected: nn.Module, tolerance: float = 1e-12) -> None:
    for (name, a), b in zip(found.named_parameters(), expected.parameters(), strict=True):
        assert a.device.type == "cpu"
        error = float((a - b).detach().abs().max() / b.detach().abs().max())
        assert error <= tolerance, f"{name} differs by {error}"


# --- what needs no GPU


@pytest.mark.parametrize("given", [None, "cpu", torch.device("cpu")])
def test_the_cpu_is_no_device(given: Any) -> None:
    assert read_device(given) is None


@pytest.mark.parametrize("given", ["cuda", "cuda:1", torch.device("cuda", 1)])
def test_a_gpu_is_a_device_with_or_without_a_number(given: Any) -> None:
    assert read_device(given) == torch.device(given)


@pytest.mark.parametrize("given", ["gpu", "mps", 2.5, ["cuda"]])
def test_other_devices_are_refused_by_name(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not known; give \"cpu\", \"cuda\""):
        checks.estimator(device=given)


def test_there_is_a_worker_for_each_gpu_unless_fewer_are_asked_for() -> None:
    assert workers_on(torch.device("cuda"), 4, None) == 4
    assert workers_on(torch.device("cuda"), 4, 3) == 3
    assert workers_on(torch.device("cuda", 2), 4, None) == 1


def test_more_workers_than_gpus_are_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidArgumentError, match=r"workers_per_node is 5, .* means 4 GPUs"):
        workers_on(torch.device("cuda"), 4, 5)
    with pytest.raises(InvalidArgumentError, match=r"workers_per_node is 2, .* means 1 GPUs"):
        workers_on(torch.device("cuda", 0), 4, 2)


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match='"cuda:4", but torch sees 4 GPUs'):
        workers_on(torch.device("cuda", 4), 4, None)


@pytest.mark.skipif(GPUS > 0, reason="there is a GPU on this machine")
def test_without_a_gpu_the_remedy_is_said_at_once() -> None:
    with pytest.raises(FailedPreconditionError, match=r'torch sees no GPU.* give device="cpu"'):
        checks.estimator(device="cuda")


@pytest.mark.parametrize("is_sum", [False, True])
def test_gradients_between_gpus_are_the_weighted_mean(is_sum: bool) -> None:
    """Rank 2 has no rows; the last parameter has a gradient on rank 1 alone."""
    found = orca.run(devices.exchange, ([1.0, 3.0, 0.0], None, is_sum), workers=3)
    factors = (1.0, 1.0) if is_sum else (0.25, 0.75)
    mean = factors[0] * 10 + factors[1] * 100
    for total, used, gradients in found:
        assert total == (4.0, factors[0] * 1 + factors[1] * 2, 18, -1, -1, -1, False, True)
        assert used == [True] * 3
        assert gradients == [[mean] * 3, [[mean] * 2] * 2, [factors[1] * 100] * 4]


def test_a_parameter_that_nobody_used_has_no_gradient() -> None:
    found = orca.run(devices.exchange, ([2.0, 0.0, 0.0], None, False), workers=3)
    for total, used, gradients in found:
        assert (total[0], total[7], used) == (2.0, False, [True, True, False])
        assert gradients == [[10.0] * 3, [[10.0] * 2] * 2, None]


def test_sparse_gradients_of_ignored_labels_do_not_matter() -> None:
    for found in orca.run(devices.sparse_of_ignored_labels, workers=2):
        assert found == [[3.0, 3.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_the_rank_and_the_gradient_that_is_not_finite_are_found(value: float) -> None:
    for total, _, _ in orca.run(devices.exchange, ([1.0, 3.0, 0.0], (1, value), False), workers=3):
        assert total[3:6] == (-1, 1, 1)
    # What weighs nothing does not matter.
    for total, _, _ in orca.run(devices.exchange, ([1.0, 3.0, 0.0], (2, value), False), workers=3):
        assert total[3:6] == (-1, -1, -1)


@pytest.mark.parametrize("ahead", [_one_ahead, _by_thread])
def test_what_is_made_ahead_comes_in_order(ahead: Any) -> None:
    assert list(ahead(iter(range(1, 6)))) == [1, 2, 3, 4, 5]
    assert list(ahead(iter(()))) == []


@pytest.mark.parametrize("ahead", [_one_ahead, _by_thread])
def test_an_error_of_what_is_made_ahead_is_raised(ahead: Any) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("row 2")

    with pytest.raises(KeyError, match="row 2"):
        list(ahead(broken()))


def test_the_thread_ends_with_a_loop_that_is_left_early() -> None:
    before = threading.active_count()
    items = _by_thread(itertools.count())
    assert [next(items), next(items)] == [0, 1]
    assert threading.active_count() == before + 1
    items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def two_workers_equal_one_process(device: str, optimizer: str, norms: bool) -> None:
    x, y = checks.rows(37)
    store = ArrayStore()
    store.put({"x": x, "y": y})
    results = orca.run(devices.train, (device, optimizer, norms, store), workers=2)

    def clipped(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = checks.OPTIMIZERS[optimizer](model, config)
        made.register_step_pre_hook(
            lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) and None
        )
        return made

    model = devices.batch_norm_net({}) if norms else checks.net({})
    loss = checks.LOSSES["weights"]
    expected, _ = checks.train_plainly(
        x, y, loss=loss, optimizer=clipped, batch_size=7, epochs=9, model=model, device=device
    )
    expected.cpu()
    for stats, _, reason in results:
        assert reason == "gradients are joined over NCCL"
        assert sum(result[0][-1]["num_samples"] for result in results) == 37
        assert stats[-1]["train_loss"] < stats[0]["train_loss"]
    state = unpack(results[0][1])["models"][0]
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_workers_that_join_as_gpus_do_equal_one_process(optimizer: str, norms: bool) -> None:
    """The same steps with tensors of the CPU, and gloo in the place of NCCL."""
    two_workers_equal_one_process("cpu", optimizer, norms)


# --- on a GPU


@on_gpu
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_two_workers_of_one_gpu_equal_one_process(optimizer: str, norms: bool) -> None:
    """Gloo in the place of NCCL, which wants a GPU for each worker."""
    two_workers_equal_one_process("cuda:0", optimizer, norms)


@on_gpu
def test_nccl_forms_a_group_on_a_worker() -> None:
    assert orca.run(devices.joined_by_nccl, workers=1) == [[0.0, 1.0, 2.0, 3.0]]


@pytest.mark.skipif(GPUS < 2, reason="fewer than two GPUs on this machine")
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_worker_on_each_gpu_equals_one_process(optimizer: str, norms: bool) -> None:
    x, y = checks.rows(37)
    model = devices.batch_norm_net if norms else checks.net
    est = on_cuda(
        device="cuda",
        model=model,
        optimizer=checks.OPTIMIZERS[optimizer],
        sync_batchnorm=norms,
    )
    assert est.num_workers == GPUS
    for _ in range(2):  # The group stays.
        est.fit((x, y), epochs=5, batch_size=7)
    expected, _ = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=checks.OPTIMIZERS[optimizer],
        batch_size=7,
        epochs=10,
        model=model({}),
        device="cuda",
    )
    same(est.get_model(), expected.cpu(), 1e-9)
    est.shutdown()


@on_gpu
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam", "adamw", "whole-norm"])
def test_fifty_steps_equal_plain_torch_on_the_gpu(optimizer: str) -> None:
    """With a last batch of 2 rows; the second fit goes on with the optimizer's state."""
    est = on_cuda(optimizer=checks.OPTIMIZERS[optimizer])
    est.fit(checks.rows(37), epochs=5, batch_size=7)
    stats = est.fit(checks.rows(37), epochs=4, batch_size=7)
    assert [s["num_samples"] for s in stats] == [37] * 4
    same(est.get_model(), plain(checks.OPTIMIZERS[optimizer], 9))
    est.shutdown()


@on_gpu
@pytest.mark.parametrize("name", sorted(checks.LOSSES))
def test_every_loss_is_that_of_plain_torch_on_the_gpu(name: str) -> None:
    est = on_cuda(loss=checks.LOSSES[name])
    est.fit(checks.rows(37), epochs=4, batch_size=7)
    same(est.get_model(), plain(checks.OPTIMIZERS["sgd"], 4, loss=checks.LOSSES[name]))
    est.shutdown()


@on_gpu
def test_clipping_is_that_of_plain_torch_on_the_gpu() -> None:
    def clipped(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        made = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        made.register_step_pre_hook(
            lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05) and None
        )
        return made

    est = on_cuda()
    est.set_l2_norm_gradient_clipping(0.05)
    est.fit(checks.rows(37), epochs=3, batch_size=7)
    same(est.get_model(), plain(clipped, 3), 1e-9)
    est.shutdown()


@on_gpu
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_loss_that_is_not_finite_stops_or_skips_the_step_on_a_gpu(policy: str) -> None:
    x, y = checks.rows(12)
    x[10] = np.nan
    est = on_cuda()
    if policy == "raise":
        with pytest.raises(WorkerFailedError, match="rank 0, step 2: the loss is not finite"):
            est.fit((x, y), epochs=1, batch_size=4)
    else:
        stats = est.fit((x, y), epochs=1, batch_size=4, on_nan="skip")
        assert stats[0]["skipped_steps"] == 1
        expected, _ = checks.train_plainly(
            x[:8],
            y[:8],
            loss=nn.CrossEntropyLoss(),
            optimizer=checks.OPTIMIZERS["sgd"],
            batch_size=4,
            epochs=1,
        )
        same(est.get_model(), expected)
    est.shutdown()


@on_gpu
def test_a_convolutional_net_learns_what_it_learns_on_the_cpu() -> None:
    data = devices.images(512)
    found = {}
    for device in ("cpu", "cuda:0"):
        est = on_cuda(
            device=device,
            model=devices.lenet,
            optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.02),
            metrics=[Accuracy()],
        )
        stats = est.fit(data, epochs=3, batch_size=60)
        found[device] = (stats, est.predict(data[0]), est.evaluate(data), est.get_model())
        est.shutdown()
    (a, scores, metrics, model), (b, others, measured, other) = found.values()
    assert [s["train_loss"] for s in a] == pytest.approx([s["train_loss"] for s in b], rel=1e-4)
    np.testing.assert_allclose(scores, others, rtol=1e-2, atol=1e-3)
    assert float(metrics["val_loss"]) == pytest.approx(float(measured["val_loss"]), rel=1e-3)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-4)


@on_gpu
def test_evaluation_and_prediction_equal_those_of_the_cpu(tmp_path: Path) -> None:
    """The weights of one that was trained on a GPU, and a batch that is not full."""
    data = devices.images(300)
    est = on_cuda(model=devices.lenet, metrics=[Accuracy()])
    est.fit(data, epochs=2, batch_size=64)
    est.save(tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)  # No GPU is asked for.
    assert all(t.device.type == "cpu" for t in state["models"][0].values())
    here = checks.estimator(1, model=devices.lenet, metrics=[Accuracy()])
    here.load(tmp_path / "model.pt")
    np.testing.assert_allclose(
        est.predict(data[0], batch_size=64), here.predict(data[0]), rtol=1e-4, atol=1e-4
    )
    there, mine = est.evaluate(data, batch_size=64), here.evaluate(data)
    assert there["num_samples"] == mine["num_samples"] == 300
    assert float(there["val_loss"]) == pytest.approx(float(mine["val_loss"]), rel=1e-4)
    assert float(there["Accuracy"]) == pytest.approx(float(mine["Accuracy"]), abs=1e-4)
    est.shutdown()
    here.shutdown()


@on_gpu
def test_a_checkpoint_of_a_gpu_goes_on_on_the_cpu_and_back(tmp_path: Path) -> None:
    adam = checks.OPTIMIZERS["adam"]
    first = on_cuda(optimizer=adam, model_dir=str(tmp_path))
    first.fit(checks.rows(37), epochs=3, batch_size=7, checkpoint_trigger=SeveralIteration(18))
    first.shutdown()
    second = checks.estimator(2, optimizer=adam, model_dir=str(tmp_path))
    second.load_orca_checkpoint(str(tmp_path), version=18)
    second.fit(checks.rows(37), epochs=3, batch_size=7)
    state = second.get_state_dict()
    second.shutdown()
    third = on_cuda(optimizer=adam)
    third.load_state_dict(state)
    third.fit(checks.rows(37), epochs=3, batch_size=7)
    same(third.get_model(), plain(adam, 9, device="cpu"), 1e-9)
    third.shutdown()


@on_gpu
def test_weights_of_bfloat16_train() -> None:
    x, y = checks.rows(128, dtype="float32")
    y = (x[:, 0] > 0).astype(np.int64)
    est = on_cuda(
        model=devices.bfloat,
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        metrics=[Accuracy()],
    )
    stats = est.fit((x, y), epochs=20, batch_size=32)
    assert stats[-1]["train_loss"] < 0.5 * stats[0]["train_loss"]
    assert est.get_model().inner.first.weight.dtype is torch.bfloat16
    assert float(est.evaluate((x, y))["Accuracy"]) > 0.9
    est.shutdown()


class Remember(Callback):
    def after_train_iter(self, runner: Any) -> None:
        assert runner.output.is_cuda
        assert next(runner.model.parameters()).is_cuda


@on_gpu
def test_loaders_validation_callbacks_and_profiles_work_on_a_gpu() -> None:
    x, y = checks.rows(37)
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    est = on_cuda(metrics=[Accuracy()])
    stats = est.fit(
        DataLoader(dataset, batch_size=7),
        epochs=5,
        validation_data=(x, y),
        callbacks=[Remember()],
        profile=True,
    )
    same(est.get_model(), plain(checks.OPTIMIZERS["sgd"], 5))
    assert stats[-1]["val_num_samples"] == 37
    assert stats[-1]["profile"]["mean_fwd_s"] > 0
    est.shutdown()


@on_gpu
def test_a_loop_of_the_users_has_its_batches_on_the_gpu() -> None:
    est = on_cuda(training_operator_cls=devices.OwnStep)
    stats = est.fit(checks.rows(37), epochs=5, batch_size=7)
    assert stats[-1]["on_gpu"] == 1.0
    same(est.get_model(), plain(checks.OPTIMIZERS["sgd"], 5))
    est.shutdown()


@on_gpu
def test_sparse_gradients_are_joined_on_a_gpu() -> None:
    random = np.random.default_rng(1)
    x, y = random.integers(0, 9, 37), random.integers(0, 3, 37)

    def sgd(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.5)

    est = on_cuda(model=devices.sparse, optimizer=sgd)
    est.fit((x, y), epochs=3, batch_size=7)
    expected, _ = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=sgd,
        batch_size=7,
        epochs=3,
        model=devices.sparse({}),
        device="cuda",
    )
    same(est.get_model(), expected.cpu())
    est.shutdown()


@on_gpu
def test_an_instance_of_model_and_optimizer_goes_to_the_gpu_with_its_state() -> None:
    model = checks.net({})
    optimizer = checks.OPTIMIZERS["adam"](model, {})
    x, y = checks.rows(37)
    nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    optimizer.step()
    optimizer.zero_grad()
    est = on_cuda(model=model, optimizer=optimizer)
    est.fit((x, y), epochs=3, batch_size=7)
    expected, _ = checks.train_plainly(
        x,
        y,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda *_: optimizer,
        batch_size=7,
        epochs=3,
        model=model,
    )
    same(est.get_model(), expected, 1e-9)
    est.shutdown()


@on_gpu
def test_the_log_says_which_gpu_and_how_gradients_are_joined(
    caplog: pytest.LogCaptureFixture,
) -> None:
    est = on_cuda()
    with caplog.at_level(logging.INFO):  # Of the workers, too.
        est.fit(checks.rows(8), batch_size=8)
    (line,) = [r.getMessage() for r in caplog.records if "training on" in r.getMessage()]
    assert f"1 GPU ({torch.cuda.get_device_name(0)})" in line
    assert "nothing to join" in line
    est.shutdown()


@on_gpu
def test_too_many_workers_and_gpus_that_are_not_there_are_refused_at_once() -> None:
    with pytest.raises(InvalidArgumentError, match=f"workers_per_node is {GPUS + 1}"):
        on_cuda(device="cuda", workers_per_node=GPUS + 1)
    with pytest.raises(InvalidArgumentError, match=f"torch sees {GPUS} GPUs"):
        on_cuda(device=f"cuda:{GPUS}")
    est = on_cuda(device=torch.device("cuda"))
    assert est.num_workers == GPUS


@on_gpu
def test_workers_have_a_gpu_also_when_the_driver_uses_one() -> None:
    assert float(torch.ones(2, device="cuda").sum()) == 2.0
    assert orca.run(devices.cuda_state, workers=1) == [(False, 3.0)]


@on_gpu
def test_training_leaves_the_driver_without_a_gpu_of_its_own(private_env: dict[str, str]) -> None:
    """A program that forks after it has used CUDA would break."""
    script = """
    import torch, orca, checks_estimator as checks
    orca.init_orca_context("local", cores=1)
    est = checks.estimator(None, device="cuda")
    est.fit(checks.rows(20), batch_size=5)
    est.predict(checks.rows(20)[0])
    est.get_model()
    orca.stop_orca_context()
    assert not torch.cuda.is_initialized()
    import os
    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    assert os.waitpid(pid, 0)[1] == 0
    print("end of script")
    """
    env = private_env | {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "end of script" in done.stdout, done.stderr
