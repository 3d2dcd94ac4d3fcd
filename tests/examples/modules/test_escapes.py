"""What programs that three modules start get at: nothing of workers, of their module, of Redis or of other users."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from modules import command_isolation
from modules.claude_code.manifest import module_for as claude_code_module
from modules.claude_code.settings import ClaudeCodeSettings
from modules.command_isolation import isolation_for
from modules.deployer.manifest import module_for as deployer_module
from modules.deployer.settings import DeployerSettings
from modules.kept_commands import KeptCommand
from support.modules.workshop import (
    agent,
    call,
    claude_code_here,
    commands_in,
    deployer_here,
    executor,
    finished,
    make_workspace,
    printed,
    result,
)
from support.processes import is_gone, python_program
from support.programs.escapes import outcomes
from support.servers.plain_http import PLAIN
from support.waiting import wait_until

SANDBOXED = isolation_for("best", network=False, module="tests") == "namespaces"
in_namespaces = pytest.mark.skipif(not SANDBOXED, reason="this kernel or container gives no user namespaces")

SECRET = "hunter2-" * 6
WORKER = "print('ready', flush=True); import time; time.sleep(600)"
SERVE = """
import http.server
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"served")
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""

Run = Callable[[str], Coroutine[Any, Any, str]]
"""Runs a program, and returns what it has printed when it prints no more."""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    """A process of the fleet's user with a worker's secrets in its environment."""
    with python_program(WORKER, env={"TOOLFLEET_SIGNING_KEY": SECRET}) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


