"""Every argument of what users call is read, refused, or named here with the reason why it is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[2] / "python"

FACADES = (
    "bigdl/**/*.py",
    "zoo/**/*.py",
    "orca/*.py",
    "orca/automl/**/*.py",
    "orca/distributed/*.py",
    "orca/learn/**/*.py",
    "orca/roots/*.py",
    "orca/tune/*.py",
    "orca/data/[!r]*.py",
    "orca/data/readers.py",
    "orca/adapters/*/estimator.py",
    "orca/adapters/*/metrics.py",
    "orca/adapters/*/optimizers.py",
    "orca/adapters/*/training_operator.py",
    "orca/adapters/*/trial_model.py",
    "orca/adapters/spark/[!s]*.py",
    "orca/adapters/spark/xshards.py",
    "orca/adapters/torch/wrappers.py",
    "orca/adapters/xgboost/model.py",
)

_OF_THE_JVM = ("bigdl_type", "jvalue")  # Of its numbers and objects, which there are none of.
_HOOK = "a hook: whoever calls it gives it"

UNREAD = {
    "AverageMeterCollection.summary dist_backend": "statistics are those of all workers",
    "AverageMeterCollection.summary sync_stats": "statistics are those of all workers",
    "Estimator.from_torch sync_stats": "statistics are those of all workers",
    "TorchEstimator.load_orca_checkpoint prefix": "a checkpoint has one model",
    "TorchEstimator.load_state_dict blocking": "it has returned when the state is there",
    "TorchEstimator.shutdown force": "it does not wait in any case",
    "TrainingOperator.forward_batch batch_info": _HOOK,
    "TensorBoardCallback.after_run runner": _HOOK,
    "TqdmCallback.after_train_epoch runner": _HOOK,
    "WandbLoggerCallback.after_run runner": _HOOK,
    "ZooTestCase.setup_method method": _HOOK,
    "ZooTestCase.teardown_method method": _HOOK,
    "KerasBaseModel.fit_eval resources_per_trial": "a process that has begun to compute keeps its threads",
    "PytorchBaseModel.fit_eval verbose": "it prints nothing",
    "TorchModel.predict distributed": "data of the driver are predicted there, RDDs where they are",
    "NNEstimator.setCheckpoint isOverWrite": "every fit has a folder of its own",
    "Accuracy multioutput": "classes have one output",
    "loguniform base": "the distribution is the same for every base",
    "qloguniform base": "the distribution is the same for every base",
    "lograndint base": "the distribution is the same for every base",
    "qlograndint base": "the distribution is the same for every base",
    "extract_one_path env": "files are read without the environment of a cluster",
    "SparkXShards.save_pickle batchSize": "every shard is one record",
    "put_local_dir_tree_to_remote over_write": "files are replaced",
    "put_local_files_with_prefix_to_remote over_write": "files are replaced",
    "get_remote_file_to_local over_write": "files are replaced",
    "get_remote_dir_to_local over_write": "files are replaced",
    "get_remote_files_with_prefix_to_local over_write": "files are replaced",
}
"""What nothing reads, and why that is no loss. It may only shrink."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(node: ast.AST, owner: str = "") -> Iterator[tuple[str, Function]]:
    """All that users may call, by name; a function inside of another one is named without it."""
    for child in ast.iter_child_nodes(node):
        name = getattr(child, "name", "")
        if isinstance(child, Function):
            if not name.startswith("_") or name in ("__init__", "__call__"):
                yield owner + name, child
                yield from functions(child)
        elif isinstance(child, ast.ClassDef):
            if not name.startswith("_"):
                yield from functions(child, f"{name}.")
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from functions(child, owner)


def does_nothing(function: Function) -> bool:
    """Whether it has no body, or only refuses."""
    body = [s for s in function.body if not _is_text(s)]
    while body and isinstance(body[-1], ast.With):
        body = body[-1].body
    return not body or (isinstance(body[-1], ast.Raise | ast.Pass) and len(body) == 1)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def unread(function: Function) -> list[str]:
    """The arguments whose names its body does not have."""
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names += [a.arg for a in (given.vararg, given.kwarg) if a is not None]
    found = {n.id for s in function.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    if "locals" in found or does_nothing(function):
        return []
    read = found | {"self", "cls", *_OF_THE_JVM}
    return [name for name in names if name not in read and not name.startswith("_")]


def all_unread() -> Iterator[str]:
    for path in sorted({path for glob in FACADES for path in PYTHON.glob(glob)}):
        for name, function in functions(ast.parse(path.read_text())):
            yield from (f"{name} {argument}" for argument in unread(function))


def test_every_argument_is_read_or_has_a_reason() -> None:
    found = set(all_unread())
    assert not found - UNREAD.keys(), "nothing reads these; read, refuse, or say them"
    assert not UNREAD.keys() - found, "these are read by now; take them out of the table"
    assert len(UNREAD) <= 28, "the table may only shrink"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(a, b): return a", ["b"]),
        ("def f(a, *b, c=1, **d): return a", ["c", "b", "d"]),
        ("def f(a, _b): return a", []),
        ("def f(a): raise ValueError", []),
        ("def f(a): 'A text.'", []),
        ("def f(a): return locals()", []),
        ("def f(a):\n  with g():\n    raise ValueError", []),
        ("def f(a):\n  def g(): return a\n  return g", []),
    ],
)
def test_what_nothing_reads_is_found(source: str, found: list[str]) -> None:
    (function,) = ast.parse(source).body
    assert isinstance(function, Function)
    assert unread(function) == found


def test_the_facades_are_among_what_is_looked_at() -> None:
    looked_at = {
        name
        for glob in FACADES
        for path in PYTHON.glob(glob)
        for name, _ in functions(ast.parse(path.read_text()))
    }
    assert {
        "init_orca_context",
        "Estimator.from_torch",
        "TorchEstimator.fit",
        "TorchEstimator.evaluate",
        "TorchEstimator.predict",
        "TorchEstimator.save",
        "TorchEstimator.load",
        "SparkXShards.transform_shard",
        "read_csv",
        "read_json",
        "read_parquet",
        "AutoEstimator.fit",
        "AutoEstimator.from_torch",
        "AutoEstimator.from_keras",
        "AutoXGBRegressor.__init__",
        "NNEstimator.setMaxEpoch",
        "run",
    } <= looked_at
