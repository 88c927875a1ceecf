"""Searches of Keras models, each script in a process of its own that has TensorFlow beside our environment.

python scripts_keras.py checks FOLDER [NAME...]   functions check_*, in one context; prints what each raised, as JSON
python scripts_keras.py killed FOLDER             a search of some trials, which may be killed
python scripts_keras.py seed_004 FOLDER           the calls of seed 004, under both old roots
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orca
from orca.automl import hp
from orca.automl.auto_estimator import AutoEstimator
from orca.automl.model.base_keras_model import KerasBaseModel, KerasModelBuilder
from orca.automl.search import SearchEngineFactory
from orca.data import XShards
from orca.errors import FailedPreconditionError, InvalidArgumentError

FOLDER = Path(sys.argv[2])


def rows(count: int = 96, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 4))
    return x, x @ np.array([1.0, -2.0, 0.5, 0.0]) + 1.0


def linear(config: dict[str, Any]) -> Any:
    """Not built: it learns from its rows how many inputs it has."""
    import keras

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(config["lr"]), metrics=["mse", "mae"])
    return model


def deep(config: dict[str, Any]) -> Any:
    import keras

    layers = [keras.layers.Input((4,)), keras.layers.Dense(8, "relu")]
    layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(loss="mse", optimizer=keras.optimizers.Adam(config["lr"]), metrics=["mse"])
    return model


def weight(config: dict[str, Any]) -> Any:
    """One weight, 0 at first. All rows are (1, 1), so that its way to 1 is known: see ``losses``."""
    import keras

    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    model = keras.Sequential([keras.layers.Input((1,)), *layers])
    optimizer = keras.optimizers.SGD(config["lr"], momentum=config.get("momentum", 0.0))
    model.compile(loss="mse", optimizer=optimizer)
    return model


def ones(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((count, 1), np.float32), np.ones((count, 1), np.float32)


def losses(config: dict[str, Any], epochs: int, steps: int) -> list[float]:
    """What ``weight`` has after each epoch of so many steps, by the formula of SGD."""
    value, speed, found = 0.0, 0.0, []
    for _ in range(epochs):
        for _ in range(steps):
            speed = config.get("momentum", 0.0) * speed - config["lr"] * 2 * (value - 1)
            value += speed
        found.append((value - 1) ** 2)
    return found


def auto(name: str, creator: Callable[..., Any] = linear, **more: Any) -> AutoEstimator:
    return AutoEstimator.from_keras(model_creator=creator, logs_dir=str(FOLDER), name=name, **more)


RATES = {"lr": hp.grid_search([1e-5, 0.1])}


# --- what trials learn


def check_the_better_rate_wins_without_tensorflow_in_the_driver() -> None:
    est = auto("wins")
    validation = rows(64, seed=1)
    metric = "mean_squared_error"  # The model calls it mse.
    est.fit(rows(), epochs=4, validation_data=validation, metric=metric, search_space=RATES, seed=1)
    assert [trial.state for trial in est.trials] == ["finished", "finished"]
    assert est.get_best_config() == {"lr": 0.1}
    assert {"tensorflow", "keras", "torch"}.isdisjoint(sys.modules)
    model = est.get_best_model()
    assert "tensorflow" in sys.modules
    found = model.predict(validation[0], verbose=0)[:, 0]
    value = est.get_best_trial().value
    assert value == pytest.approx(np.mean((found - validation[1]) ** 2), rel=1e-4)
    assert value < 0.5 < max(trial.value for trial in est.trials)
    for folder in (FOLDER / "wins").glob("train_func_*"):
        lines = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
        assert [line["training_iteration"] for line in lines] == [1, 2, 3, 4]
        with np.load(folder / "best.ckpt") as file:  # Arrays alone: nothing in it can run.
            assert file["0"].shape == (4, 1)
            assert file["1"].shape == (1,)


def check_a_model_with_state_is_the_one_that_was_measured() -> None:
    import keras

    est = auto("state", deep)
    space = {"lr": hp.loguniform(1e-3, 1e-1), "batch_size": 16}
    est.fit(rows(), epochs=3, validation_data=rows(64, 1), search_space=space, n_sampling=2, seed=3)
    model = est.get_best_model()
    assert isinstance(model, keras.Model)
    # No metric: the mean loss.
    loss = model.evaluate(*rows(64, 1), verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(est.get_best_trial().value, rel=1e-5)


def check_batches_have_32_rows_or_batch_size() -> None:
    est = auto("batches", weight)
    space = {"lr": hp.grid_search([0.05])}
    est.fit(ones(80), epochs=2, validation_data=ones(8), search_space=space)
    expected = losses({"lr": 0.05}, 2, 3)
    assert [value for _, value in est.trials[0].reports] == pytest.approx(expected, rel=1e-4)
    est = auto("whole", weight)
    space = {"lr": 0.05, "batch_size": hp.grid_search([80])}
    est.fit(ones(80), epochs=2, validation_data=ones(8), search_space=space)
    expected = losses({"lr": 0.05}, 2, 1)
    assert [value for _, value in est.trials[0].reports] == pytest.approx(expected, rel=1e-4)


def check_paused_trials_keep_weights_and_momentum() -> None:
    """More than a worker keeps in mind, so that most go on from shared memory."""
    for scheduler in ("hyperband", "async_hyperband"):
        est = auto(scheduler, weight)
        est.fit(
            ones(32),
            epochs=4,
            validation_data=ones(8),
            search_space={"lr": hp.loguniform(1e-4, 0.1), "momentum": 0.5},
            n_sampling=7,
            scheduler=scheduler,
            scheduler_params={"max_t": 4, "reduction_factor": 2},
            seed=5,
        )
        lengths = [len(trial.reports) for trial in est.trials]
        assert len(lengths) == 7
        assert max(lengths) == 4
        assert sum(lengths) < 7 * 4
        for trial in est.trials:
            assert [step for step, _ in trial.reports] == list(range(1, len(trial.reports) + 1))
            expected = losses(trial.config, len(trial.reports), 1)
            assert [value for _, value in trial.reports] == pytest.approx(expected, rel=1e-3)


HALF_CLONED = {
    "quantile_fraction": 0.5,
    "synch": True,
    "hyperparam_mutations": {"lr": [0.0, 0.1]},
}


def check_clones_take_over_weights() -> None:
    est = auto("pbt", weight)
    est.fit(
        ones(32),
        epochs=6,
        validation_data=ones(8),
        search_space={"lr": hp.grid_search([0.0, 0.1])},
        n_sampling=2,
        scheduler="pbt",
        scheduler_params=HALF_CLONED | {"perturbation_interval": 2},
        seed=5,
    )
    assert [trial.reports[-1][0] for trial in est.trials] == [6] * 4
    # Who learned nothing, and then in one epoch more than one epoch teaches (0.64).
    jumps = [
        trial.number
        for trial in est.trials
        for (_, before), (_, after) in zip(trial.reports[:-1], trial.reports[1:], strict=True)
        if before == 1.0 and after < 0.6
    ]
    assert len(jumps) == 2


def check_clones_of_models_that_learn_their_shape_from_rows() -> None:
    est = auto("unbuilt")
    est.fit(
        rows(),
        epochs=4,
        validation_data=rows(8),
        metric="mse",
        search_space={"lr": hp.grid_search([0.0, 0.1])},
        n_sampling=2,
        scheduler="pbt",
        scheduler_params=HALF_CLONED | {"perturbation_interval": 1},
        seed=5,
    )
    assert [trial.state for trial in est.trials] == ["finished"] * 4, est.trials
    assert sum(trial.clones for trial in est.trials) > 1


# --- what is measured


def check_functions_measure_and_a_threshold_ends_a_trial() -> None:
    def error(truth: np.ndarray, found: np.ndarray) -> float:
        assert truth.shape == found.shape == (64, 1)
        return float(np.mean((truth - found) ** 2))

    est = auto("function")
    est.fit(
        rows(),
        epochs=50,
        validation_data=rows(64, 1),
        metric=error,
        metric_mode="min",
        metric_threshold=0.5,
        search_space={"lr": 0.05},
        seed=1,
    )
    (trial,) = est.trials
    assert trial.state == "finished"
    assert len(trial.reports) < 50
    assert trial.reports[-1][1] <= 0.5 < min(value for _, value in trial.reports[:-1])


def check_without_validation_data_the_training_rows_decide() -> None:
    def error(truth: np.ndarray, found: np.ndarray) -> float:
        return float(np.mean((truth - found) ** 2))

    for name, metric, value in (
        ("loss", "mean_loss", 1.0),  # Before its only step.
        ("function", error, losses({"lr": 0.1}, 1, 1)[0]),
        ("name", "mae", np.sqrt(losses({"lr": 0.1}, 1, 1)[0])),
    ):
        est = auto(f"training-{name}", weight)
        with pytest.warns(UserWarning, match="training rows"):
            est.fit(ones(8), metric=metric, mode="min", search_space={"lr": 0.1})
        assert est.get_best_trial().value == pytest.approx(value, rel=1e-5)


# --- data


def check_data_of_all_kinds_gives_the_same_trial() -> None:
    import pandas as pd

    x, y = rows()
    columns = {f"x{i}": x[:, i] for i in range(4)}
    frame = pd.DataFrame({**columns, "y": y})
    names = {"feature_cols": list(columns), "label_cols": ["y"]}
    shards = XShards.partition({"x": x, "y": y}, num_shards=2)
    found = {}
    for name, data, more in (
        ("arrays", (x, y), {}),
        ("creator", lambda config: (x, y), {}),
        ("frame", frame, names),
        ("shards", shards, {}),
    ):
        est = auto(f"data-{name}")
        given = {"validation_data": data, "metric": "mse", "search_space": {"lr": 0.1}, "seed": 2}
        est.fit(data, epochs=2, **given, **more)
        found[name] = est.trials[0].reports
        assert len(found[name]) == 2
    assert all(reports == found["arrays"] for reports in found.values()), found


def check_one_dimension_becomes_a_column() -> None:
    x = np.linspace(-1, 1, 64)
    est = auto("column")
    space = {"lr": 0.3, "batch_size": 8}
    est.fit((x, 2 * x), 5, (x, 2 * x), metric="mse", search_space=space, seed=1)
    kernel, _ = est.get_best_model().get_weights()
    assert kernel.shape == (1, 1)
    assert kernel[0, 0] == pytest.approx(2, abs=0.1)


def check_creators_of_datasets() -> None:
    def creator(config: dict[str, Any]) -> Any:
        import tensorflow as tf

        x, y = rows()
        return tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y)).batch(config["batch"])

    def spread(truth: np.ndarray, found: np.ndarray) -> float:
        assert truth.shape == found.shape == (96, 1)
        return float(np.mean((truth - found) ** 2))

    for metric in ("mse", spread):
        est = auto(f"dataset-{metric}")
        space = {"lr": 0.05, "batch": hp.grid_search([16, 32])}
        est.fit(
            creator,
            3,
            validation_data=creator,
            metric=metric,
            mode="min",
            search_space=space,
            seed=1,
        )
        x, y = rows()
        found = est.get_best_model().predict(x, verbose=0)[:, 0]
        assert np.mean((found - y) ** 2) == pytest.approx(est.get_best_trial().value, rel=1e-4)


def check_columns_go_to_the_inputs_of_a_model() -> None:
    import pandas as pd

    def two(config: dict[str, Any]) -> Any:
        import keras

        inputs = [keras.Input((1,)), keras.Input((1,))]
        joined = keras.layers.Concatenate()(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(joined))
        model.compile(loss="mse", optimizer=keras.optimizers.SGD(config["lr"]))
        return model

    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=64), "b": random.normal(size=64)})
    frame["y"] = 2 * frame["a"] - frame["b"]
    est = auto("two", two)
    est.fit(
        frame,
        epochs=12,
        validation_data=frame,
        feature_cols=["a", "b"],
        label_cols="y",
        search_space={"lr": 0.2},
        seed=1,
    )
    assert est.get_best_trial().value < 0.01
    kernel = est.get_best_model().get_weights()[0][:, 0]
    assert kernel == pytest.approx([2, -1], abs=0.1)


def check_frames_of_spark() -> None:
    x, y = rows()
    session = orca.OrcaContext.get_spark_session()
    table = [(*map(float, row), float(value)) for row, value in zip(x, y, strict=True)]
    frame = session.createDataFrame(table, ["a", "b", "c", "d", "y"])
    est = auto("spark")
    given = {"feature_cols": ["a", "b", "c", "d"], "label_cols": "y", "search_space": {"lr": 0.1}}
    est.fit(frame, epochs=2, validation_data=frame, metric="mse", **given)
    found = est.get_best_model().predict(x, verbose=0)[:, 0]
    assert np.mean((found - y) ** 2) == pytest.approx(est.get_best_trial().value, rel=1e-4)


# --- models by hand, and the old engine


def check_a_built_model_trains_as_plain_keras_does() -> None:
    import keras
    import tensorflow as tf

    data, held = rows(), rows(50, 1)
    built = (4,)
    config = {"lr": 0.05, "batch_size": 96}  # A batch has all rows: their order is nothing.
    model = KerasModelBuilder(momentum).build(config)
    plain = momentum(config)
    model.model.build((None, *built))
    plain.build((None, *built))
    plain.set_weights(model.model.get_weights())
    plain.fit(*data, batch_size=96, epochs=3, verbose=0)
    found = model.fit_eval(data, held, epochs=2, metric="mean_squared_error")
    assert set(found) == {"mean_squared_error"}
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(96)
    found = model.fit_eval(lambda config: dataset, held, metric="mse")
    expected = plain.predict(held[0], verbose=0)
    np.testing.assert_allclose(model.predict(held[0], batch_size=7), expected, rtol=1e-5, atol=1e-6)
    error = np.mean((expected[:, 0] - held[1]) ** 2)
    assert found["mse"] == pytest.approx(error, rel=1e-5)
    assert model.evaluate(*held, multioutput="uniform_average") == pytest.approx([error], rel=1e-5)
    # Momentum is part of the file: both go on in the same way.
    model.save(FOLDER / "model.ckpt")
    again = KerasModelBuilder(momentum).build_from_ckpt(str(FOLDER / "model.ckpt"))
    assert again.config == config
    for each in (model, again):
        each.fit_eval(data, held)
    plain.fit(*data, batch_size=96, verbose=0)
    expected = plain.predict(held[0], verbose=0)
    for each in (model, again):
        np.testing.assert_allclose(each.predict(held[0]), expected, rtol=1e-5, atol=1e-6)
    own = model.fit_eval(
        data, held, metric_func=lambda truth, got: float(np.abs(truth - got).max())
    )
    assert list(own) == ["<lambda>"]
    # Without validation data: the loss of the training rows before the step.
    before = float(np.mean((model.predict(data[0])[:, 0] - data[1]) ** 2))
    assert model.fit_eval(data) == pytest.approx({"loss": before}, rel=1e-4)
    # Dropout draws when it is asked to.
    noisy = KerasModelBuilder(deep).build({"lr": 0.01})
    keras.utils.set_random_seed(1)
    first, second = (noisy.predict(held[0], mc=True) for _ in range(2))
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(noisy.predict(held[0]), noisy.predict(held[0]))


def momentum(config: dict[str, Any]) -> Any:
    import keras

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(config["lr"], 0.9), metrics=["mse"])
    return model


def check_the_engine_searches_models_of_keras() -> None:
    data, held = rows(), rows(50, 1)
    engine = SearchEngineFactory.create_engine(logs_dir=str(FOLDER), name="engine")
    builder = KerasModelBuilder(deep)
    engine.compile(
        data,
        builder,
        "min",
        epochs=2,
        validation_data=held,
        metric="mse",
        search_space={"lr": hp.grid_search([1e-6, 0.05]), "batch_size": 16},
    )
    analysis = engine.run()
    assert [trial.status for trial in analysis.trials] == ["TERMINATED"] * 2
    assert analysis.best_config == {"lr": 0.05, "batch_size": 16}
    best = engine.get_best_trial()
    model = builder.build(best.config)
    model.restore(best.model_path)
    value = next(t for t in analysis.trials if t.config == best.config).last_result["best_mse"]
    assert model.evaluate(*held, multioutput="uniform_average") == pytest.approx([value], rel=1e-5)


def check_a_built_model_says_what_is_wrong() -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be called"):
        KerasModelBuilder("linear")  # type: ignore[arg-type]
    with pytest.raises(FailedPreconditionError, match="fit_eval or restore"):
        KerasBaseModel(linear).predict(rows()[0])
    model = KerasModelBuilder(linear).build({"lr": 0.1, "what": object()})
    for data, more, message in (
        (rows(), {"epochs": 0}, "epochs 0"),
        (rows()[0], {}, r"return a tf.data.Dataset of \(x, y\), or \(x, y\)"),
        (rows(), {"metric": "auc"}, "but not with the metric 'auc'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            model.fit_eval(data, **more)
    with pytest.raises(InvalidArgumentError, match=r"cannot be written.*use numbers"):
        model.save(FOLDER / "bad.ckpt")
    assert not (FOLDER / "bad.ckpt").exists()


# --- threads, failures and bad calls


def check_a_trial_has_its_threads() -> None:
    def creator(config: dict[str, Any]) -> Any:
        import tensorflow as tf

        threading_of = tf.config.threading
        found = [threading_of.get_intra_op_parallelism_threads()]
        found.append(threading_of.get_inter_op_parallelism_threads())
        Path(config["file"]).write_text(str(found))
        return weight({"lr": 0.1})

    for cores in (1, 2, 1):
        file = FOLDER / f"threads-{cores}.txt"
        est = auto(f"threads-{cores}", creator, resources_per_trial={"cpu": cores})
        est.fit(ones(8), validation_data=ones(8), search_space={"file": str(file)})
        assert file.read_text() == str([cores, cores])
        file.unlink()


def check_failed_trials_are_kept_and_never_win() -> None:
    def creator(config: dict[str, Any]) -> Any:
        import keras

        how = config["how"]
        if how == "raises":
            raise ValueError("for the test")
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "nothing":
            return None
        if how == "plain":
            return keras.Sequential([keras.layers.Dense(1)])
        return linear({"lr": {"nan": 1e38, "well": 0.05}[how]})

    said = {
        "raises": "for the test",
        "dies": "SIGKILL",
        "nothing": "You must create a Keras 3 model in model_creator; it returned a builtins.NoneType",
        "plain": "is not compiled",
        "nan": "not finite",
    }
    est = auto("failures", creator)
    space = {"how": hp.grid_search([*said, "well"])}
    est.fit(rows(), epochs=3, validation_data=rows(64), metric="mse", search_space=space)
    for trial in est.trials:
        how = trial.config["how"]
        assert trial.state == ("finished" if how == "well" else "failed"), how
        (folder,) = (FOLDER / "failures").glob(f"train_func_*_{trial.number:05d}")
        assert how == "well" or said[how] in (folder / "error.txt").read_text()
    assert est.get_best_config() == {"how": "well"}
    est = auto("all", creator)
    with pytest.raises(FailedPreconditionError, match="1 of 1 trials failed"):
        est.fit(rows(), validation_data=rows(), search_space={"how": "raises"})


def check_what_the_last_step_ruined_never_wins() -> None:
    def creator(config: dict[str, Any]) -> Any:
        import keras

        layers = [keras.layers.Input((4,)), keras.layers.Dense(2, "softmax")]
        model = keras.Sequential(layers)
        loss = keras.losses.SparseCategoricalCrossentropy()
        rate = keras.optimizers.SGD(config["lr"])
        model.compile(loss=loss, optimizer=rate, metrics=["accuracy"])
        return model

    data = rows(40)[0], np.array([1, 1] + 38 * [0])
    space = {"lr": hp.grid_search([1e39, 1e-6]), "batch_size": 40}

    def zeros(truth: Any, found: Any) -> float:
        return float(np.mean(truth == np.argmax(found, axis=1)))

    for name, metric, validation in (
        ("compiled", "accuracy", data),
        ("function", zeros, data),
        ("training", "accuracy", None),
    ):
        est = auto(f"ruined-{name}", creator)
        est.fit(
            data,
            validation_data=validation,
            metric=metric,
            metric_mode="max",
            search_space=space,
            retries=3,
        )
        assert [trial.state for trial in est.trials] == ["failed", "finished"], name
        assert est.trials[0].retries == 0
        assert "not finite" in est.trials[0].error
        assert est.get_best_config()["lr"] == 1e-6


def check_bad_calls_say_what_is_wrong() -> None:
    import tensorflow as tf

    with pytest.raises(InvalidArgumentError, match="cannot be called"):
        auto("bad", 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"model_creator is a model, a .*f\(config\)"):
        auto("bad", linear({"lr": 0.1}))
    est = auto("bad")
    good: dict[str, Any] = {"validation_data": rows(8), "metric": "mse", "search_space": RATES}
    dataset = tf.data.Dataset.from_tensor_slices(rows(8))
    lock = threading.Lock()
    for data, changes, message in (
        (rows(8), {"metric": "mine"}, "metric mine is not supported"),
        (rows(8), {"metric": lambda a, b: 0.0}, "`metric_mode`"),
        (dataset, {}, r"give a function f\(config\) that makes it"),
        (lambda config: lock, {}, "data.* cannot be sent to another process"),
        ((rows(8)[0], rows(9)[1]), {}, "rows"),
        (rows(8)[0], {}, r"give \(x, y\)"),
    ):
        with pytest.raises(RuntimeError, match=message):
            est.fit(data, **(good | changes))
    for number, (data, changes, message) in enumerate(
        (
            (
                rows(8),
                {"metric": "auc"},
                "compiled with loss, mae, mse, but not with the metric 'auc'",
            ),
            (endless, {}, "has no end"),
            (
                lambda config: 3,
                {},
                r"a data creator returned a builtins.int; return a tf.data.Dataset",
            ),
        )
    ):
        est = auto(f"bad-{number}")
        with pytest.raises(FailedPreconditionError, match=message):
            est.fit(data, **(good | changes | {"search_space": {"lr": 0.1}}))


def endless(config: dict[str, Any]) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(rows(8)).batch(4).repeat()


def checks() -> None:
    orca.init_orca_context("local", cores=2)
    raised = {}
    for name in sys.argv[3:] or [name for name in globals() if name.startswith("check_")]:
        begin = time.monotonic()
        try:
            globals()[name]()
            raised[name] = ""
        except BaseException:
            raised[name] = traceback.format_exc()
        print(f"{name}: {time.monotonic() - begin:.1f} s", file=sys.stderr)
    orca.stop_orca_context()
    print(json.dumps(raised))


# --- others


def killed() -> None:
    orca.init_orca_context("local", cores=1)
    est = auto("killed", deep)
    est.fit(
        rows(),
        epochs=3,
        validation_data=rows(64, 1),
        metric="mse",
        search_space={"lr": hp.loguniform(1e-4, 0.1)},
        search_alg="tpe",
        n_sampling=5,
        seed=4,
        resume="auto",
    )
    with np.load(next((FOLDER / "killed").glob("train_func_*_00000")) / "best.ckpt") as file:
        weights = file["0"].tolist()
    trials = [(trial.config, trial.state, trial.reports) for trial in est.trials]
    print(trials, est.get_best_config(), weights)
    orca.stop_orca_context()


def seed_004() -> None:
    """As written there, but for the data, the space and the folder of the logs."""
    import tensorflow as tf
    import torch  # noqa: F401 - Workers for Keras have none, and need none.

    def model_creator(config: dict[str, Any]) -> Any:
        layers = [
            tf.keras.layers.Dense(config["hidden_size"], input_shape=(1,)),
            tf.keras.layers.Dense(1),
        ]
        model = tf.keras.models.Sequential(layers)
        model.compile(loss="mse", optimizer=tf.keras.optimizers.SGD(config["lr"]), metrics=["mse"])
        return model

    x = np.linspace(-1, 1, 200)
    train_data = val_data = (x, (x > 0).astype(np.int64))
    for root in ("zoo", "bigdl"):
        context = importlib.import_module(f"{root}.orca")
        module = importlib.import_module(f"{root}.orca.automl.auto_estimator")
        space = importlib.import_module(f"{root}.orca.automl.hp")
        search_space = {
            "hidden_size": space.grid_search([2, 4]),
            "lr": space.loguniform(0.01, 0.1),
            "batch_size": space.choice([16, 32]),
        }
        context.init_orca_context(cores=2)
        auto_est = module.AutoEstimator.from_keras(
            model_creator=model_creator,
            logs_dir=str(FOLDER / root),
            resources_per_trial={"cpu": 2},
            name="auto_keras",
        )
        auto_est.fit(
            data=train_data,
            validation_data=val_data,
            search_space=search_space,
            n_sampling=2,
            epochs=1,
            metric="accuracy",
        )
        best_model = auto_est.get_best_model()
        best_config = auto_est.get_best_config()
        found = best_model.predict(x[:, None], verbose=0)[:, 0] > 0.5
        accuracy = float(np.mean(found == val_data[1]))
        assert accuracy == pytest.approx(auto_est.get_best_trial().value)
        assert len(auto_est.trials) == 4
        print(root, sorted(best_config))
        context.stop_orca_context()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"checks": checks, "killed": killed, "seed_004": seed_004}[sys.argv[1]]()
