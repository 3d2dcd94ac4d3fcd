"""All that a chain needs, as real processes that may be killed: a Redis, a worker, beat, modules and an agent's core."""

import base64
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from support.modules.example_modules import EXAMPLES, Module, running
from support.programs.fork_server import Process, end, start
from support.servers.plain_http import PLAIN
from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.waiting import PATIENCE_SECONDS
from toolfleet_cli.local.environment import beat_command, environment_of, worker_command
from toolfleet_cli.local.redis_server import held_port
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings

TESTS = Path(__file__).parents[2]
MODULES = ("claude_code", "deployer", "file_manager")
SECRET = "whsec_" + base64.b64encode(b"c" * 32).decode()
WISH = "Build me a site about owls and deploy it\nagent: seconds 0.8"
_SECONDS = 90.0

T = TypeVar("T")


@dataclass
class Child:
    """A process that is started again whenever `Chain.tend` finds it dead."""

    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cwd: Path
    starts: int = 0
    process: Process | None = None

    def tend(self) -> None:
        if self.process is None or self.process.poll() is not None:
            with self.log.open("ab") as output:
                self.process = start(self.argv, env=self.env, cwd=self.cwd, output=output)
            self.starts += 1

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process is not None:
            end(self.process, patience_seconds=10)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass
class Chain:
    """A fleet with a core, whose dead processes `tend` starts again, as a supervisor does."""

    folder: Path
    redis: FaultyRedis
    settings: Settings
    modules: dict[str, Module]
    children: dict[str, Child] = field(default_factory=dict[str, Child])

    @contextmanager
    def frozen(self, module: str) -> Generator[None]:
        """The module takes calls and does nothing about them."""
        process = self.modules[module].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def began(self, tool: str) -> int:
        """How many attempts at calls of the tool have begun."""
        return sum("tool_call_started" in line and tool in line for line in self.children["worker"].said().splitlines())

    def user(self, user_id: str) -> "User":
        return User(self, user_id)

    def tend(self) -> None:
        for child in self.children.values():
            child.tend()

    def until(self, fact: Callable[[], T | None], what: str) -> T:
        """Tend until `fact()` is something, and return it. No wake-up waits for its next try meanwhile."""
        give_up_at = time.monotonic() + _SECONDS
        while (found := fact()) is None:
            assert time.monotonic() < give_up_at, f"waited {_SECONDS} s in vain: {what}\n{self.logs()}"
            self.tend()
            self.hurry()
            time.sleep(0.05)
        return found

    def hurry(self) -> None:
        """Make every wake-up due now."""
        due = Keys().wakes_due
        waiting: Any = self.redis.look.zrange(due, 0, -1, withscores=True)
        for wake_id, score in waiting:
            if score > time.time() * 1000 + 200:
                self.redis.look.zadd(due, {wake_id: 0}, xx=True)

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{child.said()[-3000:]}" for name, child in self.children.items())


