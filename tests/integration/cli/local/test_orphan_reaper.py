"""The warden ends process groups whose owner is gone."""

import os
import signal
import sys
from pathlib import Path

import pytest

from support.processes import is_gone, next_line, python_program
from support.waiting import wait_until_sync
from toolfleet_modules.hosts.child_process import OrphanReaper, spawn, stop

# The child and the grandchild ignore SIGTERM; the grandchild is nobody's direct child after the kill.
_OWNER = """
import subprocess, sys, signal
from toolfleet_modules.hosts.child_process import spawn
from toolfleet_modules.hosts.child_process import OrphanReaper
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
parent = '''
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
grandchild.stdout.readline()
print(grandchild.pid, flush=True)
signal.pause()
'''
warden = OrphanReaper(patience_seconds=0.5)
child = spawn([sys.executable, "-c", parent, deaf], output=subprocess.PIPE)
warden.watch(child.pid)
print(warden.pid, child.pid, int(child.stdout.readline()), flush=True)
signal.pause()
"""


def test_a_killed_owner_leaves_nothing_behind() -> None:
    """Children and grandchildren end, those that ignore SIGTERM too, and then the warden itself."""
    with python_program(_OWNER) as owner:
        warden, child, grandchild = map(int, next_line(owner).split())
        owner.kill()

        wait_until_sync(lambda: is_gone(child), "the child is gone")
        wait_until_sync(lambda: is_gone(grandchild), "the grandchild is gone")
        wait_until_sync(lambda: is_gone(warden), "the warden is gone")


def test_a_released_child_is_left_alone() -> None:
    """Whoever is released is none of the warden's business."""
    warden = OrphanReaper()
    child = spawn([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        warden.watch(child.pid)
        warden.release(child.pid)
        warden.close()

        assert child.poll() is None
    finally:
        stop(child, patience_seconds=5)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_signals_do_not_end_it_before_its_owner() -> None:
    """A signal to the whole fleet must not end the one that cleans up first; `close` waits until its children are gone."""
    warden = OrphanReaper(patience_seconds=0.2)
    wait_until_sync(lambda: _ignores(warden.pid, signal.SIGTERM), "the warden ignores SIGTERM")
    os.kill(warden.pid, signal.SIGTERM)
    child = spawn([sys.executable, "-c", "import signal; signal.pause()"])
    warden.watch(child.pid)
    warden.close()

    assert child.wait() == -signal.SIGTERM


def test_without_its_warden_an_owner_works_on() -> None:
    """A warden that was killed makes no error."""
    warden = OrphanReaper()
    os.kill(warden.pid, signal.SIGKILL)
    wait_until_sync(lambda: is_gone(warden.pid), "the warden is gone")
    for pid in range(1000):
        warden.watch(2**30 + pid)

    warden.close()


def _ignores(pid: int, signum: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = next(line.split()[1] for line in status if line.startswith("SigIgn"))
    return bool(int(ignored, 16) >> (signum - 1) & 1)
