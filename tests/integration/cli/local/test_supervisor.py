"""The supervisor keeps real processes alive and ends them in order."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from support.processes import is_gone
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.programs import says
from toolfleet_cli.local.supervisor import DEATHS, Child, Program, Supervisor
from toolfleet_registry.errors import ChildFailed
from toolfleet_registry.settings import Settings
from toolfleet_tasks.transport.leases import DeathReports, WorkerNote

_MUTE = "exec tail -f /dev/null"
_WELL = f"echo here I am; {_MUTE}"
_DEAF = f"trap '' TERM; {_WELL}"
_PARENT = "tail -f /dev/null & echo $! here I am; wait"
_BROKEN = "echo no such thing; exit 3"


def program(name: str, script: str, **options: object) -> Program:
    made = Program(name, ["/bin/sh", "-c", script], says("here I am"), patience_seconds=10)
    return replace(made, **options)  # type: ignore[arg-type] # per test


def at_once() -> bool:
    return True


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolfleet_cli.local.supervisor._POLL_SECONDS", 0.005)
    monkeypatch.setattr("toolfleet_cli.local.supervisor._FIRST_BACKOFF_SECONDS", 0.001)


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
    supervisor.wait_ready(children, seconds=PATIENCE_SECONDS, check=lambda: None)
    return children


def tend_until(supervisor: Supervisor, condition: Callable[[], object], what: str) -> None:
    def is_so() -> object:
        supervisor.tend()
        return condition()

    wait_until_sync(is_so, what)


def has_ended(child: Child) -> bool:
    return child.exit_code is not None


def are_back(children: list[Child], before: set[int]) -> bool:
    return all(each.state == "ready" and each.pid not in before for each in children)


def test_it_waits_until_each_child_is_ready(supervisor: Supervisor, said: list[str]) -> None:
    """`wait_ready` returns when every child has shown it, and says so of each."""
    children = started(supervisor, program("one", _WELL), program("two", _WELL))

    assert sorted(said) == ["one is ready", "two is ready"]
    assert all(child.exit_code is None for child in children)


@pytest.mark.parametrize(
    ("script", "what", "last_words"),
    [
        (_MUTE, "was not ready within 0 s", "."),
        (_BROKEN, "ended with exit code 3 instead of starting", ":\nno such thing"),
    ],
    ids=["never ready", "ends at its start"],
)
def test_a_child_that_does_not_start_is_an_error_or_holds_nobody_up(
    supervisor: Supervisor, said: list[str], tmp_path: Path, script: str, what: str, last_words: str
) -> None:
    """The error has its name, its log and the log's last lines; without one that is optional the others go on."""
    failure = f"late {what}; its log is {tmp_path / 'logs' / 'late.log'}{last_words}"
    for is_optional in (True, False):
        children = supervisor.start([program("late", script, is_optional=is_optional), program("well", _WELL)])
        supervisor.wait_ready(children[1:], seconds=PATIENCE_SECONDS, check=lambda: None)
        if script == _BROKEN:
            wait_until_sync(partial(has_ended, children[0]), "it has ended")
        if is_optional:
            supervisor.wait_ready(children, seconds=0, check=lambda: None)
            assert [child.is_ready for child in children] == [False, True]
            assert f"The fleet goes on without late, and uses it once it is ready: {failure}" in said
        else:
            with pytest.raises(ChildFailed) as caught:
                supervisor.wait_ready(children, seconds=0, check=lambda: None)
            assert str(caught.value) == failure


