"""What the document about modules over HTTP promises, as an agent, an operator and a model see it."""

import json
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.fleet import TestBed
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.programs.closed_port import closed_port
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet.formats import tools_to_openai_format

ADA = Caller(user_id="ada", permission="user", allowed_modules="*")
LEVELS: Any = ["guest", "user", "admin", "owner"]
NO_LEVEL: Any = "superuser"
PERSONA = frozenset({"research", "file_manager", "code_executor"})


def names(tools: Any) -> set[str]:
    return {tool.name for tool in tools}


async def call(agent: ToolFleet, tool: str, caller: Caller = ADA, **arguments: object) -> ToolResult:
    return await agent.call(ToolCall(tool_name=tool, arguments=arguments), caller)


async def test_discovery_lists_what_answers_and_logs_the_rest(seeded: TestBed) -> None:
    """Each configured module is asked; one that gives no manifest and one that is not there stop no other."""
    services = {**seeded.settings.module_services, "gone": f"http://127.0.0.1:{closed_port()}"}
    settings = seeded.settings.model_copy(update={"module_services": services, "key_prefix": "looked:"})
    with capture_logs() as logs:
        async with ToolFleet(settings=settings) as fleet:
            statuses = await fleet.modules.refresh()
            listed = names(await fleet.tools(ADA))

    assert {name for name, status in statuses.items() if not status.ok} == {"mute", "gone"}
    assert {"research.web_search", "faulty.e500"} <= listed
    events = {(entry["event"], entry.get("module")) for entry in logs}
    assert {
        ("module_discovered", "research"),
        ("module_manifest_error", "mute"),
        ("module_unreachable", "gone"),
    } <= events
    assert next(entry["tools"] for entry in logs if entry.get("module") == "research" and "tools" in entry) == 2
    assert next(entry["status"] for entry in logs if entry["event"] == "module_manifest_error") == 503


async def test_manifests_are_cached_for_an_hour_and_read_at_a_start(seeded: TestBed, tmp_path: Path) -> None:
    """The first listing leads to discovery; while modules are away the next agent reads what lies in Redis."""
    module = ModuleServer("owls")
    module.add("count", echo)
    prefix = {"key_prefix": "cached:"}
    with serve(module):
        settings = TestBed(seeded.redis_url, (module,), tmp_path, prefix).settings
        async with ToolFleet(settings=settings) as first:
            found = names(await first.tools(ADA))
    looks = module.looks
    async with Redis.from_url(seeded.redis_url, decode_responses=True) as redis:
        manifest = json.loads(await redis.get("cached:module_manifest:owls") or "")
        lasts = await redis.ttl("cached:module_manifest:owls")
    async with ToolFleet(settings=settings) as second:
        read = names(await second.tools(ADA))

    assert found == read == {"owls.count"}
    assert module.looks == looks
    assert {"module_name": "owls", "description": ""}.items() <= manifest.items()
    assert 3500 < lasts <= 3600


async def test_the_example_of_the_document_is_listed_to_the_letter(agent: ToolFleet) -> None:
    """A user whose persona has three modules gets five tools: by level, and by module."""
    listed = names(await agent.tools(Caller(permission="user", allowed_modules=PERSONA)))
    guests = names(await agent.tools(Caller()))

    assert listed == {
        "research.web_search",
        "research.fetch_webpage",
        "file_manager.create_document",
        "file_manager.delete_file",
        "code_executor.run_python",
    }
    assert guests == {"research.web_search", "research.fetch_webpage", "file_manager.create_document"}


async def test_levels_are_in_order_and_an_unknown_one_is_a_guest(agent: ToolFleet) -> None:
    """Each level has the tools of those below it; `superuser` is no level of ours."""
    by_level = [names(await agent.tools(Caller(permission=level, allowed_modules="*"))) for level in LEVELS]
    unknown = Caller(permission=NO_LEVEL, allowed_modules="*")

    assert [sorted(low - high) for low, high in pairwise(by_level)] == [[], [], []]
    assert [len(tools) for tools in by_level] == sorted(len(tools) for tools in by_level)
    assert "code_executor.run_shell" in by_level[2] - by_level[1]
    assert names(await agent.tools(unknown)) == by_level[0]
    assert (await call(agent, "file_manager.delete_file", unknown)).error_code == "permission_denied"


