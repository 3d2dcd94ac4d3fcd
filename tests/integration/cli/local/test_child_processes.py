"""Child processes end with their parent, however it ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import is_gone, next_line, python_program
from support.waiting import wait_until_sync
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_modules.hosts.guard import signal_group

_PARENT = """
import sys, signal
from toolfleet_modules.hosts.child_process import spawn
child = spawn([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_child_ends_when_its_parent_is_ended_by(signum: signal.Signals) -> None:
    """No signal that ends us leaves a child behind."""
    with python_program(_PARENT) as parent:
        child = int(next_line(parent))
        parent.send_signal(signum)

        wait_until_sync(lambda: is_gone(child), "the child is gone")


def test_a_child_gets_our_environment_and_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`env` is added to ours; `output` takes both streams; `cwd` is where it runs."""
    monkeypatch.setenv("FROM_US", "ours")
    code = "import os, sys; print(os.environ['FROM_US'], os.environ['MORE'], os.getcwd(), file=sys.stderr)"
    with (tmp_path / "out").open("wb") as output:
        spawn([sys.executable, "-c", code], env={"MORE": "more"}, cwd=tmp_path, output=output).wait()

    assert (tmp_path / "out").read_text() == f"ours more {tmp_path}\n"


def test_a_child_has_a_session_of_its_own_and_reads_nothing_from_our_terminal() -> None:
    """Ctrl-C in our terminal reaches us, and not our children behind our back."""
    code = "import os, sys; sys.exit(len(sys.stdin.read()) or os.getsid(0) != os.getpid())"

    assert spawn([sys.executable, "-c", code]).wait() == 0


@pytest.mark.parametrize(
    ("answer", "patience_seconds", "code"),
    [("lambda *_: sys.exit(7)", 20, 7), ("signal.SIG_IGN", 0, -signal.SIGKILL)],
    ids=["in order", "killed"],
)
def test_stop_lets_a_child_end_in_order_or_kills_it(answer: str, patience_seconds: float, code: int) -> None:
    """Within its patience; then safely tells again how it ended, and a signal reaches nobody."""
    program = f"import signal, sys; signal.signal(signal.SIGTERM, {answer}); print(flush=True); signal.pause()"
    with spawn([sys.executable, "-c", program], output=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()

        assert stop(child, patience_seconds=patience_seconds) == code
        assert stop(child, patience_seconds=patience_seconds) == code
        assert signal_group(child.pid, signal.SIGTERM) is False


def test_stop_ends_what_the_child_started_too() -> None:
    """A grandchild does not outlive its parent, even one that ended in good order."""
    code = "import subprocess, signal; print(subprocess.Popen(['tail', '-f', '/dev/null']).pid, flush=True); signal.pause()"
    with spawn([sys.executable, "-c", code], output=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        stop(child, patience_seconds=20)

        wait_until_sync(lambda: is_gone(grandchild), "the grandchild is gone")


def test_a_child_of_a_parent_that_is_already_gone_does_not_start() -> None:
    """If the parent dies between the fork and the child's request to be told, the child ends on its own."""
    code = (
        "import os, sys, time\n"
        "from toolfleet_modules.hosts.child_process import _end_with_parent\n"
        "_end_with_parent(os.getppid() + 1)()\n"
        "signal.pause()"
    )
    with python_program(code) as orphan:
        assert orphan.wait() == 1
