"""The fence around a tool folder's process: what it inherits, how much it may take, and what its end costs."""

import asyncio
import json
import os
import signal
import textwrap
from pathlib import Path

import psutil
import pytest

from support.clocks import Later
from support.hosts.isolation import can_isolate
from support.hosts.tool_folder import GREET, HEAD, HostedFolder, hosted
from support.processes import is_gone
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered, wait_until_equal
from toolfleet_modules.hosts.child_process import Fence

pytestmark = pytest.mark.asyncio

LONG = 2 * PATIENCE_SECONDS
"""Of a call whose time is over when its test says so."""

LOOK = HEAD + textwrap.dedent('''
    import ctypes, os, pathlib, resource, signal, subprocess, sys, time

    @tool
    def look() -> dict[str, object]:
        """Look around."""
        status = pathlib.Path("/proc/self/status").read_text()
        limits = {name: resource.getrlimit(getattr(resource, name))[0] for name in ("RLIMIT_AS", "RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_NPROC", "RLIMIT_CPU")}
        return {
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "group": os.getpgrp() == os.getpid(),
            "no_new_privileges": "NoNewPrivs:\\t1" in status,
            "limits": limits,
            "descriptors": len(os.listdir("/proc/self/fd")),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "pid": os.getpid(),
        }

    @tool
    def read(path: str) -> str:
        """Read a file."""
        return pathlib.Path(path).read_text(errors="replace")

    @tool
    def write(path: str) -> str:
        """Write a file."""
        pathlib.Path(path).write_text("x")
        return "written"

    @tool
    def hog(mib: int) -> int:
        """Take memory."""
        return len(bytearray(mib * 2**20))

    @tool
    def crash() -> str:
        """Crash the interpreter."""
        ctypes.string_at(0)
        return "alive"

    @tool
    async def block(note: str) -> str:
        """Hold the loop in C."""
        pathlib.Path(note).touch()
        time.sleep(600)
        return "woke"

    @tool
    def child() -> int:
        """Start a process and leave it."""
        return subprocess.Popen(["sleep", "600"]).pid

    @tool
    def connect(port: int) -> str:
        """Connect."""
        import socket
        socket.create_connection(("127.0.0.1", port), 2).close()
        return "connected"
''')


FENCE = Fence(
    memory_bytes=3 * 2**30,
    cpu_seconds=77,
    open_files=99,
    processes=5000,
    nice=7,
    variables={"OWL_TOKEN": "declared"},
)


async def test_a_process_inherits_what_is_declared_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare environment, a folder and a group of its own, no way to more privileges, limits, and the priority that it was given."""
    monkeypatch.setenv("TOOLFLEET_MODULE_KEY_OF_OTHERS", "planted")
    monkeypatch.setenv("OWL_TOKEN", "declared")
    async with hosted(tmp_path / "tools", {"look.py": LOOK}, security="off", fence=FENCE) as folder:
        seen = (await folder.call("look")).result

        allowed = {
            "HOME",
            "LANG",
            "LC_ALL",
            "LC_CTYPE",
            "OWL_TOKEN",
            "PATH",
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONUNBUFFERED",
            "TMPDIR",
            "TZ",
        }
        assert set(seen["environment"]) <= allowed
        assert "planted" not in json.dumps(seen)
        assert seen["environment"]["OWL_TOKEN"] == "declared"
        assert seen["environment"]["HOME"] == seen["folder"] != str(Path.cwd())
        assert (seen["group"], seen["no_new_privileges"]) == (True, True)
        assert seen["limits"] == {
            "RLIMIT_AS": 3 * 2**30,
            "RLIMIT_NOFILE": 99,
            "RLIMIT_CORE": 0,
            "RLIMIT_NPROC": 5000,
            "RLIMIT_CPU": 77,
        }
        assert seen["nice"] == max(7, os.getpriority(os.PRIO_PROCESS, 0))
        assert seen["descriptors"] < 15
    assert not Path(seen["folder"]).exists()
    assert not psutil.pid_exists(seen["pid"])


async def test_what_a_tool_starts_ends_with_its_process(tmp_path: Path) -> None:
    """When the interpreter has crashed, and when the host ends; after a crash the next call has a new process."""
    async with hosted(tmp_path, {"look.py": LOOK}, security="off") as folder:
        left = (await folder.call("child")).result
        pid = (await folder.call("look")).result["pid"]
        crashed = await folder.call("crash")
        assert (crashed.success, crashed.effect_state) == (False, "unknown")
        assert crashed.error == "owls.crash did not end: the process that ran it ended in the middle (signal SIGSEGV)."
        await wait_until(lambda: not psutil.pid_exists(pid), "the process has gone")
        await wait_until(lambda: is_gone(left), "what it has left behind has ended")
        await answers_again(folder, "look")
        assert (await folder.call("look")).result["pid"] != pid
        left = (await folder.call("child")).result
    await wait_until(lambda: is_gone(left), "what is left behind ends with the host, too")


async def test_memory_that_is_not_there_is_the_calls_own_trouble(tmp_path: Path) -> None:
    """It fails in words, and the calls beside it run on."""
    async with hosted(
        tmp_path, {"look.py": LOOK, "owls.py": GREET}, security="off", fence=Fence(memory_bytes=2**31)
    ) as folder:
        hog, greeted = await asyncio.gather(folder.call("hog", mib=4096), folder.call("greet", name="Ada"))

        assert (hog.success, greeted.result) == (False, "hoot Ada")
        assert hog.error == "owls.hog failed inside the module (MemoryError); its log says why."


async def test_a_tool_that_holds_the_loop_is_ended_with_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its time is over: calls that wait behind it get a clear result, and the next ones another process."""
    note, later = tmp_path / "note", Later.here(monkeypatch)
    async with hosted(tmp_path / "tools", {"look.py": LOOK, "owls.py": GREET}, security="off") as folder:
        blocked = asyncio.ensure_future(folder.client.send("owls.block", {"note": str(note)}, seconds=LONG))
        await wait_until(note.exists, "it is at work")
        waiting = asyncio.ensure_future(folder.client.send("owls.greet", {"name": "Ada"}, seconds=2 * LONG))
        await calls_run(folder, 2)
        later.seconds += LONG

        assert (await blocked).effect_state == "unknown"
        lost = await waiting
        assert (lost.success, lost.retryable, lost.effect_state) == (False, True, "unknown")
        await answers_again(folder, "look")


