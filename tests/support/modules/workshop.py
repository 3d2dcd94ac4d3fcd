"""Modules that start programs, on folders of a test's own, and the processes that they leave."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from modules.code_executor.limits import Limits
from modules.code_executor.manifest import module_for as code_executor_module
from modules.files import FileSettings, open_pipeline
from modules.kept_commands import KeptCommand
from support.modules.example_modules import Module, in_process, running, serving_here
from support.waiting import PATIENCE_SECONDS, wait_until_answered

ENDED = {"completed", "failed", "cancelled", "timed_out"}


_CLAUDE_CODE = {"grace_seconds": 1, "outlive": True}
_DEPLOYER = {"start_seconds": 15, "health_seconds": 0.5, "drain_seconds": 0.2, "grace_seconds": 1}


@contextmanager
def claude_code(folder: Path, **env: object) -> Generator[Module]:
    """The module as a process of its own; `CLAUDE_CODE_` goes before the names in `env`."""
    with running("claude_code", folder, **_named("CLAUDE_CODE", {**_CLAUDE_CODE, **env})) as module:
        yield module


@contextmanager
def claude_code_here(folder: Path, **env: object) -> Generator[Module]:
    """The same from this process, which takes no time to start."""
    with _buried(), serving_here("claude_code", folder, **_named("CLAUDE_CODE", {**_CLAUDE_CODE, **env})) as module:
        yield module


@contextmanager
def deployer(folder: Path, **env: object) -> Generator[Module]:
    """The module as a process of its own; `DEPLOYER_` goes before the names in `env`."""
    with running("deployer", folder, **_named("DEPLOYER", {**_DEPLOYER, **env})) as module:
        yield module


@contextmanager
def deployer_here(folder: Path, **env: object) -> Generator[Module]:
    """The same from this process, which takes no time to start."""
    with _buried(), serving_here("deployer", folder, **_named("DEPLOYER", {**_DEPLOYER, **env})) as module:
        yield module


def executor(folder: Path, **limits: Any) -> Module:
    """`code_executor` in this process, without HTTP, with limits of the test's own."""
    files = open_pipeline(FileSettings(root=folder / "files"))
    return in_process("code_executor", code_executor_module(Limits(**limits), files).app)


@contextmanager
def _buried() -> Generator[None]:
    """Wait at the end for the keepers that were started: they are this process's children."""
    keepers: list[subprocess.Popen[bytes]] = []
    start = KeptCommand.start

    def noting(command: KeptCommand, *args: Any) -> "subprocess.Popen[bytes] | None":
        keeper = start(command, *args)
        keepers.extend([keeper] if keeper else [])
        return keeper

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptCommand, "start", noting)
        yield
    for keeper in keepers:
        keeper.wait(PATIENCE_SECONDS)


def _named(prefix: str, env: dict[str, object]) -> dict[str, object]:
    return {f"{prefix}_{name.upper()}": value for name, value in env.items()}


def agent(code: str, *args: str) -> str:
    """A command of a test's own, as the setting takes it."""
    return json.dumps([sys.executable, "-u", "-c", code, *args])


async def call(
    module: Module, tool: str, *, user: str | None = "ada", call_id: str | None = None, **arguments: Any
) -> dict[str, Any]:
    """A call as the fleet sends it, and the whole reply."""
    body = {"tool_name": f"{module.name}.{tool}", "arguments": arguments, "user_id": user}
    async with module.client() as client:
        response = await client.post("/execute", json=body, headers={"Idempotency-Key": call_id or uuid4().hex})
        reply: dict[str, Any] = response.raise_for_status().json()
        return reply


async def result(module: Module, tool: str, **arguments: Any) -> Any:
    """What a call that succeeds returns."""
    reply = await call(module, tool, **arguments)
    assert reply["success"], reply
    return reply["result"]


async def refusal(module: Module, tool: str, **arguments: Any) -> str:
    """What a call that fails says."""
    reply = await call(module, tool, **arguments)
    assert not reply["success"], reply
    return str(reply["error"])


async def until(module: Module, tool: str, wanted: set[str], **arguments: Any) -> Any:
    """Ask until the status is one of those that are wanted."""
    found: list[dict[str, Any]] = []

    async def is_there() -> bool:
        found.append(await result(module, tool, **arguments))
        return found[-1]["status"] in wanted

    await wait_until_answered(is_there, f"{tool} says one of {wanted}")
    return found[-1]


async def finished(module: Module, task_id: str) -> Any:
    """A task's status after its end."""
    return await until(module, "task_status", ENDED, task_id=task_id)


async def restarted(module: Module, times: int, deployment_id: str) -> dict[str, Any]:
    """A deployment's status when it runs again after that many restarts."""
    status: dict[str, Any] = {}

    async def is_there() -> bool:
        status.update(await result(module, "deployment_status", deployment_id=deployment_id))
        return (status["status"], status["restarts"]) == ("running", times)

    await wait_until_answered(is_there, f"it runs after {times} restarts")
    return status


async def printed(module: Module, deployment_id: str) -> str:
    """What a deployment's process has printed, once there is a line: its keeper writes it down, whoever is served meanwhile."""
    text = ""

    async def is_there() -> bool:
        nonlocal text
        text = (await result(module, "deployment_logs", deployment_id=deployment_id, offset=0))["text"]
        return "\n" in text

    await wait_until_answered(is_there, "it has printed something")
    return text


def make_workspace(folder: Path, name: str, files: dict[str, str], *, owner: str = "ada") -> Path:
    """A workspace as `claude_code` makes it, with files in it."""
    record = folder / "workspaces" / ".tasks" / name
    record.mkdir(parents=True, exist_ok=True)
    (record / "task.json").write_text(json.dumps({"task_id": name, "user_id": owner}))
    workspace = folder / "workspaces" / name
    workspace.mkdir(exist_ok=True)
    for path, text in files.items():
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(text)
    return workspace


def processes_of(folder: Path) -> dict[int, str]:
    """Every living process that has the folder in its command, its environment, or as its own."""
    needle = str(folder).encode()
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            texts = [command, (process / "environ").read_bytes(), os.fsencode((process / "cwd").readlink())]
            if command and int(process.name) != os.getpid() and any(needle in text for text in texts):
                found[int(process.name)] = command.replace(b"\0", b" ").decode(errors="replace")[:2000]
    return found


def commands_in(folder: Path, words: str) -> list[int]:
    """The ids, as the machine has them, of the living processes of the folder with these words in their command."""
    return [pid for pid, command in processes_of(folder).items() if words in command]


def kill(module: Module) -> None:
    """Kill the module's process, and all in its group."""
    assert module.process is not None
    os.killpg(module.process.pid, signal.SIGKILL)
    module.process.wait()


def end(processes: dict[int, str]) -> None:
    """Kill what a test has left, by its ids."""
    for pid in processes:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
