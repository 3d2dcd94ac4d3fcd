"""`toolfleet logs` and `restart`, beside a folder in which an `up` has run."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support.command import Run
from support.up import COMMAND
from toolfleet_registry.config.run_file import Process, RunFile

CLONE = Path(__file__).parents[4]


@pytest.fixture
def logs(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The logs of a fleet that has ended; the working folder is one below."""
    folder = elsewhere / ".toolfleet" / "logs"
    folder.mkdir(parents=True)
    (folder / "worker-fast.log").write_text("one\ntwo \x1b[31mred\nthree\n")
    (folder / "beat.log").write_text("")
    (folder / "beat.log.1").write_text("old\n")
    (elsewhere / "below").mkdir()
    monkeypatch.chdir(elsewhere / "below")
    return folder


def test_logs_prints_what_a_process_has_logged(run: Run, logs: Path) -> None:
    """The last lines, without what would change the terminal; and without a name, whose logs there are."""
    assert run("logs").out == "beat\nworker-fast\n"
    assert run("logs", "worker-fast").out == "one\ntwo [31mred\nthree\n"
    assert run("logs", "worker-fast", "-n", "1").out == "three\n"
    assert run("logs", "beat").out == ""


def test_logs_are_those_of_the_fleet_that_runs(run: Run, logs: Path, elsewhere: Path) -> None:
    """Before those that a fleet has left in a nearer folder."""
    RunFile(pid=os.getpid(), settings={}).write(elsewhere)
    (elsewhere / "below" / ".toolfleet" / "logs").mkdir(parents=True)

    assert run("logs").out == "beat\nworker-fast\n"


def test_logs_goes_on_with_what_comes(logs: Path) -> None:
    """Until it is interrupted."""
    words = [*COMMAND, "logs", "worker-fast", "-f", "-n", "1"]
    with subprocess.Popen(words, cwd=logs, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "three\n"
        with (logs / "worker-fast.log").open("a") as log:
            log.write("four\n")
        assert command.stdout.readline() == "four\n"
        command.send_signal(signal.SIGINT)
        assert command.wait(20) == 130


@pytest.mark.parametrize("command", ["logs", "restart"])
def test_an_unknown_name_is_answered_with_those_that_there_are(
    run: Run, logs: Path, elsewhere: Path, command: str
) -> None:
    """Also if it looks like a path."""
    RunFile(pid=os.getpid(), settings={}, processes={"worker-fast": Process(pid=1, state="ready")}).write(elsewhere)
    for name in ("cows", "../run"):
        ended = run(command, name)

        assert ended.code == 1
        assert f"{name!r}: there are " in ended.err
        assert "worker-fast" in ended.err


@pytest.mark.parametrize("command", ["logs", "restart"])
def test_where_no_fleet_has_run_that_is_said(run: Run, elsewhere: Path, command: str) -> None:
    """Exit code 2, and what would start one."""
    ended = run(command, "cows")

    assert ended.code == 2
    assert "toolfleet up" in ended.err


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """What it would do, without doing it."""
    argv = [shutil.which("make") or pytest.skip("make is not installed"), "--no-print-directory", "-n", *words]
    return subprocess.run(argv, cwd=CLONE, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["logs-core"], ".venv/bin/toolfleet logs worker-fast"),
        (["logs-module", "M=owls"], '.venv/bin/toolfleet logs "owls"'),
        (["restart-module", "M=owls"], '.venv/bin/toolfleet restart "owls"'),
        (["redis-cli"], ".venv/bin/toolfleet redis-cli"),
        (["list-modules"], ".venv/bin/toolfleet modules list"),
        (["refresh-tools"], ".venv/bin/toolfleet modules refresh"),
    ],
)
def test_make_has_the_same_under_its_names(words: list[str], command: str) -> None:
    """In a clone, for the fleet of `make up`."""
    made = make(*words)

    assert made.stdout.splitlines()[-1] == command


@pytest.mark.parametrize("target", ["logs-module", "restart-module"])
def test_make_asks_for_the_module_that_is_missing(target: str) -> None:
    """Instead of doing something else."""
    made = make(target)

    assert made.returncode != 0
    assert f"make {target} M=research" in made.stderr
