"""Spark beside Orca: when it starts, what it starts with, what stands for it until then, and how it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import orca
from environments import fetched
from orca.adapters.spark.plan import SparkPlan, cores_of
from orca.errors import FailedPreconditionError, InvalidArgumentError
from processes import is_alive, wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = str(Path(orca.__file__).parents[1])


def script(
    name: str, *arguments: str, fails: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a function of scripts_spark.py in a process of its own."""
    env = {**os.environ, "PYTHONPATH": f"{PYTHON}:{HERE}", "ORCA_LOG": "warn", **environment}
    done = subprocess.run(
        [sys.executable, str(HERE / "scripts_spark.py"), name, *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert fails or done.returncode == 0, done.stdout + done.stderr
    return done


# --- the start


@pytest.mark.slow
def test_col_may_be_the_first_call_of_spark() -> None:
    done = script("first_call", "bigdl")
    assert done.stdout == "Initializing orca context\nStopping orca context\n"
    assert done.stderr == ""  # Spark starts without a word.


@pytest.mark.slow
def test_any_attribute_of_what_init_returned_starts_spark() -> None:
    script("attribute", "zoo")


@pytest.mark.slow
def test_a_spark_context_of_the_user_is_used() -> None:
    script("of_the_user")


@pytest.mark.slow
def test_eight_contexts_follow_one_another() -> None:
    said = script("many", "8").stdout
    times = [float(word) for word in re.findall(r"^\d+ (\S+) s", said, re.MULTILINE)]
    assert len(times) == 8
    assert sorted(times)[4] < 10  # Only the first one waits for a JVM.


@pytest.mark.slow
def test_the_log_of_spark_is_shown_to_who_asks() -> None:
    before, _, after = script("loud").stderr.partition("now it may speak\n")
    assert before == ""
    assert re.search(r"INFO SparkContext: Running Spark version", after)


@pytest.mark.slow
def test_the_head_of_the_nnframes_script_runs() -> None:
    """Seed 002, up to its model."""
    assert script("head_of_seed_002").stdout == ""


@pytest.fixture(scope="module")
def old_spark() -> str:
    """The folder of pyspark 3.5, which is fetched once."""
    return str(fetched("pyspark-3.5"))


@pytest.mark.slow
def test_spark_3_starts_as_well(old_spark: str) -> None:
    code = "import pyspark; print(pyspark.__version__)"
    path = f"{old_spark}:{PYTHON}:{HERE}"
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.startswith("3.5.")
    assert script("first_call", "zoo", PYTHONPATH=path).stderr == ""


# --- the end


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "error"])
def test_no_jvm_is_left_behind(how: str) -> None:
    done = script("left_to_itself", how, fails=True)
    assert done.returncode == {"kill": -9, "error": 1}[how]
    (pid,) = re.findall(r"^jvm (\d+)$", done.stdout, re.MULTILINE)
    wait_until(lambda: not is_alive(int(pid)), "the JVM has ended")


# --- what is missing


@pytest.mark.slow
def test_without_java_a_sentence_says_what_to_do(tmp_path: Path) -> None:
    done = script("missing", PATH=str(tmp_path))
    text = "Spark needs Java, and there is no java on the PATH: apt install openjdk-17-jre-headless"
    assert done.stdout.count(text) == 2
    assert done.stderr.count(f"Spark is not started: {text}") == 2
    text = f"JAVA_HOME={tmp_path} has no bin/java"
    assert script("missing", JAVA_HOME=str(tmp_path)).stdout.count(text) == 2


def test_without_pyspark_a_sentence_says_what_to_do() -> None:
    code = """
import sys
sys.modules["pyspark"] = None
from bigdl.orca import OrcaContext, init_orca_context
sc = init_orca_context("local", cores=1)
for use in (lambda: sc.master, OrcaContext.get_spark_session):
    try:
        use()
    except ImportError as error:
        print(error)
for name in ("zoo.common.nncontext", "bigdl.dllib.utils.common", "zoo.pipeline.nnframes"):
    try:
        __import__(name)
    except ImportError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": PYTHON},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.count("there is no package pyspark: pip install pyspark") == 5, done.stderr


def test_without_a_context_there_is_no_spark_context() -> None:
    for name in ("get_spark_context", "get_sql_context", "get_spark_session"):
        with pytest.raises(FailedPreconditionError, match="No active SparkContext"):
            getattr(orca.OrcaContext, name)()


# --- the plan


def test_a_plan_has_what_the_user_gave_before_everything_else() -> None:
    conf = {"spark.ui.enabled": True, "spark.driver.memory": "3g", "spark.app.name": "mine"}
    given = {"conf": conf, "jars": "a.jar,b.jar", "extra_python_lib": "a.py,b.zip"}
    plan = SparkPlan.read("local[2]", "2g", given)
    settings = plan.settings()
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.memory"] == "3g"
    assert settings["spark.app.name"] == "mine"
    assert settings["spark.jars"] == "a.jar,b.jar"
    assert settings["spark.master"] == "local[2]"
    assert plan.python_files == ("a.py", "b.zip")
    assert SparkPlan.read("local[2]", "2g", {"conf": {"spark.master": "local[7]"}}).settings()[
        "spark.master"
    ] == ("local[7]")


@pytest.mark.parametrize(
    ("given", "spark"),
    [("10g", "10g"), ("10GB", "10g"), ("512 MiB", "512m"), (1 << 30, "1048576k"), (None, None)],
)
def test_memory_is_written_as_spark_reads_it(given: object, spark: str | None) -> None:
    assert SparkPlan.read("local", given, {}).settings().get("spark.driver.memory") == spark  # type: ignore[arg-type]


def test_wrong_arguments_for_spark_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="spark_log_level 'LOUD' is not known; give one"):
        SparkPlan.read("local", None, {"spark_log_level": "LOUD"})
    with pytest.raises(InvalidArgumentError, match=r"conf 'spark\.x' is no configuration of Spark"):
        SparkPlan.read("local", None, {"conf": "spark.x"})


def test_a_wrong_argument_for_spark_starts_nothing() -> None:
    from bigdl.orca import init_orca_context

    with pytest.raises(RuntimeError, match="spark_log_level 'LOUD'"):
        init_orca_context("local", cores=1, spark_log_level="LOUD")
    with pytest.raises(FailedPreconditionError):
        orca.OrcaContext.cores()


def test_the_cores_of_a_master_are_known() -> None:
    all_cores = len(os.sched_getaffinity(0))
    assert [cores_of(m) for m in ("local", "local[4]", "local[4,2]", "local[*]")] == [
        *(1, 4, 4, all_cores)
    ]
    assert cores_of("yarn") is None