@pytest.fixture(params=["claude_code", "code_executor", "deployer"])
def run(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Each of the modules, with a secret in its environment that is nobody else's business."""
    monkeypatch.setenv("DATABASE_PASSWORD", SECRET)
    with ExitStack() as stack:

        async def in_executor(code: str) -> str:
            return str((await executor(folder)("run_python", user_id="ada", code=code))["result"]["stdout"])

        async def in_agent(code: str) -> str:
            module = stack.enter_context(claude_code_here(folder, command=agent(code)))
            task = await result(module, "run_task", prompt="x")
            await finished(module, task["task_id"])
            return str((await result(module, "task_logs", task_id=task["task_id"]))["text"])

        async def in_deployment(code: str) -> str:
            module = stack.enter_context(deployer_here(folder))
            deployed = await result(module, "deploy", project_path=project(folder, "t1", code + SERVE))
            assert await served(deployed["url"]) == "served"
            return await printed(module, deployed["deployment_id"])

        yield {"claude_code": in_agent, "code_executor": in_executor, "deployer": in_deployment}[request.param]


def project(folder: Path, name: str, code: str) -> str:
    files = {"app.py": code, "deploy.json": '{"command": ["python", "app.py"]}'}
    return str(make_workspace(folder, name, files))


async def served(url: str) -> str:
    async with httpx.AsyncClient(trust_env=False, verify=PLAIN) as client:
        return (await client.get(url)).raise_for_status().text


def address_of(redis_url: str) -> tuple[str, int]:
    host, port = redis_url.split("/")[2].split(":")
    return host, int(port)


def at_processes(worker: int) -> dict[str, str]:
    """Attempts at what other processes hold, and at more rights and ways than the program has."""
    half = len(SECRET) // 2  # not whole in the program, which is in processes' command lines
    return {
        "worker's environment": f"open('/proc/{worker}/environ').read()",
        "any environment": "[p for p in os.listdir('/proc') if p.isdigit() and os.access(f'/proc/{p}/environ', os.R_OK)"
        f" and {SECRET[:half]!r} + {SECRET[half:]!r} in open(f'/proc/{{p}}/environ').read()]",
        "processes": "len([p for p in os.listdir('/proc') if p.isdigit()]) <= 3",
        "process 1": "open('/proc/1/environ').read()",
        "world": "socket.create_connection(('192.0.2.1', 80), 3)",
        "ask worker to end": f"os.kill({worker}, 15)",
        "user": "[os.getuid(), os.getgroups()]",
        "privileges": "{line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')}",
        "namespaces": "libc.unshare(0x10000000) and ctypes.get_errno()",
    }


def at_files(diary: Path) -> dict[str, str]:
    """Attempts at another user's file, and at the system's."""
    return {
        "diary": f"open({str(diary)!r}).read()",
        "spoil diary": f"open({str(diary)!r}, 'w')",
        "workspaces": f"'others' in os.listdir({str(diary.parents[1])!r})",
        "shadow": "open('/etc/shadow').read()",
        # Only asked: a sandbox that leaks must not take the machine along.
        "spoil system": "[path for path in ('/', '/usr/bin/python3', '/etc', sys.executable) if os.access(path, os.W_OK)]",
    }


@in_namespaces
async def test_a_program_gets_at_nothing_that_is_not_its_own(
    run: Run, folder: Path, worker: subprocess.Popen[str], redis_url: str
) -> None:
    """No environment but its own, no Redis, no process to signal, no file of others; what it leaves in shared folders is gone."""
    mark = f"mark-{secrets.token_hex(8)}"
    diary = make_workspace(folder, "others", {"diary": SECRET}, owner="bob") / "diary"
    diary.chmod(0o666)
    attempts = {
        **at_processes(worker.pid),
        **at_files(diary),
        "redis": f"socket.create_connection({address_of(redis_url)!r}, 3)",
        "leave": f"open('/tmp/{mark}', 'w').write('x')",
    }
    told = json.loads((await run(outcomes(attempts))).splitlines()[0])

    assert told.pop("workspaces") in {False, "FileNotFoundError"}
    assert told.pop("diary") == told.pop("spoil diary") == told.pop("shadow") == "FileNotFoundError"
    assert told == {
        "worker's environment": "FileNotFoundError",
        "any environment": [],
        "processes": True,
        "process 1": "PermissionError",
        "redis": "ConnectionRefusedError",
        "world": "OSError",
        "ask worker to end": "ProcessLookupError",
        "spoil system": [],
        "user": [1000, []],
        "privileges": "{'0000000000000000'}",
        "namespaces": 28,  # none are left: ENOSPC
        "leave": 1,
    }
    assert diary.read_text() == SECRET
    assert worker.poll() is None
    assert not Path("/tmp", mark).exists()


@in_namespaces
async def test_what_a_program_may_write_to_is_its_own(folder: Path) -> None:
    """A deployment's process writes to its copy and to its data, which it finds again; an agent to its workspace and its home."""
    code = (
        "import os, pathlib\n"
        "data = pathlib.Path(os.environ['HOME'], 'n')\n"
        "data.write_text((data.read_text() if data.exists() else '') + 'x')\n"
        "pathlib.Path('here').write_text('x')\n"
        "print(data.read_text(), flush=True)\n"
    )
    with deployer_here(folder) as module:
        deployed = await result(module, "deploy", project_path=project(folder, "t1", code + SERVE))
        again = await result(module, "deploy", project_path=project(folder, "t2", code + "\n" + SERVE), name="t1")
        log = await printed(module, again["deployment_id"])
        data = folder / "deployments" / deployed["deployment_id"] / "data" / "n"

        assert (log.splitlines()[0], data.read_text()) == ("xx", "xx")
        assert (data.stat().st_uid > 2**16) == (os.geteuid() == 0)
    with claude_code_here(folder, command=agent(code.replace("'n'", "'m'"))) as claude:
        task = await result(claude, "run_task", prompt="x")
        assert (await finished(claude, task["task_id"]))["status"] == "completed"
        assert Path(task["workspace"], "here").read_text() == "x"


@in_namespaces
async def test_a_deployment_is_reached_by_its_address_only(folder: Path) -> None:
    """The port that its process listens on is in a network of its own, and on the machine's there is nobody."""
    with deployer_here(folder) as module:
        code = "import os\nprint(os.environ['PORT'], flush=True)\n" + SERVE
        deployed = await result(module, "deploy", project_path=project(folder, "t1", code))
        port = int((await printed(module, deployed["deployment_id"])).splitlines()[0])

        assert await asyncio.gather(*(served(deployed["url"]) for _ in range(20))) == ["served"] * 20
        assert (await call(module, "deployment_status", deployment_id=deployed["deployment_id"]))["success"]
        with pytest.raises(httpx.ConnectError):
            await served(f"http://127.0.0.1:{port}/")


@in_namespaces
async def test_with_a_network_programs_reach_the_machines_services(folder: Path, redis_url: str) -> None:
    """Whoever sets it gives them that, and their tools' descriptions say so."""
    code = outcomes({"redis": f"socket.create_connection({address_of(redis_url)!r}, 3).close()"})
    with claude_code_here(folder, command=agent(code), network=True) as claude:
        task = await result(claude, "run_task", prompt="x")
        assert json.loads((await finished(claude, task["task_id"]))["summary"]) == {"redis": None}
        (tool,) = [it for it in (await claude.get("/manifest"))["tools"] if it["name"] == "claude_code.run_task"]
        assert "It has access to the network." in tool["description"]
    with deployer_here(folder, network=True) as module:
        deployed = await result(module, "deploy", project_path=project(folder, "t1", code + SERVE))
        assert await served(deployed["url"]) == "served"


@in_namespaces
@pytest.mark.parametrize("victim", ["keeper", "outer", "process 1"])
async def test_a_sandboxed_command_of_which_a_part_is_killed_ends(folder: Path, victim: str) -> None:
    """With all that it has started, and the deployment comes back."""
    code = "import os, subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    with deployer_here(folder, restart_seconds=0.02) as module:
        deployed = await result(module, "deploy", project_path=project(folder, "t1", code + SERVE))
        left = [*commands_in(folder, "app.py"), *commands_in(folder, "sleep(600)")]
        (run,) = (folder / "deployments" / deployed["deployment_id"] / "runs").iterdir()
        keeper = json.loads((run / "started.json").read_text())["keeper"]
        outer = json.loads((run / "running.json").read_text())["pid"]
        inner = int(Path(f"/proc/{outer}/task/{outer}/children").read_text())
        os.kill({"keeper": keeper, "outer": outer, "process 1": inner}[victim], signal.SIGKILL)

        await wait_until(lambda: len(left) == 2 and all(map(is_gone, left)), "all have ended")
        await wait_until(lambda: commands_in(folder, "app.py"), "it is started again")


def test_a_command_that_wants_a_sandbox_never_runs_without(folder: Path) -> None:
    """Should the kernel refuse one, nothing is started."""
    place = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]
    if subprocess.run([*place, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel or container gives no user namespaces to test in")
    (folder / "run").mkdir()
    command = KeptCommand(folder / "run")
    job = {"argv": ["touch", str(folder / "ran")], "cwd": "/", "env": {}, "timeout_seconds": 5, "log_bytes": 8000}
    job |= {"processes": 5, "file_bytes": 100, "memory_bytes": None, "stdin": None, "grace_seconds": 0, "nice": 0}
    job |= {"end_with_parent": False, "gate": None, "lock": 0}
    plan = {"owner": "", "readable": [], "writable": [str(folder)], "network": False, "memory_disk_mb": 8}
    (folder / "run" / "job.json").write_text(json.dumps({**job, "sandbox": plan}))
    keeper = Path(isolation_for.__code__.co_filename).with_name("keeper.py")
    subprocess.run([*place, "python3", "-I", "-S", str(keeper), str(folder / "run" / "job.json")], check=True)

    ending = command.ending()
    assert ending is not None
    assert ending.why == "not_started"
    assert not (folder / "ran").exists()


def test_what_does_not_keep_programs_apart_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the tools' descriptions, and once in the log."""
    settings = ClaudeCodeSettings(root=folder, isolation="none")
    (tool,) = [it for it in claude_code_module(settings).manifest.tools if it.name == "claude_code.run_task"]
    assert "It is NOT in a sandbox: it reaches the network, local services, and all files" in tool.description
    tools = deployer_module(DeployerSettings(root=folder, isolation="none")).manifest.tools
    assert "It is NOT in a sandbox" in next(it for it in tools if it.name == "deployer.deploy").description
    assert [record.getMessage()[:40] for record in caplog.records] == [
        "claude_code: what it starts has no sandb",
        "deployer: what it starts has no sandbox.",
    ]


@pytest.mark.parametrize(
    ("module_for", "settings", "name"),
    [
        (claude_code_module, ClaudeCodeSettings, "CLAUDE_CODE_ISOLATION"),
        (deployer_module, DeployerSettings, "DEPLOYER_ISOLATION"),
    ],
)
def test_a_module_whose_settings_demand_a_sandbox_does_not_start_without(
    folder: Path, module_for: Callable[..., Any], settings: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than with less."""
    monkeypatch.setattr(command_isolation, "_works", lambda *, network: network is None)
    with pytest.raises(RuntimeError, match=f"{name}=namespaces: this machine does not allow it"):
        module_for(settings(root=folder, isolation="namespaces"))
