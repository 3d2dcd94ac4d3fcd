"""`deployer` among attackers and accidents: paths, links, ports, restarts."""

import asyncio
import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from modules.deployer.front import Front
from modules.deployer.manifest import module_for
from modules.deployer.plan import Declaration, plan_for
from modules.deployer.process_backend import ProcessBackend
from modules.deployer.releases import take_release
from modules.deployer.settings import DeployerSettings
from modules.kept_commands import KeptCommand
from modules.workspaces import find_project
from support.modules.workshop import (
    commands_in,
    deployer,
    deployer_here,
    kill,
    make_workspace,
    processes_of,
    refusal,
    restarted,
    result,
    until,
)
from support.processes import is_gone
from support.servers.plain_http import PLAIN
from support.streams.stream_server import stream_server
from support.waiting import wait_until

SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"served")
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
FILES = {"server.py": SERVER, "deploy.json": '{"command": ["python", "server.py"]}'}
OLD_RUNS = ("0", "1")


@pytest.fixture
def outside(folder: Path) -> Path:
    """What lies beside the workspaces, and is nobody's to deploy."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / "index.html").write_text("secret")
    return outside


async def text(url: str) -> str:
    async with httpx.AsyncClient(trust_env=False, verify=PLAIN) as client:
        return (await client.get(url)).raise_for_status().text


async def test_only_ones_own_workspaces_are_projects(folder: Path, outside: Path) -> None:
    """Nothing beside them, nothing of others', nothing that a path or a link leads out to; all get the same answer."""
    own = make_workspace(folder, "t1", {"index.html": "mine"})
    others = make_workspace(folder, "t2", {"index.html": "theirs"}, owner="bob")
    (own / "out").symlink_to(outside)
    (own / "up").symlink_to(others)
    (folder / "workspaces" / "t3").symlink_to(outside)
    (folder / "workspaces" / "stray").mkdir()
    (folder / "workspaces" / "t1-link").symlink_to(own)
    records = folder / "workspaces" / ".tasks" / "t1"
    (records / "index.html").write_text("record")
    wrong = [
        *(outside, others, f"{own}/out", f"{own}/up", folder / "workspaces" / "t3", folder / "workspaces" / "stray"),
        *(
            folder / "workspaces",
            records,
            f"{own}/../t2",
            f"{own}/index.html",
            f"{own}/none",
            "/",
            "t1",
            "~",
            "\0",
            "x" * 4000,
        ),
    ]
    answer = " is not a folder in a workspace of yours; use the one that the task's status names."
    with deployer_here(folder) as module:
        for path in wrong:
            assert await refusal(module, "deploy", project_path=str(path)) == f"{str(path)[:300]!r}{answer}"
        for path in ("", "x" * 4001):  # no paths at all, whoever asks
            assert "Invalid arguments" in await refusal(module, "deploy", project_path=path)
        assert await result(module, "list_deployments") == []
        via_link = await result(module, "deploy", project_path=str(folder / "workspaces" / "t1-link"))
        assert await text(via_link["url"]) == "mine"  # a link is judged by where it ends


async def test_links_in_a_project_are_left_out(folder: Path, outside: Path) -> None:
    """A page, a folder, a built site or a declaration that is a link is not followed; pipes are not waited for."""
    own = make_workspace(folder, "t1", {"dist/index.html": "mine"})
    (own / "dist/secret.html").symlink_to(outside / "index.html")
    (own / "dist/folder").symlink_to(outside)
    os.mkfifo(own / "dist/pipe")
    linked = make_workspace(folder, "t2", {"public/x": ""})
    (linked / "dist").symlink_to(outside)
    (linked / "public/index.html").symlink_to(outside / "index.html")
    declared = make_workspace(folder, "t3", {})
    (declared / "deploy.json").symlink_to(outside / "index.html")
    with deployer_here(folder) as module:
        deployed = await result(module, "deploy", project_path=str(own))
        assert "no index.html" in await refusal(module, "deploy", project_path=str(linked))
        assert "deploy.json is not a file" in await refusal(module, "deploy", project_path=str(declared))
        release = folder / "deployments" / deployed["deployment_id"] / "releases" / deployed["release"]

        assert [path.name for path in release.iterdir()] == ["index.html"]


