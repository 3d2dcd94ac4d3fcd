"""A hundred reloads of a tool folder under two hundred calls a second, through a whole fleet."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from support.pace import at_rate
from support.up import Up, up
from support.waiting import wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.settings import Settings

RELOADS = 100
CALLS_A_SECOND = 200
MOST_AT_ONCE = 100  # calls of this agent: the machine may be busy with other things
BROKEN_AT = -7  # what stands for a version that fails its calls
CALLER = Caller(user_id="ada", permission="owner", allowed_modules="*")

HEAD = "from toolfleet.sdk import ToolError, tool\n"
STEADY = HEAD + "\n@tool\nasync def steady() -> int:\n    '''Stay.'''\n    return -1\n"
NUMBER = HEAD + "\n@tool\nasync def number() -> int:\n    '''Say which.'''\n    return {}\n"
BROKEN = HEAD + "\n@tool\nasync def number() -> int:\n    '''Say which.'''\n    raise ToolError('broken on purpose')\n"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Up]:
    (tmp_path / "owls").mkdir()
    (tmp_path / "owls" / "steady.py").write_text(STEADY)
    (tmp_path / "owls" / "number.py").write_text(NUMBER.format(0))
    with up(tmp_path, {}, "--tools", "owls") as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_no_call_fails_but_those_of_files_that_were_broken(fleet: Up) -> None:
    """Each save is served; every tenth file does not load, and every tenth fails its calls: these alone do."""
    settings = Settings(redis_url=fleet.run_file().settings["redis_url"], module_services={})
    file = fleet.folder / "owls" / "number.py"
    async with ToolFleet(settings=settings) as client:
        load = _Load(client)
        calling = asyncio.ensure_future(load.run())
        for at in range(1, RELOADS + 1):
            text = {5: "def (", 7: BROKEN}.get(at % 10, NUMBER.format(at))
            draft = file.with_name(".draft")
            draft.write_text(text)
            draft.rename(file)
            if at % 10 != 5:
                shown = BROKEN_AT if at % 10 == 7 else at
                await wait_until(partial(load.has_seen, shown, calling), f"save {at} is served")
        load.is_over = True
        await calling

    assert [each for each in load.failures if each.error != "broken on purpose"] == []
    assert load.failures, "those that were broken on purpose"
    assert load.done > RELOADS * 10


class _Load:
    """Calls both tools in turn, none of which may be repeated."""

    def __init__(self, client: ToolFleet) -> None:
        self.latest = 0
        self.is_over = False
        self.done = 0
        self.failures: list[ToolResult] = []
        self._client = client
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            async for number in at_rate(CALLS_A_SECOND):
                if self.is_over:
                    break
                await self._slots.acquire()
                group.create_task(self._call(("steady", "number")[number % 2]))

    async def _call(self, name: str) -> None:
        try:
            result = await self._client.call(ToolCall(tool_name=f"owls.{name}", arguments={}), CALLER, timeout=60)
        finally:
            self._slots.release()
        self.done += 1
        if not result.success:
            self.failures.append(result)
        if name == "number":
            self.latest = result.result if result.success else BROKEN_AT

    def has_seen(self, version: int, calling: "asyncio.Future[None]") -> bool:
        return self.latest == version or calling.done()
