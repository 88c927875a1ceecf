"""The old import roots: contexts, settings, names, and what they say when something is missing."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orca
from orca.errors import FailedPreconditionError, InvalidArgumentError, OrcaError
from orca.roots.neighbours import find_neighbours

ROOTS = ["bigdl", "zoo"]
PYTHON = str(Path(orca.__file__).parents[1])


def module(root: str, name: str) -> Any:
    return importlib.import_module(f"{root}.{name}")


def all_cores() -> int:
    return len(os.sched_getaffinity(0))


@pytest.fixture(params=ROOTS)
def root(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield module(request.param, "orca")
    orca.stop_orca_context()


@pytest.fixture
def bigdl() -> Iterator[Any]:
    yield module("bigdl", "orca")
    orca.stop_orca_context()


@pytest.fixture
def zoo() -> Iterator[Any]:
    yield module("zoo", "orca")
    orca.stop_orca_context()


# --- init_orca_context and stop_orca_context


def test_the_signatures_are_those_of_the_originals() -> None:
    def shown(name: str) -> str:
        signature = inspect.signature(module(name, "orca").init_orca_context)
        return ", ".join(
            p.name if p.default is p.empty else f"{p.name}={p.default!r}"
            for p in signature.parameters.values()
        )

    assert shown("bigdl") == (
        "cluster_mode=None, runtime='spark', cores=None, memory='2g', num_nodes=1, "
        "init_ray_on_spark=False, init_executor_gateway=True, kwargs"
    )
    assert shown("zoo") == (
        "cluster_mode='local', cores=2, memory='2g', num_nodes=1, init_ray_on_spark=False, kwargs"
    )


@pytest.mark.product
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["local", "Local", "LOCAL"])
def test_a_local_context_starts_and_stops(
    root: Any, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    context = root.init_orca_context(cluster_mode=mode, cores=1)
    assert isinstance(context, root.OrcaContext)
    assert context.cores() == root.OrcaContext.cores() == 1
    assert orca.run(orca.world_size, workers=1) == [1]
    root.stop_orca_context()
    assert capsys.readouterr().out == "Initializing orca context\nStopping orca context\n"
    with pytest.raises(FailedPreconditionError):
        orca.OrcaContext.cores()


def test_stopping_without_a_context_does_nothing(
    root: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    root.stop_orca_context()
    root.stop_orca_context()
    assert capsys.readouterr().out == ""


def test_bigdl_takes_all_cores_when_local_is_given(bigdl: Any) -> None:
    assert bigdl.init_orca_context("local").cores() == all_cores()


def test_bigdl_takes_two_cores_with_a_warning_when_nothing_is_given(
    bigdl: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert bigdl.init_orca_context().cores() == 2
    assert "cores is not given, so 2 are used" in caplog.text


def test_zoo_takes_two_cores(zoo: Any) -> None:
    assert zoo.init_orca_context().cores() == 2


def test_cores_may_be_a_star_or_a_text(root: Any) -> None:
    assert root.init_orca_context("local", cores="*").cores() == all_cores()
    root.stop_orca_context()
    assert root.init_orca_context("local", cores="1").cores() == 1


def test_memory_is_a_limit_when_it_is_given_and_only_then(root: Any) -> None:
    assert root.init_orca_context("local", cores=1, memory="1g").memory() == 1 << 30
    root.stop_orca_context()
    unlimited = root.init_orca_context("local", cores=1).memory()
    root.stop_orca_context()
    orca.init_orca_context("local", cores=1)
    # What is free changes while other programs run.
    assert unlimited == pytest.approx(orca.OrcaContext.memory(), rel=0.25)


def test_a_context_that_is_there_is_used_again(root: Any, caplog: pytest.LogCaptureFixture) -> None:
    root.init_orca_context("local", cores=1)
    assert root.init_orca_context("local", cores=1).cores() == 1
    assert "ignored" not in caplog.text
    assert root.init_orca_context("local", cores=2).cores() == 1
    assert "there is a context already, with 1 cores; cores=2 is ignored" in caplog.text


def test_arguments_for_clusters_and_ray_are_accepted(
    root: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "orca")
    for_spark = {"conf": {"spark.x": "1"}, "extra_python_lib": "a.py", "python_location": "python"}
    given = {"object_store_memory": "1g", "penv_archive": "env.tar.gz"}
    root.init_orca_context("local", cores=1, init_ray_on_spark=True, **given, **for_spark)
    (line,) = [text for text in caplog.messages if "for clusters and Ray" in text]
    assert all(name in line for name in (*given, "init_ray_on_spark"))
    assert not any(name in line for name in for_spark)
    assert "ignores" not in caplog.text


def test_an_unknown_argument_is_named(root: Any, caplog: pytest.LogCaptureFixture) -> None:
    root.init_orca_context("local", cores=1, num_cpu=3)
    assert "init_orca_context ignores num_cpu; it knows cluster_mode" in caplog.text


@pytest.mark.parametrize(
    "mode",
    [
        *("yarn-client", "yarn-cluster", "YARN", "yarn-other", "k8s", "k8s-client", "k8s-cluster"),
        *("standalone", "spark-submit", "bigdl-submit"),
    ],
)
def test_other_clusters_are_not_in_this_release(mode: str) -> None:
    for name, kind in [("bigdl", RuntimeError), ("zoo", ValueError)]:
        with pytest.raises(
            kind, match=f'cluster_mode="{mode.lower()}" is not in this release'
        ) as caught:
            module(name, "orca").init_orca_context(cluster_mode=mode)
        assert type(caught.value) is kind
        assert isinstance(caught.value.__cause__, OrcaError)


def test_an_unknown_cluster_mode_is_told_the_known_ones() -> None:
    for name, kind in [("bigdl", RuntimeError), ("zoo", ValueError)]:
        with pytest.raises(
            kind, match=r"can only be local, yarn.*bigdl-submit, but got: Mesos"
        ) as caught:
            module(name, "orca").init_orca_context("Mesos")
        assert type(caught.value) is kind


def test_the_runtime_is_spark() -> None:
    bigdl = module("bigdl", "orca")
    for arguments, text in [
        ({"runtime": "ray"}, 'runtime="ray" is not in this release'),
        ({"runtime": "ray", "cluster_mode": "local"}, "cluster_mode must be None"),
        ({"runtime": "dask"}, "runtime can only be spark or ray, but got: dask"),
    ]:
        with pytest.raises(RuntimeError, match=text) as caught:
            bigdl.init_orca_context(**arguments)
        assert type(caught.value) is RuntimeError
    with pytest.raises(RuntimeError, match="not in this release"):
        module("zoo", "orca").init_orca_context(cluster_mode=None, runtime="ray")


def test_more_nodes_than_the_local_one_are_refused_by_zoo_and_ignored_by_bigdl(
    bigdl: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AssertionError, match="For Spark local mode, num_nodes should be 1"):
        module("zoo", "orca").init_orca_context(num_nodes=2)
    bigdl.init_orca_context("local", cores=1, num_nodes=2)
    assert "num_nodes=2 is ignored" in caplog.text


def test_wrong_cores_have_the_error_of_the_generation() -> None:
    for name, kind in [("bigdl", RuntimeError), ("zoo", ValueError)]:
        with pytest.raises(kind, match="cores -1") as caught:
            module(name, "orca").init_orca_context("local", cores=-1)
        assert type(caught.value) is kind
        assert isinstance(caught.value.__cause__, InvalidArgumentError)


def test_a_script_that_does_not_stop_its_context_ends_well(private_env: dict[str, str]) -> None:
    code = "from zoo.orca import init_orca_context; init_orca_context(cores=1)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**private_env, "PYTHONPATH": PYTHON},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Initializing orca context\nStopping orca context\n"


# --- OrcaContext


DEFAULTS = {
    "log_output": False,
    "pandas_read_backend": "spark",
    "serialize_data_creator": False,
    "train_data_store": "DRAM",
    "barrier_mode": True,
    "_eager_mode": True,
    "_shard_size": None,
}
GOOD = [
    ("log_output", True, True),
    ("pandas_read_backend", "Pandas", "pandas"),
    ("pandas_read_backend", "SPARK", "spark"),
    ("serialize_data_creator", True, True),
    ("train_data_store", "pmem", "PMEM"),
    ("train_data_store", "disk_4", "DISK_4"),
    ("barrier_mode", False, False),
    ("_eager_mode", False, False),
    ("_shard_size", 10, 10),
    ("_shard_size", None, None),
]
BAD = [
    ("log_output", 1, "log_output should either be True or False"),
    ("pandas_read_backend", "dask", "pandas_read_backend must be either spark or pandas"),
    ("serialize_data_creator", "yes", "serialize_data_creator should either be True or False"),
    ("train_data_store", "DISK_", "train_data_store must be either DRAM or PMEM or DISK_n"),
    ("train_data_store", "DISK_4x", "train_data_store must be either DRAM or PMEM or DISK_n"),
    ("barrier_mode", None, "barrier_mode should either be True or False"),
    ("_eager_mode", 0, "_eager_mode should either be True or False"),
    ("_shard_size", 0, "shard size should be either None or a positive integer"),
    ("_shard_size", 1.5, "shard size should be either None or a positive integer"),
]


@pytest.fixture(params=ROOTS)
def settings(request: pytest.FixtureRequest) -> Iterator[Any]:
    context = module(request.param, "orca").OrcaContext
    yield context
    for name, value in DEFAULTS.items():
        setattr(context, name, value)


def test_settings_have_the_defaults_of_the_originals(settings: Any) -> None:
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(("name", "value", "seen"), GOOD)
def test_a_setting_is_kept(settings: Any, name: str, value: object, seen: object) -> None:
    setattr(settings, name, value)
    assert getattr(settings, name) == seen


@pytest.mark.parametrize(("name", "value", "text"), BAD)
def test_a_wrong_setting_is_refused(settings: Any, name: str, value: object, text: str) -> None:
    before = getattr(settings, name)
    with pytest.raises((RuntimeError, AssertionError), match=text) as caught:
        setattr(settings, name, value)
    expected = {"bigdl": RuntimeError, "zoo": AssertionError}[settings.generation.root]
    assert type(caught.value) is expected
    assert getattr(settings, name) == before


def test_the_roots_have_settings_of_their_own(settings: Any) -> None:
    other = {"bigdl": "zoo", "zoo": "bigdl"}[settings.generation.root]
    settings.train_data_store = "PMEM"
    assert module(other, "orca").OrcaContext.train_data_store == "DRAM"


@pytest.mark.parametrize("name", ["get_spark_context", "get_sql_context", "get_spark_session"])
def test_the_getters_of_spark_say_that_there_is_none(settings: Any, name: str) -> None:
    with pytest.raises(
        Exception, match=r"No active SparkContext\. Please create a SparkContext first"
    ) as caught:
        getattr(settings, name)()
    expected = {"bigdl": RuntimeError, "zoo": Exception}[settings.generation.root]
    assert type(caught.value) is expected


@pytest.mark.parametrize("name", ROOTS)
def test_old_tests_have_their_base(name: str) -> None:
    case = module(name, "orca.test_zoo_utils").ZooTestCase()
    case.setup_method(None)
    folder = case.create_temp_dir()
    assert Path(folder).is_dir()
    case.assert_allclose([1.0], [1.0 + 1e-9])
    with pytest.raises(AssertionError, match="not as good"):
        case.assert_allclose([1.0], [1.1], msg="not as good")
    case.teardown_method(None)
    assert not Path(folder).exists()


def test_rows_of_bigdl_are_arrays() -> None:
    from orca.roots.samples import JTensor, Sample

    dense = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (JTensor.from_ndarray(dense).to_ndarray() == dense).all()
    assert JTensor.from_ndarray(None) is None
    sparse = JTensor.sparse([1.0, 2.0], [[0, 1], [2, 0]], [2, 3])
    assert sparse.to_ndarray().tolist() == [[0, 0, 1], [2, 0, 0]]
    sample = Sample.from_ndarray([dense, dense + 1], np.array(2.0))
    assert (sample.features[1].to_ndarray() == dense + 1).all()
    assert sample.label.to_ndarray().tolist() == [2.0]
    with pytest.raises(ValueError, match="no place for None"):
        Sample.from_ndarray(dense, None)


def test_the_getter_of_ray_says_that_there_is_none(settings: Any) -> None:
    with pytest.raises(Exception, match="Ray is not in this release"):
        settings.get_ray_context()


# --- SafePickle and checks


@pytest.mark.parametrize("name", ROOTS)
def test_a_pickle_is_checked(name: str) -> None:
    safe = module(name, "orca.common").SafePickle
    assert safe is module(name, "orca").SafePickle
    value = {"a": [1, 2, 3]}
    file = io.BytesIO()
    digest = safe.dump(value, file, return_digest=True)
    data = file.getvalue()
    assert pickle.loads(data) == pickle.loads(safe.dumps(value)) == value
    assert safe.load(io.BytesIO(data), digest) == value
    assert safe.load(io.BytesIO(data)) == value
    assert safe.dump(value, io.BytesIO()) is None
    changed = data.replace(b"a", b"b")
    with pytest.raises((RuntimeError, ValueError), match="Pickle safe check failed"):
        safe.load(io.BytesIO(changed), digest)


def test_the_digest_is_that_of_openssl(tmp_path: Path) -> None:
    file = tmp_path / "value.pickle"
    with file.open("wb") as out:
        digest = module("bigdl", "orca").SafePickle.dump([1, "two"], out, return_digest=True)
    command = ["openssl", "dgst", "-sha1", "-hmac", "shared-key", "-r", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == digest


@pytest.mark.parametrize("name", ["bigdl.dllib.utils.log4Error", "zoo.util.log4Error"])
def test_checks_of_input_log_and_raise(name: str, caplog: pytest.LogCaptureFixture) -> None:
    checks = importlib.import_module(name)
    checks.invalidInputError(True, "fine")
    checks.invalidOperationError(True, "fine")
    assert caplog.text == ""
    with pytest.raises(RuntimeError) as caught:
        checks.invalidInputError(False, "cores 0", "give 1 or more")
    assert type(caught.value) is RuntimeError
    assert str(caught.value) == "cores 0"
    for text in ("Usage Error", "cores 0", "How to fix", "give 1 or more", "Call Stack"):
        assert text in caplog.text
    cause = KeyError("x")
    with pytest.raises(KeyError) as original:
        checks.invalidOperationError(False, "no", cause=cause)
    assert original.value is cause
    with pytest.raises(RuntimeError, match="no"):
        checks.invalidOperationError(False, "no")


# --- modules


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bigdl.orca.learn.trigger", "orca.learn.trigger"),
        ("zoo.orca.learn.trigger", "orca.learn.trigger"),
        ("bigdl.orca.learn.optimizers", "orca.learn.optimizers"),
        ("zoo.orca.learn.optimizers.schedule", "orca.learn.optimizers.schedule"),
        ("zoo.util.triggers", "orca.learn.trigger"),
        ("bigdl.dllib.utils.triggers", "orca.learn.trigger"),
        ("bigdl.optim.optimizer", "orca.roots.optimizer"),
        ("bigdl.orca.learn.base_estimator", "orca.learn.base_estimator"),
        ("zoo.orca.learn.spark_estimator", "orca.learn.spark_estimator"),
        ("zoo.orca.learn.ray_estimator", "orca.learn.ray_estimator"),
        ("bigdl.orca.learn.utils", "orca.learn.utils"),
        ("bigdl.orca.test_zoo_utils", "orca.roots.test_case"),
    ],
)
def test_values_are_the_same_in_every_root(old: str, new: str) -> None:
    module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module.__spec__.name == new
    package, _, name = old.rpartition(".")
    namespace: dict[str, Any] = {}
    exec(f"from {package} import {name} as found", namespace)
    assert namespace["found"] is module


def test_a_submodule_of_a_root_is_not_the_top_package() -> None:
    code = "from bigdl import orca as a; from zoo import orca as b; print(a.__name__, b.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": PYTHON},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["bigdl.orca", "zoo.orca"], done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "bigdl.orca.learn.tf2",
        "bigdl.orca.learn.tf",
        "bigdl.orca.learn.mxnet",
        "bigdl.orca.data.tf",
        "bigdl.orca.data.elastic_search",
        "bigdl.orca.ray",
        "bigdl.nn",
        "bigdl.dllib.nn",
        "bigdl.dllib.estimator",
        "bigdl.dllib.feature.image",
        "bigdl.dllib.keras",
        "bigdl.orca.inference",
        "bigdl.orca.tfpark",
        "zoo.feature.image",
        "zoo.tfpark",
        "zoo.orca.data.image",
        "zoo.orca.learn.openvino",
        "zoo.ray",
        "zoo.pipeline.estimator",
        "zoo.util.utils",
    ],
)
def test_what_is_not_built_yet_says_so(name: str) -> None:
    with pytest.raises(ImportError) as caught:
        importlib.import_module(name)
    assert str(caught.value) == f"{name} is not in this release"
    package, _, last = name.rpartition(".")
    with pytest.raises(ImportError, match=f"{name} is not in this release"):
        exec(f"from {package} import {last}")
    with pytest.raises(ImportError, match=f"{name} is not in this release"):
        exec(f"import {name}.below")


def test_what_never_was_is_simply_not_found() -> None:
    for name in ("bigdl.orca.nothing", "zoo.nothing", "bigdl.orca.learn.trigger.nothing"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    with pytest.raises(ImportError, match="cannot import name 'init_nothing'"):
        from zoo import init_nothing  # noqa: F401


def test_importing_the_roots_loads_no_framework() -> None:
    code = """
