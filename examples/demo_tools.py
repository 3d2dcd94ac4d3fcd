"""The demo's third act: a folder of tools is edited while an agent calls them, and no call notices but by what it answers.

A save that does not load changes nothing: the version before goes on serving, and the operator is told.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.fleet import LocalFleet
from toolfleet_cli.local.hosted_modules import HostedModule

ADA = Caller(user_id="ada", permission="user", allowed_modules="*")
NAME = "birds"
EDITIONS = 5

_TOOL = '''from toolfleet.sdk import tool


@tool(effect="read")
def song(bird: str) -> str:
    """Say how a bird sings."""
    return f"{{bird}}, edition {edition}"
'''
_WAIT_SECONDS = 30.0
_CALLERS = 8
_PAUSE_SECONDS = 0.02


@dataclass
class Stage:
    """What the act plays with: files in `folder`, of which `birds` is served."""

    folder: Path

    def hosted(self) -> Sequence[HostedModule]:
        """Write the first edition; returns what a fleet is to host."""
        (self.folder / NAME).mkdir()
        self.save(1)
        return [HostedModule.of_folder(NAME, self.folder / NAME)]

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
    return is_well and not callers.failed


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
    return any(tool.name == f"{NAME}.song" for tool in await fleet.tools(ADA))


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
