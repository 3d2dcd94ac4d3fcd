"""Temporary folders of hosts: they end with their owner, however that ends, and no living one loses its own."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from support.hosts.host_process import folder_host_process
from support.hosts.mcp_server import hosted_server, stdio
from support.waiting import wait_until
from toolfleet_modules.hosts.child_process import OwnFolder, remove_abandoned

pytestmark = pytest.mark.asyncio


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is the machine's folder for temporary ones, here and in processes that are started."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def found(folder: Path) -> set[Path]:
    return set(folder.glob("toolfleet-*"))


@pytest.mark.fleet
async def test_a_killed_host_leaves_its_folders_to_the_next_one(tmp_path: Path, temporary: Path) -> None:
    """Of whatever kind that is; a third host that lives keeps its own."""
    with folder_host_process(tmp_path / "owls", env={}) as killed:
        await wait_until(lambda: len(found(temporary)) == 2, "its process and the spare one have theirs")
        left = found(temporary)
        with folder_host_process(tmp_path / "larks", env={}, name="larks"):
            await wait_until(lambda: len(found(temporary)) == 4, "those of the other one, too")
            living = found(temporary) - left
            os.kill(killed.process.pid, signal.SIGKILL)
            killed.process.wait()
            assert found(temporary) >= left

            async with hosted_server(stdio(tmp_path / "notes"), tmp_path / "notes"):
                await wait_until(lambda: not found(temporary) & left, "what was left is removed")
                assert living < found(temporary)
    await wait_until(lambda: found(temporary) <= living, "the server's folder went with it")


async def test_only_folders_of_the_dead_are_removed(temporary: Path) -> None:
    """Not one whose owner lives, nor what has such a name and is something else."""
    own = OwnFolder.make()
    (own.path / "file").write_text("owl")
    dead = temporary / "toolfleet-own-dead"
    (dead / "inside").mkdir(parents=True)
    other, elsewhere = temporary / "toolfleet-mcp-other", temporary / "elsewhere"
    other.mkdir()
    elsewhere.mkdir()
    (temporary / "toolfleet-own-link").symlink_to(elsewhere)
    (temporary / "toolfleet-own-file").write_text("owl")

    remove_abandoned()

    assert not dead.exists()
    assert (own.path / "file").exists()
    assert all(each.exists() for each in (other, elsewhere, temporary / "toolfleet-own-file"))
    own.remove()
    assert not own.path.exists()


async def test_where_there_are_no_locks_nothing_is_removed(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems, which cannot be had here: nobody could know whose a folder is."""

    def refused(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("toolfleet_modules.hosts.child_process.fcntl.flock", refused)
    own = OwnFolder.make()
    remove_abandoned()

    assert found(temporary) == {own.path}
    own.remove()
    assert not found(temporary)
