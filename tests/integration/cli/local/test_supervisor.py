"""The supervisor keeps real processes alive and ends them in order."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.processes import is_gone
from support.waiting import wait_until_sync
from toolfleet_cli.local.child import DEATHS, Child, Program
from toolfleet_cli.local.readiness import says
from toolfleet_cli.local.supervisor import Supervisor
from toolfleet_registry.errors import ChildFailed
from toolfleet_registry.settings import Settings
from toolfleet_tasks.transport.death_reports import DeathReports, WorkerNote

_SLEEPER = "import time; print('here I am', flush=True); time.sleep(600)"
_DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_SLEEPER}"
_PARENT = "import subprocess; child = subprocess.Popen(['sleep', '600']); print(child.pid, 'here I am', flush=True); child.wait()"


def program(
    name: str,
    code: str,
    *,
    patience_seconds: float = 10,
    hurry_signal: signal.Signals = signal.SIGTERM,
    is_optional: bool = False,
) -> Program:
    argv = [sys.executable, "-c", code]
    return Program(
        name,
        argv,
        says("here I am"),
        patience_seconds=patience_seconds,
        hurry_signal=hurry_signal,
        is_optional=is_optional,
    )


def never() -> bool:
    return False


def at_once() -> bool:
    return True


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[str]) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path / "logs", announce=said.append)
    yield supervisor
    supervisor.stop(in_hurry=at_once)


def started(supervisor: Supervisor, *programs: Program) -> list[Child]:
    children = supervisor.start(programs)
    supervisor.wait_ready(children, seconds=20, check=lambda: None)
    return children


def test_it_waits_until_each_child_is_ready(supervisor: Supervisor, said: list[str]) -> None:
    """`wait_ready` returns when every child has shown it, and says so of each."""
    children = started(supervisor, program("one", _SLEEPER), program("two", _SLEEPER))

    assert sorted(said) == ["one is ready", "two is ready"]
    assert all(child.exit_code is None for child in children)


def test_a_child_that_ends_at_its_start_is_an_error_with_its_last_words(supervisor: Supervisor, tmp_path: Path) -> None:
    """The error names the child, its exit code and its log, and ends with the log's last lines."""
    with pytest.raises(ChildFailed) as caught:
        started(supervisor, program("broken", "import sys; print('no such thing'); sys.exit(3)"))

    log = tmp_path / "logs" / "broken.log"
    assert str(caught.value) == f"broken ended with exit code 3 instead of starting; its log is {log}:\nno such thing"


def test_a_child_that_never_gets_ready_is_an_error(supervisor: Supervisor) -> None:
    """`wait_ready` has a deadline."""
    children = supervisor.start([program("mute", "import time; time.sleep(600)")])

    with pytest.raises(ChildFailed, match=r"mute was not ready within 0\.3 s"):
        supervisor.wait_ready(children, seconds=0.3, check=lambda: None)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import time; time.sleep(600)", "was not ready within 0.3 s"),
        ("import sys; print('no such thing'); sys.exit(3)", "ended with exit code 3 instead of starting"),
    ],
)
def test_an_optional_child_that_is_not_ready_holds_nobody_up(
    supervisor: Supervisor, said: list[str], code: str, what: str
) -> None:
    """The others are waited for; it is said which one is missing, and why."""
    children = supervisor.start([program("late", code, is_optional=True), program("well", _SLEEPER)])
    supervisor.wait_ready(children[1:], seconds=20, check=lambda: None)
    if "exit" in code:
        wait_until_sync(lambda: children[0].exit_code is not None, "it has ended")
    supervisor.wait_ready(children, seconds=0.3, check=lambda: None)

    assert [child.is_ready for child in children] == [False, True]
    without = f"The fleet goes on without late, and uses it once it is ready: late {what}; its log is "
    assert any(line.startswith(without) for line in said)


def test_a_child_can_become_another_program(supervisor: Supervisor) -> None:
    """It ends, and starts as that one under its name."""
    (child,) = started(supervisor, program("one", _SLEEPER))
    assert supervisor.replace(program("one", f"print('another'); {_SLEEPER}"))
    assert not supervisor.replace(program("two", _SLEEPER))

    def is_other() -> bool:
        supervisor.tend()
        return child.state == "ready" and "another" in child.said()

    wait_until_sync(is_other, "the other program runs")


