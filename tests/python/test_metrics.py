"""Metrics against scikit-learn, plain formulas of torch, and the examples of the originals."""

from __future__ import annotations

import doctest
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import tensor
from torch.nn import functional as F

import orca.adapters.torch.metrics
import orca.learn.engine_metric
import orca.learn.metrics
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.learn import metrics as wanted
from orca.learn.engine_metric import EngineMetric
from orca.learn.pytorch import pytorch_metrics as pm

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
NAMES = [name for name in wanted.__all__ if name not in ("Metric", "CustomizedMetric")]
ON_ENGINE = {
    "Accuracy": "Top1Accuracy",
    "BinaryAccuracy": "Top1Accuracy",
    "CategoricalAccuracy": "Top1Accuracy",
    "SparseCategoricalAccuracy": "Top1Accuracy",
    "Top5Accuracy": "Top5Accuracy",
    "AUC": "AucScore",
    "MAE": "MAE",
    "MSE": "MSE",
}


def binary(rng: np.random.Generator, rows: int) -> Arrays:
    """Scores with ties, and labels of both classes."""
    labels = rng.integers(0, 2, rows)
    labels[:2] = 0, 1
    return np.round(rng.random(rows), 2), labels


def clipped_binary(rng: np.random.Generator, rows: int) -> Arrays:
    scores, labels = binary(rng, rows)
    return np.clip(scores, 0.01, 0.99), labels


def classes(rng: np.random.Generator, rows: int) -> Arrays:
    scores = rng.random((rows, 7)) + 1e-3
    return scores / scores.sum(axis=1, keepdims=True), rng.integers(0, 7, rows)


def one_hot(rng: np.random.Generator, rows: int) -> Arrays:
    scores, labels = classes(rng, rows)
    return scores, np.eye(7)[labels]


def multilabel(rng: np.random.Generator, rows: int) -> Arrays:
    labels = rng.integers(0, 2, (rows, 3))
    labels[0], labels[1] = 0, 1
    return np.round(rng.random((rows, 3)), 2), labels


def numbers(rng: np.random.Generator, rows: int) -> Arrays:
    return rng.normal(size=(rows, 4)) * 1e3, rng.normal(size=(rows, 4))


def positives(rng: np.random.Generator, rows: int) -> Arrays:
    return rng.random((rows, 3)) + 0.1, rng.random((rows, 3)) + 0.1


def kl_divergence(p: Any, t: Any) -> float:
    p, t = torch.from_numpy(p), torch.from_numpy(t)
    return float((t * torch.log(t / p + 1e-7)).sum() / len(t))


def poisson(p: Any, t: Any) -> float:
    p, t = torch.from_numpy(p), torch.from_numpy(t)
    return float(F.poisson_nll_loss(p, t, log_input=False, eps=1e-7))