import sys, bigdl.orca, zoo.orca, bigdl.optim.optimizer, zoo.util.triggers
print([name for name in ("torch", "tensorflow", "pyspark", "ray", "pandas") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": PYTHON},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_what_a_root_sends_is_found_on_workers(root: Any) -> None:
    name = root.__name__.split(".")[0]
    trigger = module(name, "orca.learn.trigger").SeveralIteration(3)

    def fires() -> list[bool]:
        found = importlib.import_module(f"{name}.orca.learn.trigger")
        assert isinstance(trigger, found.SeveralIteration)
        return [trigger.get_trigger().fires(epoch=1, iteration=i) for i in (1, 3)]

    root.init_orca_context("local", cores=1)
    assert orca.run(fires, workers=1) == [[False, True]]


@pytest.mark.parametrize(
    "name",
    ["bigdl.orca.common", "zoo.orca.common", "orca.roots.settings", "orca.roots.safe_pickle"],
)
def test_the_examples_in_the_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


# --- neighbours


def add_package(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ("bigdl_orca-2.5.0.dist-info", "bigdl-orca 2.5.0"),
        ("bigdl_orca_spark3-2.4.0b20230501.dist-info", "bigdl-orca-spark3 2.4.0b20230501"),
        ("bigdl-2.2.0.dist-info", "bigdl 2.2.0"),
        ("BigDL-0.13.0-py3.7.egg-info", "BigDL 0.13.0"),
        ("analytics_zoo-0.11.2.dist-info", "analytics-zoo 0.11.2"),
        ("orca-1.0.dist-info", "orca 1.0"),
    ],
)
def test_a_distribution_beside_ours_is_named(tmp_path: Path, entry: str, shown: str) -> None:
    add_package(tmp_path, f"{entry}/METADATA", "bigdl/__init__.py")
    (message,) = find_neighbours([str(tmp_path)])
    assert f"the distribution {shown} is installed in {tmp_path}" in message
    assert f"pip uninstall {shown.split()[0]}" in message
    (same,) = find_neighbours([str(tmp_path)], ours=tmp_path)
    assert "in the same folder as Orca" in same


def test_another_package_is_named_with_the_one_that_counts(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    add_package(ours, "orca/worker.py", "orca/__init__.py", "zoo/__init__.py")
    add_package(other, "zoo/__init__.py")
    (behind,) = find_neighbours([str(ours), str(other)], ours)
    assert f"imports the one in {ours}, which comes first" in behind
    (before,) = find_neighbours([str(other), str(ours)], ours)
    assert f"imports the one in {other}, which comes first" in before


def test_what_is_not_in_the_way_is_not_named(tmp_path: Path) -> None:
    add_package(
        tmp_path,
        *("orca_ml-0.1.0.dist-info/METADATA", "orca_tools-1.0.dist-info/METADATA"),
        *("orcas/__init__.py", "zoo/README", "bigdlx-1.0.dist-info/METADATA"),
    )
    assert list(find_neighbours([str(tmp_path), "", "/nowhere", PYTHON])) == []
    copy = tmp_path / "copy"
    add_package(copy, "orca/worker.py", "orca/__init__.py", "bigdl/__init__.py")
    assert list(find_neighbours([str(copy)])) == []


@pytest.mark.parametrize("name", ["orca", "bigdl.orca", "zoo"])
def test_the_first_import_warns(tmp_path: Path, name: str) -> None:
    add_package(tmp_path, "bigdl_orca-2.5.0.dist-info/METADATA")
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}, {name}"],
        env={**os.environ, "PYTHONPATH": f"{PYTHON}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stderr.count("RuntimeWarning: the distribution bigdl-orca 2.5.0") == 1


# --- what other parts bring


@pytest.mark.parametrize("name", ROOTS)
def test_estimators_are_bound_to_their_generation(name: str) -> None:
    pytest.importorskip("orca.learn.pytorch.estimator")
    package = module(name, "orca.learn.pytorch")
    assert package.Estimator is module(name, "orca.learn.pytorch.estimator").Estimator
    with pytest.raises((RuntimeError, ValueError), match="backend") as caught:
        package.Estimator.from_torch(
            model=lambda config: None, optimizer=lambda model, config: None, backend="nothing"
        )
    assert type(caught.value) is {"bigdl": RuntimeError, "zoo": ValueError}[name]


@pytest.mark.parametrize("name", ROOTS)
def test_validation_methods_mean_metrics(name: str) -> None:
    metrics = pytest.importorskip("orca.learn.metrics")
    assert module(name, "orca.learn.metrics") is metrics
    methods = importlib.import_module("bigdl.optim.optimizer")
    assert isinstance(methods.Top1Accuracy().metric(), metrics.Accuracy)
    assert isinstance(methods.Top5Accuracy().metric(), metrics.Top5Accuracy)
    assert isinstance(methods.MAE().metric(), metrics.MAE)
    assert isinstance(methods.AUC(100).metric(), metrics.AUC)
    assert methods.Loss().metric() is None


# --- submodules


@pytest.mark.parametrize("root", ROOTS)
def test_modules_below_a_package_need_no_import_of_their_own(root: str) -> None:
    code = f"""
import sys
import {root}.orca.automl
assert not any(name.endswith("automl.hp") for name in sys.modules)
assert {root}.orca.automl.hp.choice([1, 2]) is not None
assert {root}.orca.automl.hp is sys.modules["orca.automl.hp"]
assert {root}.orca.data.pandas.read_csv
assert {root}.orca.learn.trigger.EveryEpoch
assert {root}.orca.learn.pytorch.callbacks
assert not hasattr({root}.orca.learn, "tf2")
assert not hasattr({root}.orca.automl, "nothing")
from {root}.orca.automl import *
print("well")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "well\n", done.stderr