def test_a_slow_child_is_named_meanwhile_with_its_log(
    supervisor: Supervisor, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module whose health is an error gets a minute."""
    monkeypatch.setattr("toolfleet_cli.local.supervisor._SILENCE_SECONDS", 0)
    children = supervisor.start([program("sick", _MUTE)])

    with pytest.raises(ChildFailed):
        supervisor.wait_ready(children, seconds=0, check=lambda: None)
    assert set(said) == {f"Waiting for sick; its log is {children[0].log_path}"}


def test_a_child_can_become_another_program(supervisor: Supervisor) -> None:
    """It ends, and starts as that one under its name."""
    (child,) = started(supervisor, program("one", _WELL))
    assert supervisor.replace(program("one", f"echo another; {_WELL}"))
    assert not supervisor.replace(program("two", _WELL))

    tend_until(supervisor, lambda: child.state == "ready" and "another" in child.said(), "the other program runs")


def test_a_dead_child_is_restarted_and_what_it_left_behind_ends(supervisor: Supervisor, said: list[str]) -> None:
    """Under another process id; it does not meet the processes of its predecessor."""
    (child,) = started(supervisor, program("one", _PARENT))
    first, grandchild = child.pid, int(child.said().split()[0])
    os.kill(first, signal.SIGKILL)

    tend_until(supervisor, lambda: child.pid != first and child.exit_code is None, "the child runs again")
    assert said[-1].startswith("one ended with exit code -9 and is started again; its log is ")
    wait_until_sync(lambda: is_gone(grandchild), "the grandchild is gone")


@pytest.mark.parametrize(
    ("between", "restarts"),
    [(1.0, [0.5, 1.0, 2.0, 4.0, None]), (1000.0, [0.5] * 3 * DEATHS)],
    ids=["again and again", "once in a while"],
)
def test_the_fifth_death_within_a_minute_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: float, restarts: list[float | None]
) -> None:
    """Until then the delay doubles; deaths far apart are accidents."""
    monkeypatch.setattr("toolfleet_cli.local.supervisor._FIRST_BACKOFF_SECONDS", 0.5)
    child = ended_child(tmp_path)
    for number, delay in enumerate(restarts):
        now = 1000.0 + number * between
        assert child.plan_restart(now) == (delay is not None)
        assert delay is None or child.restart_at == now + delay


def test_tending_a_hopeless_child_raises(supervisor: Supervisor) -> None:
    """The error of a child that does not stay alive has its last words."""
    supervisor.start([program("sick", "echo I am sick")])

    with pytest.raises(
        ChildFailed, match=r"^sick ended 5 times within 60 s, last with exit code 0; its log is "
    ) as end:
        tend_until(supervisor, lambda: False, "the supervisor gives up")
    assert str(end.value).endswith("\nI am sick")


def test_an_optional_child_that_is_hopeless_is_left_dead(
    supervisor: Supervisor, said: list[str], tmp_path: Path
) -> None:
    """The others go on; it is said once, and a request to restart it gives it another try."""
    (well,) = started(supervisor, program("well", _WELL))
    cure = tmp_path / "cure"
    (sick,) = supervisor.start([program("sick", f"test -e '{cure}' || exit 3; {_WELL}", is_optional=True)])

    tend_until(supervisor, lambda: sick.state == "dead", "it is given up")
    supervisor.tend()
    assert well.state == "ready"
    assert said[-1] == (
        "sick ended 5 times within 60 s, last with exit code 3: it is not started again, the rest goes on. "
        f"Its log is {sick.log_path}; `toolfleet restart sick` gives it another try."
    )

    cure.touch()
    assert supervisor.restart("sick")
    tend_until(supervisor, lambda: sick.state == "ready", "it runs")
    assert said[-1] == "sick is ready"


def test_a_restart_that_was_asked_for_is_no_death(supervisor: Supervisor, said: list[str]) -> None:
    """However often: it ends by itself, or is killed after its time, and starts at once."""
    both = polite, deaf = started(supervisor, program("polite", _WELL), program("deaf", _DEAF, patience_seconds=0))
    for _ in range(DEATHS):
        before = {polite.pid, deaf.pid}
        assert supervisor.restart("polite")
        assert supervisor.restart("deaf")
        tend_until(supervisor, partial(are_back, both, before), "both are back")
    assert not any("ended" in line for line in said)
    assert not supervisor.restart("nobody")


def test_groups_end_in_the_reverse_order_of_their_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is asked to end only when the one that was started after it has ended."""
    supervisor = Supervisor(tmp_path, announce=list[str]().append)
    children = [child for name in "123" for child in started(supervisor, program(name, _WELL))]
    asked, send = list[tuple[str, str]](), Child.send

    def note(child: Child, signum: signal.Signals) -> None:
        asked.append((child.name, "".join(each.name for each in children if each.exit_code is None)))
        send(child, signum)

    monkeypatch.setattr(Child, "send", note)
    supervisor.stop(in_hurry=lambda: False)

    assert asked == [("3", "123"), ("2", "12"), ("1", "1")]


@pytest.mark.parametrize(
    ("options", "in_hurry", "end"),
    [
        ({"patience_seconds": 0}, lambda: False, signal.SIGKILL),
        ({"patience_seconds": 600}, at_once, signal.SIGKILL),
        ({"hurry_signal": signal.SIGQUIT}, at_once, signal.SIGQUIT),
    ],
    ids=["its time is over", "in a hurry", "with a signal for a hurry"],
)
def test_a_child_that_does_not_end_is_killed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    in_hurry: Callable[[], bool],
    end: signal.Signals,
) -> None:
    """A program may have a fast way to end that is still in better order than being killed."""
    monkeypatch.setattr("toolfleet_cli.local.supervisor._HURRY_SECONDS", 0 if end == signal.SIGKILL else 600)
    supervisor = Supervisor(tmp_path, announce=list[str]().append)
    (child,) = started(supervisor, program("deaf", _DEAF, **options))
    supervisor.stop(in_hurry=in_hurry)

    assert child.exit_code == -end


def test_a_large_log_is_moved_aside_at_the_start(tmp_path: Path) -> None:
    """Logs do not grow for ever: over 10 MiB, a start begins a new one and keeps the old one."""
    (tmp_path / "some.log").write_bytes(b"x" * (10 * 2**20 + 1))
    ended_child(tmp_path)

    assert (tmp_path / "some.log").stat().st_size == 0
    assert (tmp_path / "some.log.1").stat().st_size > 10 * 2**20


def ended_child(folder: Path) -> Child:
    child = Child(program("some", "exit"), folder / "some.log")
    child.kill()
    return child


class Reports(DeathReports):
    """Keeps what it is to report."""

    def __init__(self) -> None:
        super().__init__(Settings(redis_url="redis://127.0.0.1:1/0"))
        self.found: list[WorkerNote] = []

    def add(self, note: WorkerNote) -> None:
        self.found.append(note)


_NOTES = "from toolfleet_tasks.transport.leases import write_note; write_note('ada0')"
_STAYS = "print('here I am', flush=True); import signal; signal.pause()"


@pytest.mark.parametrize(
    ("code", "is_reported"),
    [
        (f"{_NOTES}; {_STAYS}", True),
        (f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_NOTES!r}]); {_STAYS}", False),
        (_STAYS, False),
    ],
    ids=["its own note", "the note of a child of its", "no note"],
)
def test_a_worker_is_reported_when_it_was_waited_for(supervisor: Supervisor, code: str, is_reported: bool) -> None:
    """Under the name that the process itself has noted, once for each process, and never while it runs."""
    reports = Reports()
    (child,) = started(supervisor, program("worker", "", argv=[sys.executable, "-c", code], reports=reports))
    supervisor.tend()
    assert reports.found == []
    pid = child.pid
    os.kill(pid, signal.SIGKILL)
    wait_until_sync(partial(has_ended, child), "it has ended")
    supervisor.tend()
    supervisor.tend()

    assert [(note.holder, note.pid) for note in reports.found] == ([("ada0", pid)] if is_reported else [])