# name: the data, and what it equals
REFERENCES: dict[str, list[tuple[Callable[..., Arrays], Callable[..., Any]]]] = {
    "Accuracy": [
        (binary, lambda p, t: sk.accuracy_score(t, p >= 0.5)),
        (classes, lambda p, t: sk.accuracy_score(t, p.argmax(1))),
    ],
    "SparseCategoricalAccuracy": [(classes, lambda p, t: sk.accuracy_score(t, p.argmax(1)))],
    "CategoricalAccuracy": [(one_hot, lambda p, t: sk.accuracy_score(t.argmax(1), p.argmax(1)))],
    "BinaryAccuracy": [(binary, lambda p, t: sk.accuracy_score(t, p > 0.5))],
    "Top5Accuracy": [
        (classes, lambda p, t: sk.top_k_accuracy_score(t, p, k=5, labels=np.arange(7)))
    ],
    "AUC": [
        (binary, lambda p, t: sk.roc_auc_score(t, p)),
        (multilabel, lambda p, t: sk.roc_auc_score(t, p)),
    ],
    "MAE": [(numbers, lambda p, t: sk.mean_absolute_error(t, p))],
    "MSE": [(numbers, lambda p, t: sk.mean_squared_error(t, p))],
    "BinaryCrossEntropy": [(clipped_binary, lambda p, t: sk.log_loss(t, p))],
    "CategoricalCrossEntropy": [
        (one_hot, lambda p, t: sk.log_loss(t.argmax(1), p, labels=np.arange(7)))
    ],
    "SparseCategoricalCrossEntropy": [
        (classes, lambda p, t: sk.log_loss(t, p, labels=np.arange(7)))
    ],
    "KLDivergence": [(positives, kl_divergence)],
    "Poisson": [(positives, poisson)],
    "ROC": [(binary, lambda p, t: sk.roc_curve(t, p, drop_intermediate=False))],
    "PrecisionRecallCurve": [(binary, lambda p, t: sk.precision_recall_curve(t, p))],
    "F1Score": [
        (binary, lambda p, t: sk.f1_score(t, p >= 0.5)),
        (multilabel, lambda p, t: sk.f1_score(t, p >= 0.5, average="micro")),
        (classes, lambda p, t: sk.f1_score(t, p.argmax(1), average="micro")),
    ],
    "Precision": [
        (binary, lambda p, t: sk.precision_score(t, p >= 0.5)),
        (multilabel, lambda p, t: sk.precision_score(t, p >= 0.5, average="micro")),
        (classes, lambda p, t: sk.precision_score(t, p.argmax(1), average="micro")),
    ],
    "Recall": [
        (binary, lambda p, t: sk.recall_score(t, p >= 0.5)),
        (multilabel, lambda p, t: sk.recall_score(t, p >= 0.5, average="micro")),
        (classes, lambda p, t: sk.recall_score(t, p.argmax(1), average="micro")),
    ],
}


CASES = [(name, *pair) for name, pairs in REFERENCES.items() for pair in pairs]


def value(metric: Any) -> Any:
    computed = metric.compute()
    if isinstance(computed, tuple):
        return [part.numpy() for part in computed]
    assert computed.shape == ()
    return float(computed)


def assert_close(got: Any, expected: Any, tolerance: float = 1e-12) -> None:
    if not isinstance(got, list):
        got, expected = [got], [expected]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_every_metric_has_a_reference() -> None:
    assert sorted(REFERENCES) == sorted(NAMES)


@pytest.mark.parametrize(("name", "make", "reference"), CASES)
@pytest.mark.parametrize("rows", [8, 9, 64, 1000])
def test_equals_the_reference_however_the_rows_are_split(
    name: str, make: Callable[..., Arrays], reference: Callable[..., Any], rows: int
) -> None:
    rng = np.random.default_rng(rows)
    preds, targets = make(rng, rows)
    expected = reference(preds, targets)
    whole = getattr(wanted, name)().get_metric("pytorch")
    whole(torch.from_numpy(preds), torch.from_numpy(targets))
    assert_close(value(whole), list(expected) if isinstance(expected, tuple) else expected)
    # Workers, the empty ones too, with batches of their own; numpy and torch.
    for workers in (1, 2, 3, 5):
        cuts = np.sort(rng.integers(0, rows + 1, workers - 1))
        parts = []
        for indices in np.split(rng.permutation(rows), cuts):
            part = getattr(wanted, name)().get_metric("pytorch")
            for batch in np.array_split(indices, 3):
                part(preds[batch], torch.from_numpy(targets[batch]))
            parts.append(part.state())
        merged = getattr(wanted, name)().get_metric("pytorch")
        for state in parts:
            merged.merge(state)
        assert_close(value(merged), value(whole), tolerance=0)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.filterwarnings("ignore:No positive class found:UserWarning")
def test_curves_without_one_of_the_classes_are_as_in_scikit_learn(label: int) -> None:
    preds, targets = np.array([0.1, 0.7, 0.7, 0.4]), np.full(4, label)
    roc, curve, area = pm.ROC(), pm.PrecisionRecallCurve(), pm.AUC()
    for metric in (roc, curve, area):
        metric(preds, targets)
    assert_close(value(roc), sk.roc_curve(targets, preds, drop_intermediate=False))
    assert_close(value(curve), sk.precision_recall_curve(targets, preds))
    assert math.isnan(value(area))


