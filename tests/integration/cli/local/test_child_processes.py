"""Child processes end with their parent, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import is_gone, next_line, python_program
from support.waiting import wait_until_sync
from toolfleet_cli.local.child_processes import signal_group, spawn, stop

_PARENT = """
import sys, time
from toolfleet_cli.local.child_processes import spawn
child = spawn([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_child_ends_when_its_parent_is_ended_by(signum: signal.Signals) -> None:
    """No signal that ends us leaves a child behind."""
    with python_program(_PARENT) as parent:
        child = int(next_line(parent))
        parent.send_signal(signum)

        wait_until_sync(lambda: is_gone(child), "the child is gone")


def test_a_child_has_a_session_of_its_own() -> None:
    """Ctrl-C in our terminal reaches us, and not our children behind our back."""
    child = spawn([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert os.getsid(child.pid) == child.pid
    finally:
        stop(child, patience_seconds=5)


def test_a_child_gets_our_environment_and_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`env` is added to ours; `output` takes both streams; `cwd` is where it runs."""
    monkeypatch.setenv("FROM_US", "ours")
    code = "import os, sys; print(os.environ['FROM_US'], os.environ['MORE'], os.getcwd(), file=sys.stderr)"
    with (tmp_path / "out").open("wb") as output:
        spawn([sys.executable, "-c", code], env={"MORE": "more"}, cwd=tmp_path, output=output).wait(20)

    assert (tmp_path / "out").read_text() == f"ours more {tmp_path}\n"


def test_a_child_reads_nothing_from_our_terminal() -> None:
    """Its standard input is empty unless it is given one."""
    child = spawn([sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read()))"])

    assert child.wait(20) == 0


def test_stop_lets_a_child_end_in_order() -> None:
    """A child that answers SIGTERM within its patience ends with its own exit code."""
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(flush=True); time.sleep(600)"
    child = spawn([sys.executable, "-c", code], output=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()

        assert stop(child, patience_seconds=20) == 7


def test_stop_kills_a_child_that_does_not_end() -> None:
    """A child that ignores SIGTERM is killed after its patience."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    child = spawn([sys.executable, "-c", code], output=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()

        assert stop(child, patience_seconds=0.1) == -signal.SIGKILL


def test_stop_ends_what_the_child_started_too() -> None:
    """A grandchild does not outlive its parent, even one that ended in good order."""
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    child = spawn([sys.executable, "-c", code], output=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        stop(child, patience_seconds=20)

        wait_until_sync(lambda: is_gone(grandchild), "the grandchild is gone")


def test_stopping_a_child_that_has_ended_tells_how() -> None:
    """`stop` is safe after the end."""
    child = spawn([sys.executable, "-c", "raise SystemExit(3)"])
    child.wait(20)

    assert stop(child, patience_seconds=5) == 3


def test_a_signal_to_nobody_is_no_error() -> None:
    """A group that has ended may be signalled by who does not know it yet."""
    child = spawn([sys.executable, "-c", ""])
    child.wait(20)

    assert signal_group(child.pid, signal.SIGTERM) is False


def test_a_child_of_a_parent_that_is_already_gone_does_not_start() -> None:
    """If the parent dies between the fork and the child's request to be told, the child ends on its own."""
    code = (
        "import os, sys, time\n"
        "from toolfleet_cli.local.child_processes import _end_with_parent\n"
        "_end_with_parent(os.getppid() + 1)()\n"
        "time.sleep(600)"
    )
    with python_program(code) as orphan:
        assert orphan.wait(20) == 1
