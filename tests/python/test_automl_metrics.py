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
OF_SCIKIT_LEARN = {
    "mae": reference.mean_absolute_error,
    "mse": reference.mean_squared_error,
    "rmse": lambda *given, **options: reference.mean_squared_error(*given, **options) ** 0.5,
    "msle": reference.mean_squared_log_error,
    "r2": reference.r2_score,
}


def rows(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.uniform(0.5, 5, shape), random.uniform(0.5, 5, shape)


def table(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "of"), OF_SCIKIT_LEARN.items())
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


def test_the_rmse_of_several_outputs_is_the_root_of_their_mean() -> None:
    truth, found = np.zeros((2, 2)), np.array([[3.0, 0.0], [3.0, 4.0]])
    value = metrics.RMSE(truth, found, multioutput="uniform_average")
    assert value == pytest.approx(((9 + 8) / 2) ** 0.5, rel=1e-15)
    assert isinstance(value, float)
    assert metrics.RMSE(truth, found).tolist() == [3.0, 8**0.5]


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


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("name", Evaluator.metrics_func)
def test_columns_of_one_are_the_same_as_none(name: str, count: int) -> None:
    random = np.random.default_rng(1)
    truth, found = random.uniform(0.5, 5, (2, count))
    if name == "accuracy":
        truth, found = random.integers(0, 2, count), random.uniform(size=count)
    expected = Evaluator.evaluate(name, truth, found)
    for more in (truth[:, None], truth[:, None, None]):
        value = Evaluator.evaluate(name, more, found)
        assert np.ravel(value) == np.ravel(expected)
        assert np.shape(value) == (() if name == "accuracy" else more.shape[1:])
    for more in (found[:, None], found[:, None, None]):
        value = Evaluator.evaluate(name, truth, more)
        assert (value, np.shape(value)) == (expected, ())
    if count > 1 and name in OF_SCIKIT_LEARN:
        assert expected == pytest.approx(OF_SCIKIT_LEARN[name](truth[:, None], found), rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 20])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("column", [False, True])
def test_accuracy_is_that_of_scikit_learn(count: int, classes: int, column: bool) -> None:
    random = np.random.default_rng(count)
    truth = random.integers(0, classes, (count, 1) if column else count)
    scores = random.normal(size=(count, classes))
    expected = reference.accuracy_score(truth, scores.argmax(axis=1))
    assert metrics.Accuracy(truth, scores) == expected
    assert metrics.Accuracy(truth, np.eye(classes)[scores.argmax(axis=1)]) == expected
    assert metrics.Accuracy(truth, scores.argmax(axis=1)[:, None]) == expected
    names = np.array(["a", "b", "c"])
    assert metrics.Accuracy(names[truth], names[scores.argmax(axis=1)]) == expected
    labels, others = random.integers(0, 2, (2, count, classes))
    others[0] = labels[0]
    assert metrics.Accuracy(labels, others) == reference.accuracy_score(labels, others)


def test_accuracy_takes_classes_probabilities_and_scores() -> None:
    assert metrics.Accuracy([0, 1, 1, 0], [0, 1, 0, 0]) == 0.75
    assert metrics.Accuracy([[0], [1], [1], [0]], [[0.2], [0.7], [0.4], [0.4]]) == 0.75
    assert metrics.Accuracy([0, 2, 1], [[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]) == 2 / 3
    assert metrics.Accuracy([1], [0.9]) == 1.0


def test_functions_are_metrics_too() -> None:
    assert Evaluator.evaluate(reference.max_error, [1.0, 2.0], [1.5, 4.0]) == 2.0


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
        (lambda: metrics.MAE(np.ones((4, 2)), np.ones(4)), r"\(4, 2\).*\(4,\)"),
        (lambda: metrics.MAE(np.ones((1, 4)), np.ones(4)), r"\(1, 4\).*\(4,\)"),
        (lambda: metrics.Accuracy([1, 2], [1]), "shape"),
        (lambda: metrics.Accuracy([], []), "no row"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            call()
    assert metrics.R2([1.0, 1.0], [1.0, 1.0]) == 1.0
    assert metrics.R2([1.0, 1.0], [1.0, 2.0]) == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", Evaluator.metrics_func)
def test_what_is_not_finite_has_no_metric(name: str, bad: float) -> None:
    for truth, found, said in (
        ([0.0, 1.0, 1.0], [0.0, bad, 1.0], "row 1 of y_pred"),
        ([bad, 1.0, 1.0], [0.0, 1.0, 1.0], "row 0 of y_true"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            Evaluator.evaluate(name, truth, found)


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(metrics).failed == 0
