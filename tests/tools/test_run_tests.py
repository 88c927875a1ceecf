from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import run_tests  # noqa: E402
from run_tests import Stage  # noqa: E402


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "LOGS", tmp_path / "logs")
    monkeypatch.delenv("KEEP_GOING", raising=False)


def run_stages(monkeypatch, *stages):
    monkeypatch.setattr(run_tests, "stages", lambda mode: list(stages))
    monkeypatch.setattr(sys, "argv", ["run_tests.py", "all"])
    return run_tests.main()


def shell(name, script):
    return Stage(name, ["bash", "-c", script], f"look at {name}")


def test_closing_lines_and_minutes_end_the_output(monkeypatch, capsys):
    code = run_stages(
        monkeypatch,
        shell("first", "echo '100% tests passed, 0 tests failed out of 7'"),
        shell("second", "echo '===== 3 passed, 1 skipped in 0.50s ====='"),
    )
    end = capsys.readouterr().out.split("Closing lines of the runners")[1]
    assert code == 0
    assert "first   100% tests passed, 0 tests failed out of 7" in end
    assert "second  ===== 3 passed, 1 skipped in 0.50s =====" in end
    assert end.rstrip().endswith("All 2 stages passed.")
    assert end.index("Minutes per stage") < end.rindex("second") < end.index("All 2")


def test_builds_of_all_stages_share_the_compilers_cache(monkeypatch, capsys):
    monkeypatch.delenv("CCACHE_BASEDIR", raising=False)
    monkeypatch.setenv("CCACHE_NOHASHDIR", "0")  # Who set it knows why.
    assert run_stages(monkeypatch, shell("it", "echo $CCACHE_BASEDIR $CCACHE_NOHASHDIR")) == 0
    assert f"\n{ROOT} 0\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "============ 3 passed, 1 skipped in 0.50s ============",
        "1 failed, 170 passed, 1 error in 135.07s (0:02:15)",
        "============ no tests ran in 0.01s ============",
    ],
)
def test_pytests_closing_lines_are_known(line):
    assert run_tests.PYTEST_CLOSING.match(line)


def test_the_first_failure_stops_and_says_what_to_do(monkeypatch, capsys):
    code = run_stages(monkeypatch, shell("first", "exit 3"), shell("second", "echo never"))
    out = capsys.readouterr().out
    assert code == 1
    assert "FAILED: first. What to do: look at first" in out
    assert "second" in out
    assert "not run" in out
    assert "\nnever" not in out


def test_keep_going_runs_the_rest(monkeypatch, capsys):
    monkeypatch.setenv("KEEP_GOING", "1")
    assert run_stages(monkeypatch, shell("first", "exit 3"), shell("second", "echo ran")) == 1
    assert "\nran" in capsys.readouterr().out


def test_skipped_tests_are_listed_with_their_reason(monkeypatch, capsys, tmp_path):
    log = tmp_path / "build/release/Testing/Temporary/LastTest.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "a_test.cc:9: Skipped\nneeds root\n\n[  SKIPPED ] Net.CutsTheLink (0 ms)\n"
        "[  PASSED  ] 41 tests.\n[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] Net.CutsTheLink\n"
    )
    stage = shell("C++", "echo '100% tests passed, 0 tests failed out of 2'")
    stage.preset = "release"
    run_stages(monkeypatch, stage, shell("Python", "echo 'SKIPPED [1] test_x.py:3: no GPU'; true"))
    out = capsys.readouterr().out
    assert "C++     1 x needs root" in out
    assert "Python  SKIPPED [1] test_x.py:3: no GPU" in out
    assert "(41 cases passed, 1 skipped)" in out
    assert "\n  2 in all\n" in out


def test_a_failing_step_shows_its_log_and_the_remedy(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "lib.sh").write_text((ROOT / "tools/lib.sh").read_text())
    script = (
        'source tools/lib.sh; step demo "a text" "try this" bash -c "echo words of the log; exit 7"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.returncode == 1
    assert "s] demo: a text" in done.stdout
    for text in ("words of the log", "exit status 7", "What to do: try this"):
        assert text in done.stderr


def test_what_runs_beside_a_stage_ends_with_it(monkeypatch, tmp_path):
    beside = shell(
        "waits", "for i in {1..3000}; do [[ -s begun ]] && exit; sleep 0.01; done; exit 1"
    )
    beside.beside = ["bash", "-c", "echo $$ >part; mv part begun; sleep 1000"]
    assert run_stages(monkeypatch, beside) == 0
    assert not Path(f"/proc/{int((tmp_path / 'begun').read_text())}").exists()


def test_full_is_all_and_more_and_its_builds_give_way():
    everything = run_tests.stages("all")
    full = run_tests.stages("full")
    assert [stage.command for stage in full[: len(everything)]] == [s.command for s in everything]
    assert [stage.name for stage in full[len(everything) :]] == [
        *("build asan", "C++ asan", "build tsan", "C++ tsan", "long tests"),
    ]
    builds = [stage.beside for stage in full if "tools/build.sh" in " ".join(stage.beside)]
    assert builds
    assert all(command[:2] == ["chrt", "--idle"] for command in builds)