def test_cross_entropies_clip_as_torch_would() -> None:
    preds = tensor([[0.0, 1.0], [0.3, 0.7]], dtype=torch.float64)
    clipped = preds.clamp(1e-7, 1 - 1e-7)
    targets = tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    cases = [
        (pm.BinaryCrossEntropy(), targets, F.binary_cross_entropy(clipped, targets)),
        (pm.CategoricalCrossEntropy(), targets, F.nll_loss(clipped.log(), tensor([0, 1]))),
        (
            pm.SparseCategoricalCrossEntropy(),
            tensor([0, 1]),
            F.nll_loss(clipped.log(), tensor([0, 1])),
        ),
    ]
    for metric, labels, expected in cases:
        metric(preds, labels)
        assert float(metric.compute()) == pytest.approx(float(expected), rel=1e-9)
    assert preds[0, 0] == 0.0  # What was given is left as it is.


def test_the_examples_of_the_originals_hold() -> None:
    accuracy = pm.Accuracy()
    accuracy(tensor([0, 2, 3, 4]), tensor([1, 2, 3, 4]))
    assert accuracy.compute() == 0.75
    accuracy(tensor([0, 2, 3, 4]), tensor([1, 1, 2, 4]))
    assert accuracy.compute() == 0.5
    scores = tensor([0.98, 1, 0, 0.6])
    binary_accuracy = pm.BinaryAccuracy()
    binary_accuracy(scores, tensor([1, 1, 0, 0]))
    assert binary_accuracy.compute() == 0.75
    binary_accuracy(scores, tensor([1, 1, 0, 0]), threshold=0.7)
    assert binary_accuracy.compute() == 0.875
    sparse = pm.SparseCategoricalAccuracy()
    rows = tensor([[0.1, 0.9, 0.8], [0.05, 0.95, 0]])
    sparse(rows, tensor([[2], [1]]))
    assert sparse.compute() == 0.5
    sparse(rows, tensor([2, 0]))
    assert sparse.compute() == 0.25
    area = pm.AUROC()
    area(tensor([0.3, 0.4, 0.2, 0.5, 0.6, 0.7, 0.8]), tensor([0, 1, 0, 1, 1, 1, 1.0]))
    assert area.compute() == 1.0
    roc = pm.ROC()
    roc(tensor([0.3, 0.6, 0.7, 0.8]), tensor([0, 1, 1, 1.0]))
    fpr, tpr, thresholds = roc.compute()
    assert (fpr[4], tpr[4]) == (1.0, 1.0)
    assert abs(thresholds[4] - 0.3) < 1e-6
    divergence = pm.KLDivergence()
    divergence(tensor([[0.6, 0.4], [0.4, 0.6]]), tensor([[0, 1], [0, 0]]))
    assert abs(divergence.compute() - 0.45814) < 1e-5
    poisson_metric = pm.Poisson()
    poisson_metric(tensor([[1, 1], [0, 0]]), tensor([[0, 1], [0, 0]]))
    assert abs(poisson_metric.compute() - 0.49999997) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_of_any_precision_and_layout_are_taken(dtype: torch.dtype) -> None:
    preds = tensor([[1.0, 2.0], [3.0, 4.0]], dtype=dtype, requires_grad=True)
    metric = pm.MSE()
    metric(preds.t(), torch.zeros(2, 2, dtype=torch.int16))
    assert metric.compute() == 7.5
    metric(np.full((2, 2), 1, np.float16), np.zeros((4, 2), np.uint32)[::2])
    assert metric.compute() == 4.25


def test_values_are_float64_and_nan_of_nothing() -> None:
    metric = pm.MAE()
    assert metric.compute().dtype == torch.float64
    assert math.isnan(metric.compute())
    metric(torch.empty(0, 3), torch.empty(0, 3))
    assert math.isnan(metric.compute())
    metric(tensor([0.1]), tensor([0.0]))
    metric.reset()
    assert math.isnan(metric.compute())


def test_arrays_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="complex64"):
        pm.MAE()(np.zeros(2, np.complex64), np.zeros(2))
    with pytest.raises(InvalidArgumentError, match=r"same shape.*\(2, 3\) and \(3\)"):
        pm.MAE()(np.zeros((2, 3)), np.zeros(3))


