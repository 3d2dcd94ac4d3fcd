"""A conversation's fields reach the modules that need them, and no model can forge them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from support.module_server import ModuleServer, serve
from support.owls import echo
from support.workers.hand_worker import hand_worker
from toolfleet import Caller, ToolFleet, ToolResult
from toolfleet_registry.contracts import Conversation, ToolCall
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.prepare import conversation_for, models_part

HERE = Conversation(conversation_id="c1", platform="chat", platform_channel_id="7")
FORGED = {"platform": "evil", "platform_thread_id": "9", "conversation_id": "other", "text": "hi"}


@pytest.mark.parametrize(
    ("tool", "conversation", "expected"),
    [
        # An ordinary module is told nothing, and its arguments are its own.
        ("research.search", HERE, FORGED),
        # A context module gets the platform; a field that the conversation does not have is not the model's either.
        (
            "location.send",
            HERE,
            {"conversation_id": "other", "text": "hi", "platform": "chat", "platform_channel_id": "7"},
        ),
        # The scheduler's jobs wake a conversation, so that one tool gets its id as well.
        (
            "scheduler.add_job",
            HERE,
            {"text": "hi", "platform": "chat", "platform_channel_id": "7", "conversation_id": "c1"},
        ),
        ("scheduler.list_jobs", None, {"conversation_id": "other", "text": "hi"}),
        # Outside of a conversation there is none to be woken.
        ("scheduler.add_job", None, {"text": "hi"}),
    ],
)
def test_fields_are_the_cores_not_the_models(
    tool: str, conversation: Conversation | None, expected: dict[str, Any]
) -> None:
    """Platform fields and the conversation's id come from the core alone."""
    modules = frozenset({"scheduler", "location"})
    call = models_part(ToolCall(tool_name=tool, arguments=FORGED), modules)
    assert {**call.arguments, **conversation_for(conversation, tool, modules)} == expected


def test_what_is_no_object_is_left_as_it_is() -> None:
    """Whoever judges it has a word for that."""
    call = ToolCall(tool_name="location.send", arguments=[1])
    assert models_part(call, frozenset({"location"})) is call


QUEUE = "tools.scheduler"
TEXT = {"text": {"type": "string"}}


@pytest.fixture(scope="module")
def scheduler() -> Iterator[ModuleServer]:
    """Its jobs need a conversation, by their schema; its notes have a schema that knows of none."""
    module = ModuleServer("scheduler")
    properties = {**TEXT, "conversation_id": {"type": "string"}}
    module.add("add_job", echo, input_schema={"properties": properties, "required": ["text", "conversation_id"]})
    module.add("note", echo, input_schema={"properties": TEXT, "additionalProperties": False})
    with serve(module) as served:
        yield served


@pytest.fixture
def settings(redis_url: str, scheduler: ModuleServer) -> Settings:
    return Settings(redis_url=redis_url, module_services={"scheduler": scheduler.url})


async def test_a_models_own_conversation_is_none(settings: Settings, owner: Caller) -> None:
    """It does not stand for one that a tool requires: what is judged is what is published."""
    forged = ToolCall(tool_name="scheduler.add_job", arguments={"text": "hi", "conversation_id": "other"})
    async with ToolFleet(settings=settings) as fleet, hand_worker(settings) as worker:
        refused = await fleet.call(forged, owner, timeout=5)
        assert (refused.error_code, refused.error) == (
            "invalid_arguments",
            "arguments.conversation_id is missing.",
        )
        await fleet.submit(forged, owner, conversation=HERE)
        (call,) = await worker.queued(QUEUE)

    assert call.arguments == {"text": "hi", "conversation_id": "c1", "platform": "chat", "platform_channel_id": "7"}


@pytest.mark.parametrize("method", ["add_job", "note"])
async def test_a_dead_letter_goes_on_in_its_conversation(settings: Settings, owner: Caller, method: str) -> None:
    """Also where the tool's schema has no room for what its module is told; the replay is the same call."""
    name = f"scheduler.{method}"
    unknown = ToolResult.failed(name, "outcome_unknown", "nobody knows", effect_state="unknown")
    async with ToolFleet(settings=settings) as fleet, hand_worker(settings) as worker:
        handle = await fleet.submit(ToolCall(tool_name=name, arguments={"text": "hi"}), owner, conversation=HERE)
        first = await worker.take(QUEUE)
        await worker.finish(first, unknown)
        replaying = asyncio.create_task(fleet.dead_letters.replay(handle.id, timeout=20))
        second = await worker.take(QUEUE)
        await worker.finish(second)

        assert (await replaying).success
    assert second.call.arguments == first.call.arguments
    assert second.call.arguments["platform_channel_id"] == "7"
