"""`make flakes` finds a test that fails now and then, and goes on where it stopped."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flakes import ROOT, RUNS, busy, key_of, targets_of
from support.waiting import PATIENCE_SECONDS, wait_until_sync

EVERY_FIFTH = """
from pathlib import Path
import unittest
import pytest

HERE = Path(__file__)

def noted(name):
    with HERE.with_name(name).open("a") as file:
        file.write("x")
    return len(HERE.with_name(name).read_text())

@pytest.fixture(scope="module", autouse=True)
def module():
    noted("modules")
    noted("now")
    yield
    HERE.with_name("now").write_text("")

def test_now_and_then(tmp_path):
    count = noted("runs")
    print(f"run {count}")
    assert HERE.with_name("now").read_text() == "x"
    assert count % 5

@pytest.mark.parametrize("number", [1, 2])
def test_well(number): pass

async def test_loop(): pass

def test_skipped(): pytest.skip()

class TestClass:
    def test_of_a_class(self):
        assert not hasattr(self, "seen")
        self.seen = True

class Case(unittest.TestCase):
    def test_of_unittest(self): pass
"""


def flakes(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flakes", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_SECONDS,
        check=False,
    )


def test_a_test_that_fails_now_and_then_is_found(tmp_path: Path) -> None:
    """Each run has module fixtures of its own; each failure is shown with its output and with what came of the test alone."""
    planted, kept = tmp_path / "test_planted.py", tmp_path / "kept"
    planted.write_text(EVERY_FIFTH)

    ran = flakes(planted, "--runs", "11", "--loops", "1", "--kept", kept)

    assert (ran.returncode, ran.stderr) == (1, "")
    assert ran.stdout.startswith(f"{planted}: 66 runs, 2 failed; 66 so far\n")
    assert ran.stdout.endswith("\n66 runs, 2 failed\n")
    assert ran.stdout.count("::test_now_and_then\n") == 2
    assert ("run 5" in ran.stdout, "run 10" in ran.stdout) == (True, True)
    assert ran.stdout.count("=== the same test alone: passed") == 2
    assert (tmp_path / "modules").read_text() == 12 * "x"  # of the file's runs, and of the one failed test


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What earlier runs have counted and found is said, and not run again, until the file changes or more runs are wanted."""
    planted, kept = tmp_path / "test_planted.py", tmp_path / "kept"
    planted.write_text("def test_wrong(): assert False\n")

    first = flakes(planted, "--runs", "1", "--loops", "0", "--kept", kept)
    again = flakes(planted, "--runs", "1", "--loops", "0", "--kept", kept)
    planted.write_text("def test_wrong(): pass\n")
    fixed = flakes(planted, "--runs", "2", "--loops", "0", "--kept", kept)

    assert f"{planted}: 1 runs, 1 failed; 1 so far" in first.stdout
    assert f"{planted}: 1 runs, 1 failed, earlier; 1 so far" in again.stdout
    assert "=== the same test alone: failed again:" in again.stdout
    assert (first.returncode, again.returncode, fixed.returncode) == (1, 1, 0)
    assert f"{planted}: 2 runs, 0 failed; 2 so far" in fixed.stdout


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os\ndef test_well(): pass\ndef test_exits(): os._exit(0)\n", "test_exits\npytest ended with 0:"),
        ("import nothing_of_that_name\n", "No module named 'nothing_of_that_name'"),
        (
            "import pytest\n@pytest.fixture\ndef it():\n    yield\n    assert 0\ndef test_end(it): pass\n",
            "::test_end\n",
        ),
    ],
    ids=["a process that ends", "a file that cannot be read", "a fixture's end"],
)
def test_what_is_no_failed_assertion_is_found_too(tmp_path: Path, program: str, said: str) -> None:
    """A process that ends with 0 in the middle has not passed."""
    planted = tmp_path / "test_planted.py"
    planted.write_text(program)

    ran = flakes(planted, "--runs", "1", "--loops", "0", "--kept", tmp_path)

    assert ran.returncode == 1
    assert said in ran.stdout


def test_busy_loops_end_with_their_block() -> None:
    """Each is a process, and is known by its id."""
    before = psutil.Process().children()
    with busy(2):
        started = [each for each in psutil.Process().children() if each not in before]
        wait_until_sync(lambda: all(each.cpu_times().user > 0 for each in started), "they are busy")

    assert len(started) == 2
    assert [each for each in started if each.is_running()] == []


def test_targets_are_files_and_single_tests(tmp_path: Path) -> None:
    """A folder is all its files; their keys differ, and hold as long as the content does."""
    (tmp_path / "test_one.py").write_text("")
    (tmp_path / "other.py").write_text("")
    targets = targets_of([str(tmp_path), "tests/house/test_flakes.py", f"{tmp_path}/test_one.py::test_it"])
    keys = [key_of(target) for target in targets]

    assert targets == [
        f"{tmp_path}/test_one.py",
        "tests/house/test_flakes.py",
        f"{tmp_path}/test_one.py::test_it",
    ]
    assert len(set(keys)) == 3
    assert keys == [key_of(target) for target in targets]
    assert RUNS == 20
