"""Tag tools in a folder: their groups are arguments, and they load and reload as others do."""

import json
from functools import partial
from pathlib import Path

import pytest

from support.hosts.tool_folder import HEAD, hosted
from support.waiting import wait_until
from toolfleet_registry.contracts.call_context import ToolContext

pytestmark = pytest.mark.asyncio

TAGS = (
    HEAD
    + """
from toolfleet.tags import TagResult, ToolContext, ToolDef

async def research(context: ToolContext) -> TagResult:
    return TagResult(True, f"{context.user} asks for {context.raw_arg}, {sorted(context.groups)}")

def weigh(owl: str, call: Context, unit: str = "g") -> str:
    return f"{owl} in {unit}: {call.tool_name}"

TOOLS = [
    ToolDef(
        name="research", description="Look into it.", tag_prefix="RESEARCH", handler=research, cost="cheap",
        requires_gate=False, cooldown_seconds=3,
    ),
    ToolDef(
        name="weigh", description="Weigh one.", tag_prefix="WEIGH", arg_pattern=r"(\\w+)(?: in (\\w+))?",
        arg_groups=["owl", "unit"], handler=weigh, cost="free", requires_gate=True, listed=False,
    ),
]
"""
)


@pytest.mark.usual
async def test_a_tag_tool_is_a_tool_of_its_folder(tmp_path: Path) -> None:
    """Async or plain, with contexts and groups; its terms are in its definition."""
    async with hosted(tmp_path, {"owls.py": TAGS}) as folder:
        assert folder.errors() == {}
        asked = await folder.client.send("owls.research", {"raw_arg": "owls"}, user_id="ada")
        weighed = [await folder.call("weigh", owl="barn"), await folder.call("weigh", owl="barn", unit="kg")]

        assert asked.result["message"] == "ada asks for owls, ['raw_arg']"
        assert [each.result for each in weighed] == ["barn in g: owls.weigh", "barn in kg: owls.weigh"]
        assert (await folder.call("weigh", unit="kg")).effect_state == "none"
        research, weigh = (folder.host.tools[f"owls.{name}"].definition for name in ("research", "weigh"))
        assert (research.cooldown_seconds, research.cost, research.required_permission) == (3, "cheap", "guest")
        assert (weigh.requires_gate, weigh.listed) == (True, False)
        assert weigh.input_schema is not None
        assert weigh.input_schema["required"] == ["owl"]

        folder.write("owls.py", TAGS.replace("asks for", "wants"))
        await wait_until(lambda: folder.host.tools["owls.research"].definition.version != research.version, "reloaded")
        again = await folder.client.send("owls.research", {"raw_arg": "owls"}, user_id="ada")
        assert again.result["message"] == "ada wants owls, ['raw_arg']"


SAYS = (
    HEAD
    + """
from toolfleet.tags import TagResult, ToolContext, ToolDef

def says(context: ToolContext) -> TagResult:
    return TagResult(True, context.model_dump_json())

def plain(raw_arg: str) -> str:
    return raw_arg

FACTS = {"description": "Say it.", "cost": "free", "requires_gate": False}
PAIR = {"arg_pattern": r"(\\w+) (\\w+)", "arg_groups": ["one", "two"]}

TOOLS = [
    ToolDef(name="says", tag_prefix="SAYS", handler=says, **FACTS),
    ToolDef(name="pair", tag_prefix="PAIR", handler=says, **FACTS, **PAIR),
    ToolDef(name="plain", tag_prefix="PLAIN", handler=plain, **FACTS),
]
"""
)


async def test_a_tag_tool_is_told_what_the_agent_knows(tmp_path: Path) -> None:
    """If it takes that; who asks, and the groups, are the call's, whatever the agent's context says."""
    known = ToolContext("as written", "Where?", "@eve", 7, "Owls live in barns.", 0.5, {"x": "y"})
    async with hosted(tmp_path, {"owls.py": SAYS}) as folder:
        assert folder.errors() == {}
        takes = {name: tool.definition.takes_context for name, tool in folder.host.tools.items()}
        assert takes == {"owls.says": True, "owls.pair": True, "owls.plain": False}

        send = partial(folder.client.send, user_id="@ada", context=known)
        said = json.loads((await send("says", {"raw_arg": "owls"})).result["message"])
        assert said == {**known.model_dump(), "raw_arg": "owls", "user": "@ada", "groups": {"raw_arg": "owls"}}
        said = json.loads((await send("pair", {"one": "a", "two": "b"})).result["message"])
        assert (said["raw_arg"], said["groups"], said["chat_id"]) == ("as written", {"one": "a", "two": "b"}, 7)
        assert (await send("plain", {"raw_arg": "owls"})).result == "owls"

        other = await send("says", {"raw_arg": "owls"}, call_id="one", context=None)
        assert json.loads(other.result["message"])["chat_id"] == 0
        again = await send("says", {"raw_arg": "owls"}, call_id="one")
        assert (again.success, again.status) == (False, 422), "another context is another request"
        assert not (await folder.call("says", raw_arg="owls", chat_id=9)).success, "no model can say it"

        request = {"tool_name": "owls.says", "arguments": {"raw_arg": "owls"}}
        wrong = await folder.client.http.post(
            "/execute", json=request | {"context": {"raw_arg": "x", "chat_id": "seven"}}
        )
        assert (wrong.status_code, "chat_id" in wrong.text) == (422, True)
        newer = await folder.client.http.post("/execute", json=request | {"context": {"raw_arg": "x", "colour": "red"}})
        assert newer.json()["success"], "what a newer agent says beside is ignored"


NONE = [
    ('cost="free"', 'cost="dear"', "its cost must be one of"),
    ('arg_groups=["owl", "unit"]', 'arg_groups=["crow", "unit"]', "its handler wants 'owl'"),
    ("handler=weigh", 'handler="crows.weigh"', "which its module lists"),
]


async def test_a_tag_tool_that_is_none_is_an_error(tmp_path: Path) -> None:
    """As a function that cannot be a tool; its version before stays in effect."""
    async with hosted(tmp_path, {"owls.py": TAGS}) as folder:
        for old, new, words in NONE:
            folder.write("owls.py", TAGS.replace(old, new))
            await wait_until(lambda: words in folder.messages(), words)  # noqa: B023 - called here
            assert folder.errors() == {"owls.py": ("InvalidTool", "previous")}
            assert (await folder.call("weigh", owl="barn")).success
