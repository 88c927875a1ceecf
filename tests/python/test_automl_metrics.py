"""Metrics of ``orca.automl`` against scikit-learn, and against their definitions."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as reference

from orca.automl import metrics
from orca.automl.metrics import Evaluator
from orca.errors import InvalidArgumentError

SHAPES = [(1,), (20,), (20, 1), (20, 3), (20, 4, 2)]


def rows(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.uniform(0.5, 5, shape), random.uniform(0.5, 5, shape)


def table(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("mae", reference.mean_absolute_error),
        ("mse", reference.mean_squared_error),
        ("rmse", reference.root_mean_squared_error),
        ("msle", reference.mean_squared_log_error),
        ("r2", reference.r2_score),
    ],
)
def test_those_of_scikit_learn(name: str, of: Any, shape: tuple[int, ...]) -> None:
    truth, found = rows(shape)
    if name == "r2" and len(truth) < 2:
        pytest.skip("of one row there is no variance")
    for joined in ("raw_values", "uniform_average"):
        expected = of(table(truth), table(found), multioutput=joined)
        value = Evaluator.evaluate(name, truth, found, multioutput=joined)
        assert np.shape(value) == (shape[1:] if joined == "raw_values" else ())
        np.testing.assert_allclose(np.ravel(value), np.ravel(expected), rtol=1e-12)
    if name == "r2":
        value = metrics.R2(truth, found, multioutput="variance_weighted")
        expected = of(table(truth), table(found), multioutput="variance_weighted")
        assert value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_percentages(shape: tuple[int, ...]) -> None:
    truth, found = rows(shape)
    apart = truth - found
    both = np.abs(truth) + np.abs(found)
    expected = {
        "me": apart.mean(axis=0),
        "mpe": 100 * (apart / truth).mean(axis=0),
        "mape": 100 * np.abs(apart / truth).mean(axis=0),
        "mspe": 100 * ((apart / truth) ** 2).mean(axis=0),
        "smape": 100 * (np.abs(apart) / both).mean(axis=0),
        "mdape": 100 * np.median(np.abs(apart / truth), axis=0),
        "smdape": 100 * np.median(np.abs(apart) / both, axis=0),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(Evaluator.evaluate(name, truth, found), value, rtol=1e-8)
        joined = Evaluator.evaluate(name.upper(), truth, found, multioutput="uniform_average")
        assert joined == pytest.approx(float(np.mean(value)), rel=1e-8)


def test_accuracy_takes_classes_probabilities_and_scores() -> None:
    assert metrics.Accuracy([0, 1, 1, 0], [0, 1, 0, 0]) == 0.75
    assert metrics.Accuracy([[0], [1], [1], [0]], [[0.2], [0.7], [0.4], [0.4]]) == 0.75
    assert metrics.Accuracy([0, 2, 1], [[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]) == 2 / 3
    assert metrics.Accuracy([1], [0.9]) == 1.0


def test_names_modes_and_bad_input() -> None:
    assert {
        name for name in Evaluator.metrics_func if Evaluator.get_metric_mode(name) == "max"
    } == {
        "r2",
        "accuracy",
    }
    for call, message in (
        (lambda: Evaluator.evaluate("mze", [1], [1]), "metric mze is not supported; known: me"),
        (lambda: Evaluator.check_metric(""), "is no name"),
        (lambda: metrics.MAE([1, 2], [1]), r"\(2,\).*\(1,\)"),
        (lambda: metrics.MAE([], []), "no row"),
        (lambda: metrics.MAE([1], [1], multioutput="mean"), "raw_values"),
        (lambda: metrics.MSLE([-1.0], [1.0]), "not negative"),
        (lambda: metrics.Accuracy([1, 2], [1]), "shape"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            call()
    assert metrics.R2([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert metrics.R2([1.0, 1.0], [1.0, 2.0]) == 0.0


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(metrics).failed == 0