def test_damaged_states_are_refused() -> None:
    metric = pm.AUC()
    metric(np.array([0.1, 0.2]), np.array([0, 1]))
    state = metric.state()
    for bad in (b"", b"hello", state[:-1], state + b"x", pm.MAE().state()):
        with pytest.raises(InvalidArgumentError, match="not a state of the metric 'AUC'"):
            metric.merge(bad)
    assert metric.compute() == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_metrics_can_be_pickled_with_what_they_saw(name: str) -> None:
    preds, targets = REFERENCES[name][0][0](np.random.default_rng(1), 20)
    metric = getattr(wanted, name)().get_metric("pytorch")
    metric(preds, targets)
    again = pickle.loads(pickle.dumps(metric))
    again.merge(getattr(wanted, name)().get_metric("pytorch").state())
    assert_close(value(again), value(metric), tolerance=0)


def test_threads_may_share_a_metric() -> None:
    metric = pm.MAE()
    ones = torch.ones(1000)

    def add(_: int) -> None:
        for _ in range(50):
            metric(ones, torch.zeros(1000))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert metric.compute() == 1.0
    engine = EngineMetric("MAE")
    engine.merge(metric.state())
    assert engine.value() == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_names_are_those_of_the_backend(name: str) -> None:
    metric = getattr(wanted, name)()
    assert metric.get_name() == name
    assert metric.engine_name == ON_ENGINE.get(name)
    if name in ON_ENGINE:
        assert metric.get_metric().name == ON_ENGINE[name]
    else:
        with pytest.raises(InvalidArgumentError, match="not implemented"):
            metric.get_metric("bigdl")
    assert isinstance(metric.get_metric("PyTorch"), pm.PytorchMetric)
    for backend in ("tf", "mxnet"):
        with pytest.raises(InvalidArgumentError, match="not implemented"):
            metric.get_metric(backend)
    with pytest.raises(InvalidArgumentError, match=r"backend should be one of .* but got jax"):
        metric.get_metric("jax")


def test_the_area_of_bigdl_is_estimated_from_thresholds() -> None:
    preds, targets = binary(np.random.default_rng(3), 5000)
    thresholds = np.float32([-1e-7, *((i + 1) / 19 for i in range(1, 19)), 1 + 1e-7])
    accepted = preds.astype(np.float32)[:, None] >= thresholds
    tpr = (accepted[targets == 1].sum(0) + 1e-6) / ((targets == 1).sum() + 1e-6)
    fpr = accepted[targets == 0].sum(0) / ((targets == 0).sum() + 1e-6)
    expected = ((tpr[:-1] + tpr[1:]) * (fpr[:-1] - fpr[1:])).sum() / 2
    metric = wanted.AUC(20).get_metric("bigdl")
    for part in np.array_split(np.arange(5000), 7):
        metric(preds[part].astype(np.float32), targets[part])
    assert metric.compute() == pytest.approx(expected, rel=1e-12)
    assert metric.compute() == pytest.approx(sk.roc_auc_score(targets, preds), abs=0.01)
    with pytest.raises(InvalidArgumentError, match="threshold_num 1 "):
        wanted.AUC(1).get_metric("bigdl")


def test_labels_may_begin_with_one_under_bigdl_only() -> None:
    metric = wanted.Accuracy(zero_based_label=False).get_metric("bigdl")
    metric(np.eye(3), np.array([1, 2, 1]))
    assert metric.compute() == pytest.approx(2 / 3)
    with pytest.raises(InvalidArgumentError, match="zero_based_label"):
        wanted.Accuracy(zero_based_label=False).get_metric("pytorch")


def row_error(preds: Any, targets: Any) -> Any:
    return (preds - targets).abs().mean()