@dataclass
class User:
    """Somebody who talks to the core through a bot, and what was done in their name."""

    chain: Chain
    id: str
    conversation_id: str = ""

    def say(self, text: str, message_id: str = "m1", **fields: Any) -> str:
        """A message, sent until it is answered; the answer."""
        body = {"user_id": self.id, "text": text, "message_id": message_id, "platform": "test", **fields}

        def answered() -> Any:
            try:
                url = f"{self.chain.settings.core_url}/message"
                reply = httpx.post(url, json=body, timeout=2 * PATIENCE_SECONDS, trust_env=False, verify=PLAIN)
            except httpx.HTTPError:
                return None
            assert reply.status_code in {200, 409, 503}, reply.text
            return reply.json() if reply.is_success else None

        reply = self.chain.until(answered, "the message is answered")
        self.conversation_id = str(reply["conversation_id"])
        return str(reply["text"])

    def messages(self) -> list[dict[str, Any]]:
        """What was said; empty while the core is away."""
        try:
            url = f"{self.chain.settings.core_url}/conversations/{self.conversation_id}"
            reply = httpx.get(url, timeout=PATIENCE_SECONDS, trust_env=False, verify=PLAIN)
            return list(reply.json()["messages"]) if reply.is_success else []
        except httpx.HTTPError:
            return []

    def sources(self) -> list[str]:
        """Who said something, in order."""
        return [str(message["source"]) for message in self.messages()]

    def hears(self) -> str:
        """The model's words after the wake-up, once they are there."""

        def answer() -> str | None:
            messages = self.messages()
            sources = [message["source"] for message in messages]
            after = messages[sources.index("wake") :] if "wake" in sources else []
            return next((str(m["text"]) for m in after if m["source"] == "model" and not m["tools"]), None)

        return self.chain.until(answer, f"the agent has answered to its wake-up: {self.messages()}")

    def executed(self, tool: str) -> list[dict[str, Any]]:
        """The audit's lines on this user's calls of the tool that a worker has run: one a call."""
        entries: Any = self.chain.redis.look.xrange(Keys().audit)
        lines = [json.loads(entry["line"]) for _, entry in entries]
        return [line for line in lines if line["tool"] == tool and line["user_id"] == self.id and line.get("attempts")]

    def workspaces(self) -> list[str]:
        """Of the tasks that were ever begun for this user."""
        records = (self.chain.folder / "workspaces" / ".tasks").glob("*/task.json")
        return [path.parent.name for path in records if json.loads(path.read_text())["user_id"] == self.id]

    def releases(self) -> list[str]:
        """All that was ever deployed for this user."""
        records = [
            json.loads(path.read_text()) for path in (self.chain.folder / "deployments").rglob("deployment.json")
        ]
        return [release for record in records if record["user_id"] == self.id for release in record["history"]]


@contextmanager
def chain(
    folder: Path, *, core: str = "agent_core.main:app", env: Mapping[str, str] | None = None, **more: Any
) -> Generator[Chain]:
    """Have it all run; the core is the ASGI app `core`, with `env` beside its settings. Its processes start with `tend`."""
    for name in ("logs", "workspaces", "deployments"):
        (folder / name).mkdir()
    roots = {
        "CLAUDE_CODE_ROOT": str(folder / "workspaces"),
        "DEPLOYER_ROOT": str(folder / "deployments"),
        "DEPLOYER_WORKSPACES": json.dumps([str(folder / "workspaces")]),
    }
    with ExitStack() as stack:
        redis = stack.enter_context(faulty_redis(folder / "redis"))
        modules = [stack.enter_context(running(name, folder / "logs", **roots)) for name in MODULES]
        port = stack.enter_context(held_port())
        settings = Settings(
            redis_url=redis.url,
            module_services={module.name: module.url for module in modules},
            core_url=f"http://127.0.0.1:{port}",
            core_secret=SECRET,
            scheduler=True,
            jobs_interval_seconds=0.3,
            log_level="DEBUG",  # says when an attempt begins
            **more,
        )
        staged = Chain(folder, redis, settings, {module.name: module for module in modules})
        staged.children.update(_children(folder, settings, port, core, env or {}))
        for child in staged.children.values():
            stack.callback(child.close)
        try:
            yield staged
        except BaseException:
            print(staged.logs())  # noqa: T201 - pytest shows it beside the failure
            raise


def _children(folder: Path, settings: Settings, port: int, core: str, env: Mapping[str, str]) -> dict[str, Child]:
    fleet = {**environment_of(settings), "PYTHONUNBUFFERED": "1"}
    paths = os.pathsep.join([str(EXAMPLES), str(TESTS)])
    agent = {
        **fleet,
        "PYTHONPATH": paths,
        "AGENT_DATABASE_URL": f"sqlite:///{folder / 'agent.db'}",
        "AGENT_PERMISSION": "admin",
        "FILE_MANAGER_ROOT": str(folder / "logs" / "files"),  # as its modules have it
        **env,
    }
    serve = [sys.executable, "-m", "uvicorn", core, "--port", str(port), "--log-level", "warning"]
    return {
        "worker": Child(worker_command("all"), fleet, folder / "logs" / "worker.log", folder),
        "beat": Child(beat_command(), fleet, folder / "logs" / "beat.log", folder),
        "core": Child(serve, agent, folder / "logs" / "core.log", folder),
    }
