"""The demo's second act: a user asks for a site and goes away; the agent builds and deploys it, and is killed meanwhile.

It talks to the core in `agent_core/` as a bot would, and looks at the job as any program may.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console
from rich.markup import escape

from toolfleet import Caller, FleetUnavailable, Job, ToolCall, ToolFleet
from toolfleet_cli.local.fleet import LocalFleet

WISH = "Build me a site about owls and deploy it"
ADA = Caller(user_id="ada", permission="admin", allowed_modules="*")
AGENT_ENV = {"AGENT_PERMISSIONS": '{"ada": "admin"}'}
"""For the core: what it lets ada do."""

KILLED = ("agent", "worker-fast", "worker-slow", "beat")

_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.1
_MARGIN = 23  # for the time and who speaks


@dataclass
class Story:
    """Tells what happens, with the seconds since its beginning."""

    console: Console
    began_at: float = field(default_factory=time.monotonic)

    def tell(self, who: str, what: str) -> None:
        """One line; of a tool's result as much as fits into one."""
        room = self.console.width - _MARGIN
        what = f"{what[: room - 1]}…" if who == "result" and len(what) > room else what
        self.console.print(f"  {time.monotonic() - self.began_at:5.1f} s  [bold]{who:<10}[/bold] {escape(what)}")


@dataclass
class Watch:
    """What can be seen of the conversation and of its job, told once each."""

    story: Story
    fleet: ToolFleet
    core: httpx.AsyncClient
    conversation_id: str
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    job: str = ""

    async def look(self) -> None:
        """Tell what is new. A core or a Redis that is away has nothing new."""
        try:
            jobs = await self.fleet.jobs.list(ADA)
            reply = await self.core.get(f"/conversations/{self.conversation_id}")
            messages = reply.raise_for_status().json()["messages"]
        except (httpx.HTTPError, FleetUnavailable):
            return
        news = messages[len(self.messages) :]
        is_awake = any(message["source"] == "wake" for message in news)
        for job in jobs if is_awake else []:
            self._tell_job(job)
        for message in news:
            self.story.tell(*_line(message))
        self.messages = messages
        for job in jobs:
            self._tell_job(job)

    def _tell_job(self, job: Job) -> None:
        state = f"{job.state}, {job.polls} {'poll' if job.polls == 1 else 'polls'}"
        if state != self.job:
            self.job = state
            self.story.tell("job", state)


async def play(local: LocalFleet, console: Console) -> bool:
    """Play it; whether the site was deployed once, is served, and its user was told."""
    console.print("\n[bold]The second act: long work, and nobody waits for it[/bold]")
    story = Story(console)
    async with (
        ToolFleet(settings=local.settings) as fleet,
        httpx.AsyncClient(base_url=str(local.settings.core_url), timeout=30, trust_env=False) as core,
    ):
        reply = await core.post("/message", json={"user_id": "ada", "platform": "demo", "text": WISH})
        conversation_id = reply.raise_for_status().json()["conversation_id"]
        watch = Watch(story, fleet, core, conversation_id)
        await watch.look()
        story.tell("", "The turn is over. What waits is a record in Redis, which no process holds.")
        story.tell("", "kill -9: the agent's core, both workers and beat are gone, as after a crash.")
        for name in KILLED:
            os.kill(local.pids()[name], signal.SIGKILL)
        answer = await _until(lambda: _answer(watch), watch, local)
        if answer is None:
            console.print(f"Not as it should be: no answer within {_WAIT_SECONDS:g} s.")
            return False
        return await _visit(answer, watch)


async def _visit(answer: str, watch: Watch) -> bool:
    """Open the site as ada would."""
    found = re.search(r"https?://\S+", answer)
    if found is None:
        return False
    async with httpx.AsyncClient(timeout=10, trust_env=False, follow_redirects=True) as browser:
        page = await browser.get(found[0])
    title = re.search(r"<title>(.*?)</title>", page.text)
    watch.story.tell("ada", f"opens it: {page.status_code}, '{title[1] if title else page.text[:60]}'")
    shown = await watch.fleet.call(ToolCall(tool_name="deployer.list_deployments"), ADA)
    deployments = shown.result if shown.success else []
    wakes = [message for message in watch.messages if message["source"] == "wake"]
    watch.story.tell("", f"Wake-ups: {len(wakes)}. Deployments: {len(deployments)}.")
    return page.is_success and title is not None and len(deployments) == len(wakes) == 1


async def _until(found: Callable[[], str | None], watch: Watch, local: LocalFleet) -> str | None:
    give_up_at = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < give_up_at:
        local.tend()
        await watch.look()
        if (what := found()) is not None:
            return what
        await asyncio.sleep(_POLL_SECONDS)
    return None


def _answer(watch: Watch) -> str | None:
    """What the agent said after it was woken."""
    sources = [message["source"] for message in watch.messages]
    if "wake" not in sources:
        return None
    after = watch.messages[sources.index("wake") :]
    return next((message["text"] for message in after if message["source"] == "model" and not message["tools"]), None)


def _line(message: dict[str, Any]) -> tuple[str, str]:
    text = message["text"].splitlines()[0] if message["text"] else ""
    match message["source"]:
        case "user":
            return "ada", text
        case "model" if message["tools"]:
            return "agent", "calls " + ", ".join(message["tools"])
        case "model":
            return "agent", f"to ada: {text}"
        case "wake":
            return "wake-up", text
        case _:
            return "result", text