def test_a_link_that_appears_after_the_check_is_not_followed(folder: Path, outside: Path) -> None:
    """Between finding a project and copying it, its folder may be exchanged."""
    own = make_workspace(folder, "t1", {"site/index.html": "mine"})
    found = find_project(f"{own}/site", user_id="ada", roots=(folder / "workspaces",))
    assert found is not None
    shutil.rmtree(own / "site")
    (own / "site").symlink_to(outside)

    with pytest.raises(OSError, match="Not a directory"), found.opened():
        pytest.fail("it was followed")


def test_the_same_files_are_the_same_release(folder: Path) -> None:
    """Whatever their times; another byte, name or right to run makes another one."""
    own = make_workspace(folder, "t1", {"index.html": "mine", "b": "x"})

    def taken() -> str:
        found = find_project(str(own), user_id="ada", roots=(folder / "workspaces",))
        assert found is not None
        with found.opened() as project:
            return take_release(project, plan_for(project, None), folder / "releases", max_files=9, max_mb=1).release_id

    first = taken()
    os.utime(own / "index.html", (1, 1))
    assert taken() == first
    (own / "b").chmod(0o755)
    second = taken()
    (own / "b").rename(own / "c")
    third = taken()
    (own / "c").write_text("y")
    assert len({first, second, third, taken()}) == 4
    assert not list((folder / "releases").glob(".draft*"))


async def test_deployments_are_their_owners_alone(folder: Path) -> None:
    """Others can neither see nor end them, and the same name is another deployment."""
    mine = make_workspace(folder, "t1", {"index.html": "mine"})
    theirs = make_workspace(folder, "t2", {"index.html": "theirs"}, owner="bob")
    with deployer_here(folder, deployments=1) as module:
        deployed = await result(module, "deploy", project_path=str(mine), name="owls")
        other = await result(module, "deploy", project_path=str(theirs), name="owls", user="bob")
        for tool in ("deployment_status", "deployment_logs", "rollback", "stop_deployment"):
            said = await refusal(module, tool, deployment_id=deployed["deployment_id"], user="bob")
            assert "You have no deployment" in said

        assert await result(module, "list_deployments") == [deployed]
        assert (await text(deployed["url"]), await text(other["url"])) == ("mine", "theirs")
        assert "the most there is room for" in await refusal(module, "deploy", project_path=str(mine), name="second")
        assert "small letters" in await refusal(module, "deploy", project_path=str(mine), name="../../x")


async def test_a_killed_module_brings_its_deployments_back(folder: Path) -> None:
    """At the same addresses: sites at once, processes started anew; the old processes are gone, what was stopped stays so."""
    with deployer(folder) as module:
        site = await result(module, "deploy", project_path=str(make_workspace(folder, "t1", {"index.html": "site"})))
        process = await result(module, "deploy", project_path=str(make_workspace(folder, "t2", FILES)))
        idle = await result(module, "deploy", project_path=str(make_workspace(folder, "t3", {"index.html": "idle"})))
        idle = await result(module, "stop_deployment", deployment_id=idle["deployment_id"])
        (pid,) = commands_in(folder, "server.py")
        kill(module)
    await wait_until(lambda: is_gone(pid), "the process has ended with its module")
    (folder / "deployments" / site["deployment_id"] / "releases" / ".draft-1").mkdir()

    with deployer(folder) as module:
        assert await text(site["url"]) == "site"
        named = {"deployment_id": process["deployment_id"]}
        assert (await until(module, "deployment_status", {"running"}, **named))["url"] == process["url"]
        assert await text(process["url"]) == "served"
        assert commands_in(folder, "server.py") != [pid]
        assert await result(module, "deployment_status", deployment_id=site["deployment_id"]) == site
        assert await result(module, "deployment_status", deployment_id=idle["deployment_id"]) == idle
        releases = folder / "deployments" / site["deployment_id"] / "releases"
        assert [path.name for path in releases.iterdir()] == [site["release"]]