async def test_a_call_whose_time_is_over_before_its_process_takes_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never begins, and its process goes on: as where that had no core for the whole of the call's time."""
    note, later = tmp_path / "note", Later.here(monkeypatch)
    async with hosted(tmp_path / "tools", {"look.py": LOOK}, security="off") as folder:
        pid = (await folder.call("look")).result["pid"]
        os.kill(pid, signal.SIGSTOP)
        stopped = asyncio.ensure_future(folder.client.send("owls.block", {"note": str(note)}, seconds=LONG))
        await calls_run(folder, 1)
        later.seconds += LONG
        assert (await stopped).effect_state == "unknown"
        os.kill(pid, signal.SIGCONT)

        await calls_run(folder, 0)
        assert (await folder.call("look")).result["pid"] == pid
        assert not note.exists()


async def calls_run(folder: HostedFolder, count: int) -> None:
    """Wait until the host has so many calls."""

    async def running() -> object:
        return (await folder.client.http.get("/health")).json()["running"]

    await wait_until_equal(running, count, f"{count} calls run")


async def answers_again(folder: HostedFolder, tool: str) -> None:
    """Wait until calls are taken: they are turned away while there is no process."""

    async def is_there() -> bool:
        result = await folder.call(tool)
        assert result.success or result.status == 503, result
        return result.success

    await wait_until_answered(is_there, "another process answers")


@pytest.mark.skipif(not can_isolate(), reason="bubblewrap is not installed, or may make no namespaces")
async def test_bubblewrap_leaves_neither_network_nor_files_to_write(tmp_path: Path) -> None:
    """A tool writes into its own folder, and reaches nothing."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        hosted(tmp_path / "tools", {"look.py": LOOK}, security="off", fence=Fence(isolation="bwrap")) as folder,
    ):
        seen = (await folder.call("look")).result
        outside = await folder.call("write", path=str(tmp_path / "outside"))
        inside = await folder.call("write", path=f"{seen['folder']}/inside")
        connected = await folder.call("connect", port=port)

        assert (outside.success, inside.result, connected.success) == (False, "written", False)
        assert not (tmp_path / "outside").exists()


@pytest.mark.skipif(not can_isolate(), reason="bubblewrap is not installed, or may make no namespaces")
async def test_bubblewrap_shows_what_a_host_needs(tmp_path: Path) -> None:
    """Its folders without what is private in them, and the system's; also what is put in the place of a private file is not seen."""
    files = {
        "home/toolfleet.toml": False,
        "home/data": True,
        "home/.toolfleet/key": False,
        "home/.toolfleet/tools/data": True,
    }
    for file in (*files, "outside"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("owl")
    home = tmp_path / "home"
    private = (home / "toolfleet.toml", home / "mcp.json", home / ".toolfleet")
    fence = Fence(isolation="bwrap", writable=(home,), readable=(home / ".toolfleet" / "tools",), private=private)
    expected = {str(tmp_path / file): is_seen for file, is_seen in files.items()}
    expected |= {str(tmp_path / "outside"): False, "/etc/passwd": True, "/etc/shadow": False, "/root/.profile": False}
    async with hosted(tmp_path / "tools", {"look.py": LOOK}, security="off", fence=fence) as folder:
        (home / "draft").write_text("owl")
        (home / "draft").replace(home / "toolfleet.toml")
        seen = {path: (await folder.call("read", path=path)).success for path in expected}

    assert seen == expected
