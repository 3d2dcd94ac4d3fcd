"""The demo's third act: a folder of tools is edited while an agent calls them, and no call notices but by what it answers.

Then two MCP servers and a REST service do their work as modules. A save that does not load changes nothing: the version before goes on serving, and the operator is told.
"""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import uvicorn
from rich.console import Console

from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.fleet import LocalFleet

ADA = Caller(user_id="ada", permission="user", allowed_modules="*")
NAME = "birds"
EDITIONS = 5

_TOOL = '''from toolfleet.sdk import tool


@tool(effect="read")
def song(bird: str) -> str:
    """Say how a bird sings."""
    return f"{{bird}}, edition {edition}"
'''
_NEST = "nest"
_NOON = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Africa/Nairobi"}
_PETSTORE = Path(__file__).parent / "petstore"
_SHOWN = 100  # characters of a result
_WAIT_SECONDS = 30.0
_CALLERS = 8
_PAUSE_SECONDS = 0.02


@dataclass
class Stage:
    """What the act plays with, in `folder`: tools that are edited, two MCP servers, and a REST service at `port`."""

    folder: Path
    port: int = 0

    def write(self) -> None:
        """Write the first edition of the tools, a repository, and what is to be hosted."""
        for name in (NAME, _NEST):
            (self.folder / name).mkdir()
        self.save(1)
        (self.folder / _NEST / "eggs.txt").write_text("3\n")
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Lay three eggs"]):
            command = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@owls.test", *words]
            subprocess.run(command, cwd=self.folder / _NEST, check=True, timeout=_WAIT_SECONDS)
        programs = Path(sys.executable).parent
        hosts: dict[str, dict[str, object]] = {
            NAME: {"folder": NAME},
            "clock": {"command": [str(programs / "mcp-server-time"), "--local-timezone", "UTC"]},
            "git": {"command": [str(programs / "mcp-server-git"), "--repository", _NEST], "trusted": True},
            "pets": {"document": str(_PETSTORE / "openapi.json"), "base": f"http://127.0.0.1:{self.port}/api"},
        }
        lines = [f"[hosts.{name}]\n" + "".join(map(_toml, facts.items())) for name, facts in hosts.items()]
        (self.folder / "toolfleet.toml").write_text("\n".join(lines))

    @contextmanager
    def service(self) -> Generator[None]:
        """Serve the pet store of `examples/petstore` meanwhile, in a thread."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            sys.path.insert(0, str(_PETSTORE.parent))
            server = uvicorn.Server(uvicorn.Config("petstore.server:app", log_level="error"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            try:
                yield
            finally:
                server.should_exit = True
                thread.join(_WAIT_SECONDS)

    def save(self, edition: int) -> None:
        """Save the tool's file at once, as editors do."""
        self._write(_TOOL.format(edition=edition))

    def break_it(self) -> None:
        """Save what Python cannot read."""
        self._write("def (\n")

    def _write(self, text: str) -> None:
        draft = self.folder / NAME / ".draft"
        draft.write_text(text)
        draft.rename(self.folder / NAME / "songs.py")


@dataclass
class Callers:
    """Call the tool again and again, side by side, until they are told that it is enough."""

    fleet: ToolFleet
    results: list[ToolResult] = field(default_factory=list[ToolResult])
    is_enough: bool = False

    async def call(self) -> None:
        """Call, as one of them."""
        while not self.is_enough:
            call = ToolCall(tool_name=f"{NAME}.song", arguments={"bird": "owl"})
            self.results.append(await self.fleet.call(call, ADA, waits_for_worker=True))
            await asyncio.sleep(_PAUSE_SECONDS)

    @property
    def failed(self) -> list[ToolResult]:
        """Those that did not succeed."""
        return [result for result in self.results if not result.success]

    async def hears(self, edition: int) -> bool:
        """Whether the last answer is of this edition."""
        return bool(self.results) and self.results[-1].result == f"owl, edition {edition}"


async def play(local: LocalFleet, stage: Stage, console: Console) -> bool:
    """Play it; whether each edition was heard, and no call failed."""
    console.print("\n[bold]The third act: tools that change while they are called[/bold]")
    async with ToolFleet(settings=local.settings) as fleet:
        await _until(lambda: _is_listed(fleet), local)
        callers = Callers(fleet)
        calling = [asyncio.create_task(callers.call()) for _ in range(_CALLERS)]
        is_well = await _edit(stage, callers, local, console)
        callers.is_enough = True
        await asyncio.gather(*calling)
        console.print(f"  {len(callers.results)} calls meanwhile, {len(callers.failed)} of them failed.")
        is_well &= await _ask_others(fleet, local, console)
    return is_well and not callers.failed


async def _ask_others(fleet: ToolFleet, local: LocalFleet, console: Console) -> bool:
    """Call MCP servers and a REST service as any other module."""
    calls = [
        ToolCall(tool_name="clock.convert_time", arguments=_NOON),
        ToolCall(tool_name="git.git_log", arguments={"repo_path": _NEST}),
        ToolCall(tool_name="pets.addPet", arguments={"name": "Hedwig", "tag": "owl"}),
        ToolCall(tool_name="pets.findPets", arguments={"tags": ["owl"]}),
    ]
    if not await _until(lambda: _are_listed(fleet, [call.tool_name for call in calls]), local):
        console.print("Not as it should be: a tool of a hosted server is not listed.")
        return False
    results = [await fleet.call(call, ADA, waits_for_worker=True) for call in calls]
    console.print("  Modules that nobody has written as one:")
    for result, words in zip(results, ("15:00", "Lay three eggs", "Hedwig", "Hedwig"), strict=True):
        said = json.dumps(result.result) if result.success else str(result.error)
        console.print(f"    {result.tool_name}: {said[:_SHOWN]}")
        if words not in said:
            console.print(f"Not as it should be: there is no {words!r} in it.")
            return False
    return True


async def _edit(stage: Stage, callers: Callers, local: LocalFleet, console: Console) -> bool:
    for edition in range(2, EDITIONS + 1):
        stage.save(edition)
        saved_at = time.monotonic()
        if not await _until(partial(callers.hears, edition), local):
            console.print(f"Not as it should be: edition {edition} was not heard within {_WAIT_SECONDS:g} s.")
            return False
        console.print(f"  Edition {edition} was heard {time.monotonic() - saved_at:.2f} s after it was saved.")
    stage.break_it()
    if not await _until(lambda: _has_error(callers.fleet), local):
        console.print("Not as it should be: nobody was told of a file that does not load.")
        return False
    console.print("  Then a save that does not load: an error for the operator, and the edition before is served.")
    return await callers.hears(EDITIONS)


async def _is_listed(fleet: ToolFleet) -> bool:
    return await _are_listed(fleet, [f"{NAME}.song"])


async def _are_listed(fleet: ToolFleet, names: Sequence[str]) -> bool:
    return set(names) <= {tool.name for tool in await fleet.tools(ADA)}


async def _has_error(fleet: ToolFleet) -> bool:
    status = (await fleet.modules.statuses()).get(NAME)
    return status is not None and bool(status.load_errors)


async def _until(is_so: Callable[[], Awaitable[bool]], local: LocalFleet) -> bool:
    give_up_at = time.monotonic() + _WAIT_SECONDS
    while not await is_so():
        if time.monotonic() > give_up_at:
            return False
        local.tend()
        await asyncio.sleep(_PAUSE_SECONDS)
    return True


def _toml(fact: tuple[str, object]) -> str:
    name, value = fact
    return f"{name} = {json.dumps(value)}\n"  # lists, texts and truth are written alike