async def test_a_process_whose_keeper_was_killed_is_started_again(folder: Path) -> None:
    """What it left behind is ended first."""
    with deployer_here(folder) as module:
        process = await result(module, "deploy", project_path=str(make_workspace(folder, "t1", FILES)))
        (pid,) = commands_in(folder, "server.py")
        (run,) = (folder / "deployments" / process["deployment_id"] / "runs").iterdir()
        os.kill(json.loads((run / "started.json").read_text())["keeper"], signal.SIGKILL)
        await wait_until(lambda: is_gone(pid), "the process has ended")
        status = await restarted(module, 1, process["deployment_id"])

        assert status["error"] == "What looked after it was killed."
        assert await text(status["url"]) == "served"
        assert commands_in(folder, "server.py") != [pid]


@contextlib.contextmanager
def failing_once(method: str, fault: Exception, *, in_old_run: bool) -> Generator[None]:
    """Have a method of kept commands raise `fault` at its next call, and never again. It has done so by the end."""
    real, faults = getattr(KeptCommand, method), [fault]

    def fails(command: KeptCommand, *args: Any) -> Any:
        if faults and in_old_run == (command.folder.name in OLD_RUNS):
            raise faults.pop()
        return real(command, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptCommand, method, fails)
        yield
    assert not faults


@pytest.mark.parametrize(
    ("method", "in_old_run", "fault", "said"),
    [
        ("ending", False, OSError(errno.EMFILE, "Too many files"), "Too many files"),  # it is asked why it has ended
        ("ending", False, ValueError("not JSON"), "ValueError"),  # the same, and what is written there is no record
        ("state", False, OSError(errno.EMFILE, "Too many files"), "Too many files"),  # what it left behind is ended
        ("state", True, OSError(errno.ENOSPC, "No space"), "No space"),  # an older run is looked at
        ("start", False, ValueError("a null byte"), "ValueError"),  # it is started again
    ],
)
async def test_a_fault_that_passes_ends_no_keeping(
    folder: Path, caplog: pytest.LogCaptureFixture, method: str, in_old_run: bool, fault: Exception, said: str
) -> None:
    """Whatever is done when it happens: the deployment comes back at its address; its status and the log name the fault."""
    with deployer_here(folder, restart_seconds=0.02) as module:
        process = await result(module, "deploy", project_path=str(make_workspace(folder, "t1", FILES)))
        for run in OLD_RUNS:  # so many that one of them is removed
            (folder / "deployments" / process["deployment_id"] / "runs" / run).mkdir()
        (pid,) = commands_in(folder, "server.py")
        with failing_once(method, fault, in_old_run=in_old_run):
            os.kill(pid, signal.SIGKILL)
            status = await restarted(module, 1, process["deployment_id"])

        assert (status["url"], status["error"]) == (process["url"], f"It could not be looked after ({said}).")
        assert await text(status["url"]) == "served"
        assert commands_in(folder, "server.py") != [pid]
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [fault]


async def test_a_port_that_is_taken_is_replaced(folder: Path) -> None:
    """A deployment whose port somebody else has by then comes back at another one, and says so."""
    with deployer_here(folder) as module:
        site = await result(module, "deploy", project_path=str(make_workspace(folder, "t1", {"index.html": "site"})))
    port = int(site["url"].split(":")[2].strip("/"))
    with socket.create_server(("127.0.0.1", port)), deployer_here(folder) as module:
        moved = await result(module, "deployment_status", deployment_id=site["deployment_id"])

        assert moved["url"] != site["url"]
        assert await text(moved["url"]) == "site"


