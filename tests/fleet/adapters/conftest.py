"""What tests of adapters share: a fleet of their own, with a module that says how far it is and gets a tool while an agent runs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from agents import set_tracing_disabled

from support.fleet import TestBed
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer, serve
from support.owls import echo, make_module
from support.waiting import wait_until
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolFleet
from toolfleet_cli.local.redis_server import redis_server

# An agent whose calls of `owls.echo` people have to approve, and one of whose calls two of them have to.
ASKS: dict[str, object] = {
    name: {"middleware": [{"name": "human_in_the_loop", "approve_tools": ["owls.echo"], "quorum": quorum}]}
    for name, quorum in (("asks", 1), ("asks-two", 2))
}
# An agent whose runs have one call of `owls.echo` each.
SPENT = {
    "spent": {
        "middleware": [{"name": "tool_call_limit", "run_limit": 1, "exit_behavior": "error", "tools": ["owls.echo"]}]
    }
}

NewTool = Callable[[], Awaitable[None]]
Redefine = Callable[..., Awaitable[None]]


@pytest.fixture(autouse=True)
def _untraced() -> Iterator[None]:
    """Traces of the OpenAI Agents SDK would be sent to OpenAI."""
    set_tracing_disabled(disabled=True)
    yield
    set_tracing_disabled(disabled=False)


@pytest.fixture(scope="module")
def talker() -> Talker:
    return Talker([(0.25, "reading"), (None, "thinking")])


@pytest.fixture(scope="module")
def owls(talker: Talker) -> Iterator[ModuleServer]:
    module = make_module()
    module.add("talk", talker, effect="once")
    with serve(module):
        yield module


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """Another Redis than that of other tests, whose module has fewer tools."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), {"agents": {**SPENT, **ASKS}})


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess, owls: ModuleServer) -> AsyncIterator[ToolFleet]:
    """An agent's fleet, with a worker."""
    await wait_until(lambda: not owls.running, "what other tests have left has ended")
    owls.forget()
    async with ToolFleet(settings=bed.settings.model_copy(update={"unserved_seconds": 5})) as fleet:
        yield fleet


@pytest.fixture
def ada() -> Caller:
    return Caller(user_id="ada", permission="user", allowed_modules="*")


@pytest.fixture
def spent(ada: Caller) -> Caller:
    """Ada, asking as an agent whose second call of a run ends the run as an error."""
    return ada.model_copy(update={"agent": "spent"})


@pytest.fixture
def asking(ada: Caller) -> Caller:
    """Ada, asking as an agent whose calls of `owls.echo` people have to approve."""
    return ada.model_copy(update={"agent": "asks"})


@pytest.fixture
def asking_two(ada: Caller) -> Caller:
    """Ada, asking as an agent whose calls two people have to approve."""
    return ada.model_copy(update={"agent": "asks-two"})


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


@pytest.fixture
async def redefine(fleet: ToolFleet, owls: ModuleServer) -> AsyncIterator[Redefine]:
    """Have the module's definition of a tool say something else, or go, and the agent know it, until the test ends."""
    before = list(owls.definitions)

    async def change(method: str, **changes: object) -> None:
        at, tool = next((at, each) for at, each in enumerate(owls.definitions) if each["name"] == f"owls.{method}")
        owls.definitions[at : at + 1] = [{**tool, **changes}] if changes else []
        owls.tools.setdefault(str(changes.get("name", tool["name"])), owls.tools[tool["name"]])
        await fleet.modules.refresh()

    yield change
    owls.definitions[:] = before
    await fleet.modules.refresh()