def test_a_function_is_averaged_by_rows_under_its_own_name() -> None:
    rng = np.random.default_rng(4)
    preds, targets = torch.from_numpy(rng.random(101)), torch.from_numpy(rng.random(101))
    whole = wanted.Metric.convert_metrics_dict([row_error], "pytorch")
    assert list(whole) == ["row_error"]
    parts = []
    for worker in range(3):
        metric = wanted.Metric.convert_metrics_list(row_error, "pytorch")[0]
        for begin in range(worker * 40, min(worker * 40 + 40, 101), 16):
            end = min(begin + 16, worker * 40 + 40)
            metric(preds[begin:end], targets[begin:end])
        parts.append(metric.state())
    metric(preds[:0], targets[:0])  # Nothing of nothing.
    for state in parts:
        whole["row_error"].merge(state)
    assert float(whole["row_error"].compute()) == pytest.approx(
        float(row_error(preds, targets)), rel=1e-12
    )


def test_a_function_returns_one_number() -> None:
    metric = wanted.Metric.convert_metrics_list(lambda p, t: p - t, "pytorch")[0]
    metric(tensor([1.0]), tensor([0.5]))
    assert metric.compute() == 0.5
    with pytest.raises(InvalidArgumentError, match=r"'<lambda>' returned .*\(2,\).*one number"):
        metric(tensor([1.0, 2.0]), tensor([0.5, 1.0]))


def test_functions_see_what_they_were_given() -> None:
    seen = []

    def first_output(preds: Any, targets: Any) -> float:
        seen.append((preds, targets))
        return 2.0

    metric = wanted.Metric.convert_metrics_list(first_output, "pytorch")[0]
    preds, targets = [torch.ones(3), torch.ones(3, 2)], {"a": np.zeros(3)}
    metric(preds, targets)
    assert seen[0][0] is preds
    assert seen[0][1] is targets
    assert metric.compute() == 2.0


def test_one_metric_or_a_list_is_taken_and_nothing_else() -> None:
    convert_list, convert_dict = (
        wanted.Metric.convert_metrics_list,
        wanted.Metric.convert_metrics_dict,
    )
    assert convert_list(None) is None
    assert convert_dict(None) == {}
    assert len(convert_list(wanted.MAE(), "pytorch")) == 1
    assert list(convert_dict([wanted.MAE(), wanted.ROC(), row_error], "pytorch")) == [
        "MAE",
        "ROC",
        "row_error",
    ]
    for bad in ("accuracy", ["accuracy"], [wanted.MAE(), "accuracy"]):
        message = "Only orca metrics and customized functions are supported, but get str"
        with pytest.raises(InvalidArgumentError, match=message):
            convert_list(bad)
        with pytest.raises(ValueError, match=message):
            convert_dict(bad, "pytorch")
    with pytest.raises(InvalidArgumentError, match="two metrics have the name 'row_error'"):
        convert_dict([row_error, row_error], "pytorch")


def test_a_metric_of_a_users_own_works_and_says_what_it_lacks() -> None:
    class Largest(pm.PytorchMetric):
        def __init__(self) -> None:
            self.seen = -math.inf

        def __call__(self, preds: Any, targets: Any) -> None:
            self.seen = max(self.seen, float(preds.max()))

        def compute(self) -> Any:
            return tensor(self.seen)

    class LargestPrediction(wanted.Metric):
        def get_pytorch_metric(self) -> pm.PytorchMetric:
            return Largest()

        def get_name(self) -> str:
            return "largest"

    metric = wanted.Metric.convert_metrics_dict(LargestPrediction(), "pytorch")["largest"]
    metric(tensor([1.0, 3.0]), tensor([0.0, 0.0]))
    assert metric.compute() == 3.0
    with pytest.raises(FailedPreconditionError, match="Largest has no state"):
        metric.state()


@pytest.mark.parametrize(
    "module",
    [orca.learn.metrics, orca.learn.engine_metric, orca.adapters.torch.metrics, pm],
)
def test_the_examples_in_the_docstrings_run(module: Any) -> None:
    result = doctest.testmod(module, verbose=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_metrics_load_torch_when_it_is_needed_and_tell_when_it_is_missing() -> None:
    code = """
import sys
sys.modules["torch"] = None
from orca.learn.metrics import MAE
MAE().get_metric("bigdl")([1.0], [2.0])
for load in (lambda: MAE().get_metric("pytorch"), lambda: __import__("orca.learn.pytorch.pytorch_metrics")):
    try:
        load()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("pip install torch") == 2, done.stderr
