"""What is said of why a call may be made, held against what the call comes to."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.fleet import TestBed
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.worker_process import WorkerProcess
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.catalog.operator import operating
from toolfleet_registry.contracts import Level
from toolfleet_registry.settings import Settings

AGENTS = {
    "plain": {},
    "reader": {"tools": ["tag:reading"], "permission_at_most": "user"},
    "elsewhere": {"allowed_modules": ["cats"]},
    "busy": {
        "middleware": [
            {"name": "tool_retry", "max_retries": 0},
            {"name": "gate", "tools": ["owls.open"], "fails": "open"},
        ]
    },
    "helper": {"mode": "subagent", "permission_at_most": "guest"},
}
TOOLS = ("owls.open", "owls.admins", "owls.read", "owls.closed", "owls.none", "cats.any", "nonsense")
TOML = """\
[agents.busy]
allowed_modules = "*"
[[agents.busy.middleware]]
name = "tool_retry"
[[agents.busy.middleware]]
name = "gate"
"""
CALLERS: tuple[tuple[Level, frozenset[str] | None], ...] = (
    ("guest", None),
    ("user", frozenset({"owls"})),
    ("owner", None),
    ("owner", frozenset()),
)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    module = ModuleServer("owls")
    module.add("open", echo, effect="read")
    module.add("admins", echo, required_permission="admin", effect="read")
    module.add("read", echo, tags=["reading"], effect="read")
    module.add("closed", echo, effect="read")
    with redis_server(tmp_path_factory.mktemp("redis")) as url, serve(module) as owls:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), {"default_guest_modules": frozenset({"owls"})})


@pytest.fixture(scope="module")
def settings(bed: TestBed) -> Settings:
    known = bed.settings.model_dump(include={"redis_url", "module_services", "default_guest_modules"})
    return Settings.model_validate({**known, "agents": AGENTS})


@pytest.fixture(scope="module")
def worker(bed: TestBed, settings: Settings) -> Iterator[WorkerProcess]:
    with bed.worker(agents=settings.agents) as worker:
        yield worker


@pytest.fixture
async def fleet(settings: Settings, worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=settings) as fleet:
        yield fleet


async def test_what_is_said_is_what_happens(fleet: ToolFleet, settings: Settings) -> None:
    """For each kind of caller, tool and agent: allowed is what succeeds, and the words of a refusal are the call's own."""
    async with operating(settings) as operator:
        await operator.disable("owls.closed")
    await fleet.modules.refresh()
    agents = (None, *AGENTS, "plain/helper", "nobody")
    seen = set[bool]()
    for tool, (permission, modules), agent in itertools.product(TOOLS, CALLERS, agents):
        caller = Caller(user_id="ada", permission=permission, allowed_modules=modules, agent=agent)
        said = await fleet.modules.explain(tool, caller)
        came = await fleet.call(ToolCall(tool_name=tool, arguments={}), caller, timeout=20)
        what = f"{tool} for {caller!r}: {said!r}"

        seen.add(said.is_allowed)
        assert said.is_allowed == came.success, what
        assert said.reason == (None if came.success else came.error), what
        assert (said.decided_by is None) == said.is_allowed, what
    assert seen == {True, False}


async def test_each_rule_says_where_it_stands(fleet: ToolFleet, elsewhere: Path) -> None:
    """The line of the file, the module's manifest, or the variable; in the order in which they count."""
    (elsewhere / "toolfleet.toml").write_text(TOML)
    caller = Caller(user_id="ada", permission="guest", agent="busy")
    rules = (await fleet.modules.explain("owls.open", caller)).rules
    file = elsewhere / "toolfleet.toml"

    assert [(rule.about, rule.place) for rule in rules] == [
        ("module", "the directory of modules"),
        ("agent", "the caller"),
        ("reach", "TOOLFLEET_DEFAULT_GUEST_MODULES"),
        ("permission", "the module's manifest"),
        ("open", "the registry"),
        ("gate", f"{file}, line 5"),
        ("retry", f"{file}, line 3"),
    ]
    assert all(rule.passes for rule in rules)


async def test_who_is_no_operator_learns_nothing_behind_a_refusal(fleet: ToolFleet) -> None:
    """What comes after the rule that decides could tell of tools that nobody has shown them."""
    caller = Caller(user_id="ada", permission="owner", allowed_modules=frozenset())
    said = await fleet.modules.explain("owls.admins", caller)

    assert said.decided_by is not None
    assert said.decided_by.about == "reach"
    assert len(said.rules) > len(said.for_outsiders().rules)
    assert said.for_outsiders().rules[-1] == said.decided_by
