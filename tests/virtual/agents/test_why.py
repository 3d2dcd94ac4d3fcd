"""What is said of why a call may be made, held against what the call comes to."""

import itertools
from pathlib import Path

import pytest

from bed.fleet import Bed
from support.module_server import ModuleServer
from support.owls import echo
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.catalog.operator import operating
from toolfleet_registry.contracts import Level

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


@pytest.fixture
async def fleet(bed: Bed) -> ToolFleet:
    module = ModuleServer("owls")
    module.add("open", echo, effect="read")
    module.add("admins", echo, required_permission="admin", effect="read")
    module.add("read", echo, tags=["reading"], effect="read")
    module.add("closed", echo, effect="read")
    module.add("turns", echo, effect="read", input_schema={"properties": {"nest": {}}}, concurrency_key="nest")
    bed.given |= {"default_guest_modules": frozenset({"owls"}), "agents": AGENTS}
    await bed.serve(module)
    await bed.worker()
    return await bed.agent()


async def test_what_is_said_is_what_happens(bed: Bed, fleet: ToolFleet) -> None:
    """For each kind of caller, tool and agent: allowed is what succeeds, and the words of a refusal are the call's own."""
    async with operating(bed.settings) as operator:
        await operator.disable("owls.closed")
    await fleet.modules.refresh()
    agents = (None, *AGENTS, "plain/helper", "nobody")
    seen = set[bool]()
    for tool, (permission, modules), agent in itertools.product(TOOLS, CALLERS, agents):
        caller = Caller(user_id="ada", permission=permission, allowed_modules=modules, agent=agent)
        said = await fleet.modules.explain(tool, caller)
        came = await fleet.call(ToolCall(tool_name=tool, arguments={}), caller)
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


async def test_it_says_which_calls_wait_for_each_other(fleet: ToolFleet) -> None:
    """Of a tool that has them take turns."""
    rules = (await fleet.modules.explain("owls.turns", Caller(user_id="ada", permission="owner"))).rules

    assert "Its calls run 1 at a time with the same 'nest', of all users." in [rule.says for rule in rules]


async def test_who_is_no_operator_learns_nothing_behind_a_refusal(fleet: ToolFleet) -> None:
    """What comes after the rule that decides could tell of tools that nobody has shown them."""
    caller = Caller(user_id="ada", permission="owner", allowed_modules=frozenset())
    said = await fleet.modules.explain("owls.admins", caller)

    assert said.decided_by is not None
    assert said.decided_by.about == "reach"
    assert len(said.rules) > len(said.for_outsiders().rules)
    assert said.for_outsiders().rules[-1] == said.decided_by