async def test_a_deployment_that_cannot_come_back_hinders_no_other(folder: Path) -> None:
    """Its release is gone: it has failed; a record that is no record is left out."""
    with deployer_here(folder) as module:
        broken = await result(module, "deploy", project_path=str(make_workspace(folder, "t1", {"index.html": "1"})))
        site = await result(module, "deploy", project_path=str(make_workspace(folder, "t2", {"index.html": "2"})))
    shutil.rmtree(folder / "deployments" / broken["deployment_id"] / "releases")
    (folder / "deployments" / "foreign").mkdir()
    (folder / "deployments" / "foreign" / "deployment.json").write_text("{}")

    with deployer_here(folder) as module:
        failed = await result(module, "deployment_status", deployment_id=broken["deployment_id"])
        assert (failed["status"], failed["error"]) == ("failed", "The files of its release are gone.")
        assert await text(site["url"]) == "2"
        again = await result(module, "deploy", project_path=str(folder / "workspaces" / "t1"))
        assert await text(again["url"]) == "1"


async def test_two_modules_do_not_share_deployments(folder: Path) -> None:
    """The second one does not start: both would run every process."""
    settings = DeployerSettings(root=folder / "deployments", workspaces=(folder,))
    async with module_for(settings).client():
        with pytest.raises(RuntimeError, match="Another deployer works in"):
            await module_for(settings).client().__aenter__()


async def test_who_hangs_up_while_it_starts_leaves_nothing(folder: Path) -> None:
    """A call that nobody waits for any more ends, with the process that was being started; the old release serves."""
    files = {"deploy.json": '{"command": ["python", "-c", "import time; time.sleep(600)"]}'}
    settings = DeployerSettings(root=folder / "deployments", workspaces=(folder / "workspaces",), grace_seconds=0.2)
    path = str(make_workspace(folder, "t1", {"index.html": "old"}))
    async with module_for(settings).client(user_id="ada") as client:
        old = (await client.call("deploy", project_path=path, name="owls")).result
        starting = asyncio.create_task(
            client.call("deploy", project_path=str(make_workspace(folder, "t2", files)), name="owls")
        )

        def sleeping() -> list[str]:
            return [command for command in processes_of(folder).values() if "sleep(600)" in command]

        await wait_until(sleeping, "it is being started")
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await wait_until(lambda: not sleeping(), "it is ended")
        status = await client.call("deployment_status", deployment_id=old["deployment_id"])

        assert status.result == old
        assert await text(old["url"]) == "old"


