"""What an agent knows of a conversation reaches the tag tools of a folder, in a fleet that signs: if the agent may tell that module."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fleet import SIGNING_KEY, TestBed
from support.hosts.host_process import folder_host_process
from support.modules.listed_modules import until_listed
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet.tags import TagRegistry, ToolContext, ToolDef
from toolfleet_registry.directory.hosts import announce_key
from toolfleet_tasks.messages.signing import module_key

ADA = Caller(user_id="@ada", permission="owner", allowed_modules="*")
KNOWN = ToolContext("", "Where are the owls?", "@eve", 7, "Owls live in barns.", 0.5)
TOOLS = """
from toolfleet.tags import TagResult, ToolContext, ToolDef

def says(context: ToolContext) -> TagResult:
    return TagResult(True, context.model_dump_json())

says_tag = ToolDef(
    name="says", description="Say it.", tag_prefix="SAYS", handler=says, cost="free", requires_gate=False
)
"""


@pytest.fixture
def bed(redis_url: str, tmp_path: Path) -> Iterator[TestBed]:
    logs = tmp_path / "logs"
    logs.mkdir()
    bed = TestBed(redis_url, (), logs, {"signing_key": SIGNING_KEY})
    folder = tmp_path / "owls"
    folder.mkdir()
    (folder / "says.py").write_text(TOOLS)
    env = {
        "TOOLFLEET_REDIS_URL": redis_url,
        "TOOLFLEET_MODULE_KEY": module_key(SIGNING_KEY, "owls"),
        "TOOLFLEET_ANNOUNCE_KEY": announce_key(SIGNING_KEY, "owls"),
    }
    with folder_host_process(folder, "--port", "0", env=env), bed.worker():
        yield bed


def told(result: ToolResult) -> dict[str, Any]:
    assert result.success, result
    context: dict[str, Any] = json.loads(result.result["message"])
    return context


async def test_the_handler_is_told_what_the_agent_knows(bed: TestBed) -> None:
    """By name and as a tag. An agent that is not to tell that module says nothing; the user is the caller either way."""
    call = ToolCall(tool_name="owls.says", arguments={"raw_arg": "owls"})
    expected = {**KNOWN.model_dump(), "raw_arg": "owls", "user": "@ada", "groups": {"raw_arg": "owls"}}
    may = bed.settings.model_copy(update={"context_modules": frozenset({"owls"})})
    async with ToolFleet(settings=may) as fleet:
        await until_listed(fleet, ADA, "owls")
        assert told(await fleet.call(call, ADA, context=KNOWN)) == expected

        tags = TagRegistry(fleet, caller=lambda _: ADA)
        tags.register(
            ToolDef(
                name="says",
                description="Say it.",
                tag_prefix="SAYS",
                handler="owls.says",
                cost="free",
                requires_gate=False,
            )
        )
        tagged = await tags.execute("says", KNOWN.model_copy(update={"raw_arg": "owls", "groups": {"raw_arg": "owls"}}))
        assert json.loads(tagged.message or "") == expected

    async with ToolFleet(settings=bed.settings) as fleet:
        await until_listed(fleet, ADA, "owls")
        silent = ToolContext("", user="@ada").model_dump() | {"raw_arg": "owls", "groups": {"raw_arg": "owls"}}
        assert told(await fleet.call(call, ADA, context=KNOWN)) == silent