def test_who_waits_for_long_is_told_for_what(
    supervisor: Supervisor, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module whose health is an error gets a minute: it is named meanwhile, with its log."""
    monkeypatch.setattr("toolfleet_cli.local.supervisor._SILENCE_SECONDS", 0.2)
    children = supervisor.start([program("sick", "import time; time.sleep(600)")])

    with pytest.raises(ChildFailed):
        supervisor.wait_ready(children, seconds=0.7, check=lambda: None)
    assert set(said) == {f"Waiting for sick; its log is {children[0].log_path}"}


def test_a_dead_child_is_restarted(supervisor: Supervisor, said: list[str]) -> None:
    """A child that was killed runs again under another process id."""
    (child,) = started(supervisor, program("one", _SLEEPER))
    first = child.pid
    os.kill(first, signal.SIGKILL)

    def runs_again() -> bool:
        supervisor.tend()
        return child.pid != first and child.exit_code is None

    wait_until_sync(runs_again, "the child runs again")
    assert said[-1].startswith("one ended with exit code -9 and is started again; its log is ")


def test_what_a_dead_child_leaves_behind_ends(supervisor: Supervisor) -> None:
    """A restarted child does not meet the processes of its predecessor."""
    (child,) = started(supervisor, program("parent", _PARENT))
    grandchild = int(child.said().split()[0])
    os.kill(child.pid, signal.SIGKILL)

    def is_noticed() -> bool:
        supervisor.tend()
        return child.restart_at is not None

    wait_until_sync(is_noticed, "its death is noticed")
    wait_until_sync(lambda: is_gone(grandchild), "the grandchild is gone")


def test_a_child_that_dies_again_and_again_is_hopeless(tmp_path: Path) -> None:
    """The fifth death within a minute is the last."""
    child = ended_child(tmp_path)

    assert [child.plan_restart(1000.0 + death) for death in range(DEATHS)] == [True, True, True, True, False]


def test_deaths_far_apart_are_accidents(tmp_path: Path) -> None:
    """A child that dies once in a while is restarted for ever."""
    child = ended_child(tmp_path)

    assert all(child.plan_restart(1000.0 * death) for death in range(3 * DEATHS))


def test_restarts_come_later_and_later(tmp_path: Path) -> None:
    """The delay doubles with each death within the last minute."""
    child = ended_child(tmp_path)
    delays: list[float] = []
    for now in (1000.0, 1001.0, 1002.0):
        child.plan_restart(now)
        assert child.restart_at is not None
        delays.append(child.restart_at - now)

    assert delays == [0.5, 1.0, 2.0]


def test_tending_a_hopeless_child_raises(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a child that does not stay alive has its last words."""
    monkeypatch.setattr("toolfleet_cli.local.child._FIRST_BACKOFF_SECONDS", 0.001)  # not to wait seconds for nothing
    supervisor.start([program("sick", "print('I am sick')")])
    errors: list[str] = []

    def gives_up() -> bool:
        try:
            supervisor.tend()
        except ChildFailed as exc:
            errors.append(str(exc))
        return bool(errors)

    wait_until_sync(gives_up, "the supervisor gives up")
    assert errors[0].startswith("sick ended 5 times within 60 s, last with exit code 0; its log is ")
    assert errors[0].endswith("\nI am sick")


def test_an_optional_child_that_is_hopeless_is_left_dead(
    supervisor: Supervisor, said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others go on; it is said once, and a request to restart it gives it another try."""
    monkeypatch.setattr("toolfleet_cli.local.child._FIRST_BACKOFF_SECONDS", 0.001)
    (well,) = started(supervisor, program("well", _SLEEPER))
    cure = f"import pathlib, sys; pathlib.Path({str(tmp_path / 'cure')!r}).exists() or sys.exit(3); {_SLEEPER}"
    (sick,) = supervisor.start([program("sick", cure, is_optional=True)])

    def is_in(state: str) -> bool:
        supervisor.tend()
        return sick.state == state

    wait_until_sync(lambda: is_in("dead"), "it is given up")
    supervisor.tend()
    assert well.state == "ready"
    assert said[-1] == (
        "sick ended 5 times within 60 s, last with exit code 3: it is not started again, the rest goes on. "
        f"Its log is {sick.log_path}; `toolfleet restart sick` gives it another try."
    )

    (tmp_path / "cure").touch()
    assert supervisor.restart("sick")
    wait_until_sync(lambda: is_in("ready"), "it runs")
    assert said[-1] == "sick is ready"


def test_a_restart_that_was_asked_for_is_no_death(supervisor: Supervisor, said: list[str]) -> None:
    """However often: it ends by itself, or is killed after its time, and starts at once."""
    polite, deaf = started(supervisor, program("polite", _SLEEPER), program("deaf", _DEAF, patience_seconds=0.1))
    for _ in range(DEATHS):
        pids = [polite.pid, deaf.pid]
        assert supervisor.restart("polite")
        assert supervisor.restart("deaf")

        def are_back(before: list[int] = pids) -> bool:
            supervisor.tend()
            return {polite.state, deaf.state} == {"ready"} and not {polite.pid, deaf.pid} & set(before)

        wait_until_sync(are_back, "both are back")
    assert not any("ended" in line for line in said)
    assert not supervisor.restart("nobody")


def test_groups_end_in_the_reverse_order_of_their_start(tmp_path: Path) -> None:
    """A group is asked to end only when the one that was started after it has ended."""
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep(0.1 * int(sys.argv[1]))\n"
        f"    open({str(order)!r}, 'a').write(sys.argv[1])\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); print('here I am', flush=True); time.sleep(600)"
    )
    supervisor = Supervisor(tmp_path / "logs", announce=lambda _: None)
    for number in "123":  # the last one takes the longest
        started(supervisor, Program(number, [sys.executable, "-c", code, number], says("here I am")))
    supervisor.stop(in_hurry=never)

    assert order.read_text() == "321"


@pytest.mark.parametrize(
    ("patience_seconds", "in_hurry"),
    [
        (0.2, never),  # its time is over
        (600, at_once),  # whoever waits for it has no patience left
    ],
)
def test_a_child_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience_seconds: float, in_hurry: Callable[[], bool]
) -> None:
    """A child that ignores SIGTERM does not keep the fleet from ending."""
    monkeypatch.setattr("toolfleet_cli.local.supervisor._HURRY_SECONDS", 0.2)
    supervisor = Supervisor(tmp_path / "logs", announce=lambda _: None)
    (child,) = started(supervisor, program("deaf", _DEAF, patience_seconds=patience_seconds))
    supervisor.stop(in_hurry=in_hurry)

    assert child.exit_code == -signal.SIGKILL


def test_a_hurry_has_a_signal_of_its_own(tmp_path: Path) -> None:
    """A program may have a fast way to end that is still in better order than being killed."""
    supervisor = Supervisor(tmp_path / "logs", announce=lambda _: None)
    (child,) = started(supervisor, program("deaf", _DEAF, hurry_signal=signal.SIGQUIT))
    supervisor.stop(in_hurry=at_once)

    assert child.exit_code == -signal.SIGQUIT


def test_a_large_log_is_moved_aside_at_the_start(tmp_path: Path) -> None:
    """Logs do not grow for ever: over 10 MiB, a start begins a new one and keeps the old one."""
    (tmp_path / "some.log").write_bytes(b"x" * (10 * 2**20 + 1))
    ended_child(tmp_path)

    assert (tmp_path / "some.log").stat().st_size == 0
    assert (tmp_path / "some.log.1").stat().st_size > 10 * 2**20


def ended_child(folder: Path) -> Child:
    child = Child(program("some", ""), folder / "some.log")
    child.kill()
    return child


class Reports(DeathReports):
    """Keeps what it is to report."""

    def __init__(self) -> None:
        super().__init__(Settings(redis_url="redis://127.0.0.1:1/0"))
        self.found: list[WorkerNote] = []

    def add(self, note: WorkerNote) -> None:
        self.found.append(note)


_NOTES = "from toolfleet_tasks.transport.death_reports import write_note; write_note('ada0')"


@pytest.mark.parametrize(
    ("code", "is_reported"),
    [
        (f"{_NOTES}; {_SLEEPER}", True),
        (f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_NOTES!r}]); {_SLEEPER}", False),
        (_SLEEPER, False),
    ],
    ids=["its own note", "the note of a child of its", "no note"],
)
def test_a_worker_is_reported_when_it_was_waited_for(supervisor: Supervisor, code: str, is_reported: bool) -> None:
    """Under the name that the process itself has noted, once for each process, and never while it runs."""
    reports = Reports()
    one = replace(program("worker", code), reports=reports)
    (child,) = started(supervisor, one)
    supervisor.tend()
    assert reports.found == []
    pid = child.pid
    os.kill(pid, signal.SIGKILL)
    wait_until_sync(lambda: child.exit_code is not None, "it has ended")
    supervisor.tend()
    supervisor.tend()

    assert [(note.holder, note.pid) for note in reports.found] == ([("ada0", pid)] if is_reported else [])
