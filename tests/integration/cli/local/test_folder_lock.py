"""One fleet a folder."""

import os
import signal
from pathlib import Path

import pytest

from support.processes import is_gone, next_line, python_program
from toolfleet_cli.local.fleet import folder_lock
from toolfleet_cli.local.supervisor import StopRequested
from toolfleet_registry.errors import FolderInUse

_OWNER = """
import os, subprocess, sys, signal
from pathlib import Path
from toolfleet_cli.local.fleet import folder_lock
with folder_lock(Path(sys.argv[1])) as lock:
    child = subprocess.Popen(["tail", "-f", "/dev/null"], pass_fds=[lock])
    print(child.pid, flush=True)
    signal.pause()
"""


def test_it_makes_the_folder_for_us_alone_and_is_free_after_its_block(tmp_path: Path) -> None:
    """Nobody else on the machine may look into it; one fleet may follow the other."""
    for _ in range(2):
        with folder_lock(tmp_path / "data"):
            assert (tmp_path / "data").stat().st_mode & 0o077 == 0


def test_two_processes_cannot_have_it(tmp_path: Path) -> None:
    with python_program(_OWNER, tmp_path) as owner:
        next_line(owner)
        with pytest.raises(FolderInUse) as caught, folder_lock(tmp_path):
            pytest.fail("we have it too")

    assert caught.value.pid == owner.pid
    assert str(caught.value) == (
        f"A fleet is running in {tmp_path} already (process {owner.pid}): use it, or stop it first."
    )


def test_what_a_killed_owner_left_behind_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that still writes has the folder until it ends; waiting for that has an end, and Ctrl-C is heard meanwhile."""
    with python_program(_OWNER, tmp_path) as owner:
        child = int(next_line(owner))
        owner.kill()
        owner.wait()

        def stop() -> None:
            raise StopRequested

        with pytest.raises(StopRequested), folder_lock(tmp_path, check=stop):
            pytest.fail("we have it")
        with monkeypatch.context() as impatient:
            impatient.setattr("toolfleet_cli.local.fleet._WAIT_SECONDS", 0)
            with pytest.raises(FolderInUse, match="already: use it") as caught, folder_lock(tmp_path):
                pytest.fail("we have it")
        assert caught.value.pid is None
        with folder_lock(tmp_path, check=lambda: os.kill(child, signal.SIGKILL)):
            assert is_gone(child)
