"""One fleet a folder."""

import os
import signal
from pathlib import Path

import pytest

from support.processes import is_gone, next_line, python_program
from toolfleet_cli.local.folder_lock import folder_lock
from toolfleet_cli.local.stop_signals import StopRequested
from toolfleet_registry.errors import FolderInUse

_OWNER = """
import os, subprocess, sys, time
from pathlib import Path
from toolfleet_cli.local.folder_lock import folder_lock
with folder_lock(Path(sys.argv[1])) as lock:
    child = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=[lock])
    print(child.pid, flush=True)
    time.sleep(600)
"""


def test_it_makes_the_folder_for_us_alone(tmp_path: Path) -> None:
    """Nobody else on the machine may look into it."""
    with folder_lock(tmp_path / "data"):
        assert (tmp_path / "data").stat().st_mode & 0o077 == 0


def test_two_processes_cannot_have_it(tmp_path: Path) -> None:
    """The second is told who has it, at once."""
    with python_program(_OWNER, tmp_path, 0) as owner:
        next_line(owner)
        with pytest.raises(FolderInUse) as caught, folder_lock(tmp_path):
            pytest.fail("we have it too")

    assert caught.value.pid == owner.pid
    assert str(caught.value) == (
        f"A fleet is running in {tmp_path} already (process {owner.pid}): use it, or stop it first."
    )


def test_it_is_free_after_its_block(tmp_path: Path) -> None:
    """One fleet after the other."""
    for _ in range(2):
        with folder_lock(tmp_path):
            pass


def test_what_a_killed_owner_left_behind_is_waited_for(tmp_path: Path) -> None:
    """A Redis that still writes has the folder until it ends."""
    with python_program(_OWNER, tmp_path, 1) as owner:
        child = int(next_line(owner))
        owner.kill()
        owner.wait()
        with folder_lock(tmp_path):
            assert is_gone(child)


def test_waiting_for_it_can_be_ended(tmp_path: Path) -> None:
    """Whoever presses Ctrl-C meanwhile is heard."""

    def check() -> None:
        raise StopRequested

    with python_program(_OWNER, tmp_path, 600) as owner:
        child = int(next_line(owner))
        owner.kill()
        owner.wait()
        with pytest.raises(StopRequested), folder_lock(tmp_path, check=check):
            pytest.fail("we have it")
        os.kill(child, signal.SIGKILL)


def test_waiting_for_it_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of the dead that does not end is an error after a while."""
    monkeypatch.setattr("toolfleet_cli.local.folder_lock._WAIT_SECONDS", 0.2)
    with python_program(_OWNER, tmp_path, 600) as owner:
        child = int(next_line(owner))
        owner.kill()
        owner.wait()
        with pytest.raises(FolderInUse, match="already: use it") as caught, folder_lock(tmp_path):
            pytest.fail("we have it")
        os.kill(child, signal.SIGKILL)

    assert caught.value.pid is None
