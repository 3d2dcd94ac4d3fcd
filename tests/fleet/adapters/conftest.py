"""What tests of adapters share: a tool that says how far it is, and one that comes while an agent runs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from support.owls import echo
from toolfleet import Caller, ToolFleet

NewTool = Callable[[], Awaitable[None]]


@pytest.fixture(scope="session")
def talker() -> Talker:
    return Talker([(0.25, "reading"), (None, "thinking")])


@pytest.fixture(scope="package", autouse=True)
def _talking(owls: ModuleServer, talker: Talker) -> Iterator[None]:
    """The module has one more tool meanwhile."""
    before = list(owls.definitions)
    owls.add("talk", talker, effect="once")
    yield
    owls.definitions[:] = before


@pytest.fixture(autouse=True)
async def _known(fleet: ToolFleet) -> None:
    """Other tests' agents and workers have looked at the module before."""
    await fleet.modules.refresh()


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
