"""Environments of packages that nobody uses any more: a host that starts removes them, and never one that another process has."""

import json
import os
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.hosts.host_process import HostProcess, folder_host_process
from support.hosts.wheels import build_wheel
from support.waiting import wait_until_sync
from toolfleet_modules.hosts.folder.packages import EnvironmentUse

DAY = 86_400.0
TOOL = '''# /// script
# dependencies = ["PACKAGE"]
# ///
from toolfleet.sdk import tool
import PACKAGE

@tool(effect="read")
def version() -> str:
    """Say which."""
    return PACKAGE.VERSION
'''


def grow_old(path: Path, days: float = 31) -> None:
    """As if it had been used last so long ago."""
    moment = time.time() - days * DAY
    os.utime(path, (moment, moment))


def environments(folder: Path) -> list[Path]:
    return sorted(folder.glob("?" * 32))


@pytest.mark.slow
def test_a_host_that_starts_removes_what_no_process_uses(tmp_path: Path) -> None:
    """Of three hosts at one folder the second leaves what the first one uses; the third one finds that killed, and removes it."""
    build_wheel(tmp_path / "wheels", "talons", "1.0")
    build_wheel(tmp_path / "wheels", "feathers", "1.0")
    kept = tmp_path / "environments"
    env = {
        "TOOLFLEET_HOST_DATA_FOLDER": str(tmp_path),
        "TOOLFLEET_TOOL_INSTALL_OPTIONS": json.dumps(
            ["--no-index", "--offline", "--find-links", str(tmp_path / "wheels")]
        ),
        "TOOLFLEET_TOOL_SECURITY": "off",
    }

    def serving(name: str, package: str) -> AbstractContextManager[HostProcess]:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "owl.py").write_text(TOOL.replace("PACKAGE", package))
        return folder_host_process(folder, "--port", "0", "--no-announce", env=env)

    with serving("first", "talons") as first:
        wait_until_sync(lambda: len(environments(kept)) == 1, f"installed\n{first.said()}")
        (talons,) = environments(kept)
        grow_old(talons)
        with serving("second", "feathers") as second:
            wait_until_sync(lambda: len(environments(kept)) == 2, f"installed\n{second.said()}")
        assert talons in environments(kept)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    (feathers,) = [each for each in environments(kept) if each != talons]
    grow_old(talons)
    with serving("second", "feathers"):
        wait_until_sync(lambda: environments(kept) == [feathers], "what nobody uses is removed")


def made(folder: Path, name: str) -> Path:
    path = folder / (name * 32)
    (path / "talons").mkdir(parents=True)
    return path


def test_what_is_in_use_or_was_used_lately_stays(tmp_path: Path) -> None:
    """And what is no environment, or is one behind a link; one that is removed is gone at once for whoever looks for it."""
    held, young, old = (made(tmp_path, name) for name in "abc")
    beside = tmp_path / "notes"
    beside.mkdir()
    (tmp_path / ("d" * 32)).symlink_to(beside)
    (tmp_path / (f".{'e' * 32}.removing") / "rest").mkdir(parents=True)
    user, other = EnvironmentUse(tmp_path), EnvironmentUse(tmp_path)
    assert user.hold(held)
    for path in (held, old, beside):
        grow_old(path)
    grow_old(young, days=29)
    other.remove_unused()
    assert sorted(each.name[:1] for each in tmp_path.iterdir()) == ["a", "b", "d", "n"]
    assert not other.hold(old)

    user.aclose()
    other.remove_unused()
    assert held.is_dir(), "it was used until just now"
    grow_old(held)
    other.remove_unused()
    assert not held.exists()


def test_one_that_was_installed_anew_is_held_anew(tmp_path: Path) -> None:
    """The lock on a folder that somebody has deleted by hand keeps nothing."""
    path = made(tmp_path, "a")
    user, other = EnvironmentUse(tmp_path), EnvironmentUse(tmp_path)
    assert user.hold(path)
    (path / "talons").rmdir()
    path.rmdir()
    assert not user.hold(path)
    made(tmp_path, "a")
    assert user.hold(path)
    grow_old(path)
    other.remove_unused()
    assert path.is_dir()