async def test_a_start_that_is_cancelled_leaves_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the machine is with it, and however often it is cancelled: who ends it waits for what was begun."""
    begun, go = threading.Event(), threading.Event()
    start = KeptCommand.start

    def slow(command: KeptCommand, *args: Any) -> "subprocess.Popen[bytes] | None":
        keeper = start(command, *args)
        begun.set()
        go.wait()
        return keeper

    monkeypatch.setattr(KeptCommand, "start", slow)
    (folder / "release").mkdir()
    settings = DeployerSettings(root=folder, grace_seconds=0.2)
    declared = Declaration(command=["sleep", "600"])
    backend = ProcessBackend(declared, folder / "release", folder / "run", folder / "data", settings)
    starting = asyncio.create_task(backend.start())
    await asyncio.to_thread(begun.wait)
    starting.cancel()
    stopping = asyncio.create_task(backend.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.gather(starting, stopping, return_exceptions=True)
    go.set()
    await backend.stop()

    assert json.loads((folder / "run" / "end.json").read_text())["why"] == "cancelled"
    assert processes_of(folder) == {}


async def test_a_process_cannot_change_its_release(folder: Path) -> None:
    """It works in a copy: what it does there is gone at its end, and deploying the same is the same again."""
    spoils = "import os\nopen('new', 'w').write('spoilt')\nos.replace('new', 'index.html')\n"
    serves = "import http.server as h\nh.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), h.SimpleHTTPRequestHandler).serve_forever()"
    files = {"index.html": "good", "app.py": spoils + serves, "deploy.json": '{"command": ["python", "app.py"]}'}
    path = str(make_workspace(folder, "t1", files))
    settings = DeployerSettings(root=folder / "deployments", workspaces=(folder / "workspaces",), grace_seconds=0.2)
    async with module_for(settings).client(user_id="ada") as client:
        deployed = (await client.call("deploy", project_path=path)).result
        home = folder / "deployments" / deployed["deployment_id"]
        release = home / "releases" / deployed["release"]

        assert await text(deployed["url"]) == "spoilt"
        assert sorted(each.name for each in release.iterdir()) == ["app.py", "deploy.json", "index.html"]
        assert (release / "index.html").read_text() == "good"
        await client.call("stop_deployment", deployment_id=deployed["deployment_id"])
        assert list(home.glob("runs/*/files")) == []
        again = (await client.call("deploy", project_path=path)).result
        assert (again["release"], again["status"]) == (deployed["release"], "running")


def test_a_release_is_on_disk_before_it_has_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its files and folders, so that after a power cut the name stands for all of it or for nothing."""
    own = make_workspace(folder, "t1", {"index.html": "mine", "sub/page.html": "a page"})
    synced: list[str] = []
    sync, rename = os.fsync, Path.rename

    def noting_sync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    def noting_rename(path: Path, target: Path) -> Path:
        synced.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(Path, "rename", noting_rename)
    found = find_project(str(own), user_id="ada", roots=(folder / "workspaces",))
    assert found is not None
    with found.opened() as project:
        take_release(project, plan_for(project, None), folder / "releases", max_files=9, max_mb=1)

    *draft, renamed, outer = synced
    assert {re.sub(r".*/\.draft-\w+", "", path) for path in draft} == {"", "/index.html", "/sub", "/sub/page.html"}
    assert (renamed, outer) == ("renamed", str(folder / "releases"))


@dataclass(frozen=True)
class Port:
    """What a front passes connections on to, on this machine's loopback interface."""

    number: int

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.number)


async def test_who_says_nothing_takes_nobodys_place() -> None:
    """A client that sends nothing, and a pair that has gone silent, are ended; then there is room."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)

    async with stream_server(answer) as behind:
        front = Front(connections=1, first_byte_seconds=0.2, idle_seconds=0.2)
        front.backend = Port(behind)
        port = await front.open(None)
        for words in (b"", b"hello"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(words)
            assert await reader.read() == words
            writer.close()
            await wait_until(lambda: not front._open, "there is room")
        await front.close()


async def test_a_front_carries_both_ways_and_ends_what_is_left() -> None:
    """Large bodies pass whole; with nobody behind it it answers 503; too many connections are turned away."""
    size = 3 * 2**20

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = 0
        while received < size and (data := await reader.read(65536)):
            received += len(data)
        writer.write(b"y" * received)

    async with stream_server(answer) as behind:
        front = Front(connections=2, first_byte_seconds=30, idle_seconds=30)
        port = await front.open(None)
        nobody = await asyncio.open_connection("127.0.0.1", port)
        assert (await nobody[0].readline()).startswith(b"HTTP/1.1 503 ")
        nobody[1].close()
        backend = front.backend = Port(behind)

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * size)
        assert len(await reader.read(-1)) == size
        writer.close()
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await wait_until(lambda: len(front._open) == 2, "both are connected")
        late = await asyncio.open_connection("127.0.0.1", port)
        assert (await late[0].readline()).startswith(b"HTTP/1.1 503 ")
        late[1].close()

        await front.drain(backend, 0.1)
        assert [await each[0].read() for each in idle] == [b"", b""]
        for each in idle:
            each[1].close()
        await front.close()
