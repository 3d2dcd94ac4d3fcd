"""`toolfleet logs` and `restart`, beside a folder in which an `up` has run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.command import Run, interrupt
from toolfleet_registry.config.run_file import ListedProcess, RunFile

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


def test_logs_goes_on_with_what_comes(run: Run, logs: Path) -> None:

    def more() -> None:
        with (logs / "worker-fast.log").open("a") as log:
            log.write("four\n")

    ended = run("logs", "worker-fast", "-f", "-n", "1", steps=[more, interrupt])

    assert (ended.code, ended.out, ended.err) == (130, "three\nfour\n", "")


@pytest.mark.parametrize("command", ["logs", "restart"])
def test_an_unknown_name_is_answered_with_those_that_there_are(
    run: Run, logs: Path, elsewhere: Path, command: str
) -> None:
    RunFile(pid=os.getpid(), settings={}, processes={"worker-fast": ListedProcess(pid=1, state="ready")}).write(
        elsewhere
    )
    for name in ("cows", "../run"):
        ended = run(command, name)

        assert ended.code == 1
        assert f"{name!r}: there are " in ended.err
        assert "worker-fast" in ended.err


@pytest.mark.parametrize("command", ["logs", "restart"])
def test_where_no_fleet_has_run_that_is_said(run: Run, command: str) -> None:
    ended = run(command, "cows")

    assert (ended.code, "toolfleet up" in ended.err) == (2, True)


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """What it would do, without doing it."""
    argv = [shutil.which("make") or pytest.skip("make is not installed"), "--no-print-directory", "-n", *words]
    return subprocess.run(argv, cwd=CLONE, capture_output=True, text=True, check=False)


def test_make_has_the_same_under_its_names() -> None:
    """In a clone, for the fleet of `make up`."""
    targets = ("logs-core", "logs-module", "restart-module", "redis-cli", "list-modules", "refresh-tools")
    lines = make(*targets, "M=owls").stdout.splitlines()

    assert [line for line in lines if line.startswith(".venv/bin/toolfleet ")] == [
        ".venv/bin/toolfleet logs worker-fast",
        '.venv/bin/toolfleet logs "owls"',
        '.venv/bin/toolfleet restart "owls"',
        ".venv/bin/toolfleet redis-cli",
        ".venv/bin/toolfleet modules list",
        ".venv/bin/toolfleet modules refresh",
    ]


@pytest.mark.parametrize("target", ["logs-module", "restart-module"])
def test_make_asks_for_the_module_that_is_missing(target: str) -> None:
    made = make(target)

    assert made.returncode != 0
    assert f"make {target} M=research" in made.stderr
