"""What tests of deferred calls share: a fleet with beat, a call that is long, one that its module has accepted, and a job."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from support.fleet import TestBed, program
from support.frameworks.deferred_runs import RUNS, DeferredRun
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer, serve
from support.modules.works import QUICK, Works, make_works
from support.owls import make_module
from support.servers.hatchery import AT_WORK, HATCHED, Hatchery, make_hatchery
from support.waiting import wait_until
from toolfleet import Caller, Poll, ToolFleet
from toolfleet_cli.local.environment import beat_command
from toolfleet_cli.local.redis_server import redis_server

each_once = pytest.mark.parametrize(
    ("work", "framework"),
    [
        ("long call", "pydantic-ai"),
        ("accepted call", "langgraph"),
        ("job", "openai-agents"),
        ("accepted call", "claude"),
    ],
    indirect=["work"],
)
"""For what is the fleet's part, whatever the framework: each of them with one kind of work, and each kind of work."""

STATE = Poll(tool_name="works.state", arguments={"id": {"$from": "task.id"}}, interval_seconds=0.1)


@dataclass
class LongWork:
    """A tool whose calls last until `end`: which `kind` the fleet says it is, how its adapter is made, and how often it was begun."""

    kind: str
    tool: str
    shown: str
    end: Callable[[], None]
    times: Callable[[], int]
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, framework: str, caller: Caller, **options: Any) -> DeferredRun:
        """A run of that framework's that calls it."""
        name = self.tool.replace(".", "__")
        return RUNS[framework](caller, name, {}, uuid4().hex, **{**self.options, **options})


@pytest.fixture(scope="module")
def talker() -> Talker:
    return Talker([(0.5, "thinking")])


@pytest.fixture(scope="module")
def modules(talker: Talker) -> Iterator[tuple[ModuleServer, Hatchery, Works]]:
    owls, hatchery, works = make_module(), make_hatchery(), make_works()
    owls.add("talk", talker, effect="once")
    with serve(owls), serve(hatchery.server), serve(works.server):
        yield owls, hatchery, works


@pytest.fixture(scope="module")
def bed(modules: tuple[ModuleServer, Hatchery, Works], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    owls, hatchery, works = modules
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        servers = (owls, hatchery.server, works.server)
        yield TestBed(url, servers, tmp_path_factory.mktemp("logs"), {**QUICK, "visibility_timeout": 4})


@pytest.fixture(scope="module", autouse=True)
def worker(bed: TestBed) -> Iterator[None]:
    """With beat, which looks after jobs."""
    with bed.worker(), program(bed, beat_command(), "beat", ready="beat: Starting"):
        yield


@pytest.fixture
async def fleet(bed: TestBed) -> AsyncIterator[ToolFleet]:
    """The process that goes on with a run."""
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


@pytest.fixture
def ada() -> Caller:
    return Caller(user_id="ada", permission="user", allowed_modules="*")


@pytest.fixture(params=["long call", "accepted call", "job"])
async def work(
    request: pytest.FixtureRequest, talker: Talker, modules: tuple[ModuleServer, Hatchery, Works]
) -> AsyncIterator[LongWork]:
    """Each kind of work that outlasts a run."""
    owls, hatchery, works = modules
    talker.forget()
    hatchery.start_anew()
    works.server.forget()
    works.pieces.clear()

    def hatch() -> None:
        hatchery.answer = HATCHED

    def complete() -> None:
        works.pieces.update(dict.fromkeys(works.pieces, "completed"))

    kinds = {
        "long call": LongWork(
            "call", "owls.talk", "done", lambda: talker.go_on(5), lambda: talker.calls, {"defer_after": 0.1}
        ),
        "accepted call": LongWork(
            "call", "nest.hatch", "an owl", hatch, lambda: len(hatchery.begun), {"defer_after": 0.1}
        ),
        "job": LongWork(
            "job",
            "works.begin",
            "completed",
            complete,
            lambda: len(works.pieces),
            {"jobs": {"works.begin": STATE}},
        ),
    }
    chosen = kinds[request.param]
    yield chosen
    talker.go_on(50)
    hatchery.answer = HATCHED if hatchery.answer is AT_WORK else hatchery.answer
    complete()
    await wait_until(lambda: not owls.running, "what the test has left has ended")
