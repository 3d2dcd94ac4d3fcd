"""What tests of adapters share: a module that says how far it is, and a tool that comes while an agent runs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from support.local_tools.talkers import Talker
from support.module_server import ModuleServer, serve
from support.owls import echo, make_module
from toolfleet import Caller, ToolFleet

NewTool = Callable[[], Awaitable[None]]


@pytest.fixture(scope="session")
def talker() -> Talker:
    return Talker([(0.25, "reading"), (None, "thinking")])


@pytest.fixture(scope="session")
def owls(talker: Talker) -> Iterator[ModuleServer]:
    module = make_module()
    module.add("talk", talker, effect="once")
    with serve(module):
        yield module


@pytest.fixture
def ada() -> Caller:
    return Caller(user_id="ada", permission="user", allowed_modules="*")


@pytest.fixture
async def add_tool(fleet: ToolFleet, owls: ModuleServer) -> AsyncIterator[NewTool]:
    """Have the module offer `owls.late`, and the agent know it, until the test ends."""
    before = list(owls.definitions)

    async def add() -> None:
        owls.add("late", echo, effect="read")
        await fleet.modules.refresh()

    yield add
    owls.definitions[:] = before
    await fleet.modules.refresh()