async def test_a_tool_with_an_unknown_level_is_closed(agent: ToolFleet) -> None:
    """It is in no listing, also of an owner, and the refusal says why."""
    owner = Caller(user_id="ada", permission="owner", allowed_modules="*")
    refused = await call(agent, "faulty.closed", owner)

    assert "faulty.closed" not in names(await agent.tools(owner))
    assert refused.error == "Tool 'faulty.closed' is closed: it needs the unknown permission 'superuser'."


async def test_a_name_is_split_on_its_first_dot(agent: ToolFleet, modules: dict[str, ModuleServer]) -> None:
    """`faulty.issue.create` is the tool `issue.create` of the module `faulty`."""
    result = await call(agent, "faulty.issue.create", title="owls")

    assert (result.success, result.result) == (True, {"title": "owls"})
    assert modules["faulty"].calls("issue.create")[-1] == {
        "tool_name": "faulty.issue.create",
        "arguments": {"title": "owls"},
        "user_id": "ada",
    }


WORDS = [
    ("web_search", "Invalid tool name format: web_search. Expected 'module.tool_name'."),
    ("nowhere.look", "Unknown module: nowhere"),
    ("faulty.e500", "Module returned status 500: out of paper"),
    ("faulty.e404", "Module returned status 404: no such page"),
    ("faulty.nap", "Tool execution timed out (0.3s)."),
    ("faulty.fail", "no luck"),
]


@pytest.mark.parametrize(("tool", "words"), WORDS)
async def test_an_agent_reads_the_words_of_the_document(agent: ToolFleet, tool: str, words: str) -> None:
    """What a caller reads begins with them, whatever stands behind."""
    assert str((await call(agent, tool)).error).startswith(words)


async def test_a_refused_connection_is_read_as_one(seeded: TestBed) -> None:
    """A module was listed, and its port is closed: the caller reads that, and not that the module has failed too often."""
    module = ModuleServer("brief")
    module.add("look", echo)
    with ExitStack() as stack:
        stack.enter_context(serve(module))
        bed = TestBed(seeded.redis_url, (module,), seeded.folder, {"key_prefix": "brief:"})
        async with ToolFleet(settings=bed.settings) as fleet:
            await fleet.modules.refresh()
            stack.close()
            with bed.worker():
                result = await fleet.call(ToolCall(tool_name="brief.look"), ADA)

    assert str(result.error).startswith("Tool execution error: Connection refused")


async def test_tools_are_offered_to_openai_under_their_own_names(agent: ToolFleet) -> None:
    """To the letter, with the types, descriptions, choices and required parameters of the manifest."""
    (search,) = [tool for tool in await agent.tools(ADA) if tool.name == "research.web_search"]

    assert [*tools_to_openai_format([search], dotted=True)] == [
        {
            "type": "function",
            "function": {
                "name": "research.web_search",
                "description": "Search the web and return results",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "query": {"type": "string", "description": "Search query"},
                        "max_results": {"type": "integer", "description": "Max results"},
                        "order": {"type": "string", "description": "Order", "enum": ["new", "best"]},
                    },
                    "required": ["query"],
                },
            },
        }
    ]


async def test_a_failed_call_of_a_tool_without_an_effect_is_made_once(
    agent: ToolFleet, modules: dict[str, ModuleServer]
) -> None:
    """Nobody knows whether a repeat does harm: this is where the fleet differs, and the result says so."""
    modules["faulty"].forget()
    result = await call(agent, "faulty.e500")

    assert (result.audit.attempts, len(modules["faulty"].calls("e500"))) == (1, 1)
    assert result.effect_state == "unknown"


async def test_a_switch_has_failures_tried_once_more(seeded: TestBed, modules: dict[str, ModuleServer]) -> None:
    """With `retry_undeclared` each failed call is made twice, and the log has `tool_call_failed_retrying`."""
    modules["faulty"].forget()
    bed = TestBed(seeded.redis_url, seeded.modules, seeded.folder, {"key_prefix": "again:", "retry_undeclared": True})
    with bed.worker() as worker:
        async with ToolFleet(settings=bed.settings) as fleet:
            result = await call(fleet, "faulty.fail")
        said = worker.said()

    assert (result.audit.attempts, len(modules["faulty"].calls("fail"))) == (2, 2)
    assert "tool_call_failed_retrying" in said
