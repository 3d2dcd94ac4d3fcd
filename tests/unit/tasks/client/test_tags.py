"""What a tag asks of the fleet, and what its answer is to an agent."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from support.local_tools.tag_tools import echo_tag, learning_tag, research_tag, tag
from toolfleet_registry.contracts import Audit, Caller, Conversation, Terms, ToolCall, ToolResult
from toolfleet_registry.errors import ToolNotFound, ToolRateLimited
from toolfleet_registry.settings import Settings
from toolfleet_registry.tags import TagResult, ToolContext, ToolDef
from toolfleet_tasks.calls.eval_gate import Circumstances
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.client.tags import TagRegistry
from toolfleet_tasks.queues import lane_of, queues_of


class Answering(ToolFleet):
    """A fleet that has one answer for every call, and remembers them."""

    def __init__(self, answer: ToolResult) -> None:
        super().__init__(settings=Settings(redis_url="redis://127.0.0.1:1"))
        self.answer = answer
        self.calls = list[ToolCall]()
        self.callers = list[Caller]()
        self.around = list[Circumstances]()
        self.rest = list[tuple[Conversation | None, float | None]]()

    async def call_around(
        self,
        call: ToolCall,
        caller: Caller,
        around: Circumstances,
        *,
        conversation: Conversation | None = None,
        timeout: float | None = None,
    ) -> ToolResult:
        self.calls.append(call)
        self.callers.append(caller)
        self.around.append(around)
        self.rest.append((conversation, timeout))
        return self.answer


CONTEXT = ToolContext(raw_arg="owls", user="@ada", user_message="Owls?", chat_id=7, confidence=0.5)


def done(result: Any = None) -> ToolResult:
    return ToolResult.ok("x.y", result)


async def execute(
    tool: ToolDef, answer: ToolResult | None = None, context: ToolContext = CONTEXT, **rest: Any
) -> tuple[TagResult, Answering]:
    fleet = Answering(answer or done())
    registry = TagRegistry(fleet)
    registry.register(tool)
    return await registry.execute(tool.name, context, **rest), fleet


@pytest.mark.parametrize(
    ("tool", "context", "arguments"),
    [
        (echo_tag, CONTEXT, {"text": "owls"}),
        (echo_tag, CONTEXT.model_copy(update={"groups": {"text": "mice"}}), {"text": "mice"}),  # as it was found
        (
            tag("learn", arg_pattern=r"(\w+)\s+(.+)", arg_groups=["category", "content"]),
            CONTEXT.model_copy(update={"raw_arg": "factual owls see"}),
            {"category": "factual", "content": "owls see"},
        ),
        (tag("maybe", arg_pattern=r"(\w+)(?: as (\w+))?", arg_groups=["what", "how"]), CONTEXT, {"what": "owls"}),
        (tag("digits", arg_pattern=r"(\d+)", arg_groups=["number"]), CONTEXT, {}),  # the module says what is missing
        (tag("lines"), CONTEXT.model_copy(update={"raw_arg": "a\nb"}), {}),
    ],
)
async def test_a_module_is_given_the_groups_by_name(
    tool: ToolDef, context: ToolContext, arguments: dict[str, Any]
) -> None:
    """Those of the context, or of its argument where somebody made it by hand; one that is empty is no argument."""
    _, fleet = await execute(tool, context=context)
    assert fleet.calls == [ToolCall(tool_name="owls.echo", arguments=arguments)]


async def test_a_function_is_given_the_groups_and_what_the_agent_knows_beside_them() -> None:
    """Among the arguments a model could write it."""
    context = CONTEXT.model_copy(update={"raw_arg": "factual owls see"})
    _, fleet = await execute(learning_tag, context=context)

    (call,) = fleet.calls
    assert call.tool_name == "local.learning"
    assert call.arguments == {"category": "factual", "content": "owls see"}
    (around,) = fleet.around
    assert around.raw_arg == "factual owls see"
    assert around.context is not None
    assert (around.context.user_message, around.context.chat_id, around.context.confidence) == ("Owls?", 7, 0.5)


async def test_a_call_has_the_tags_terms_and_its_user() -> None:
    """As a guest of the tool's own module; the gate sees tag and context; conversation and time pass through."""
    gated = tag("research", cost="expensive", cooldown_seconds=5, daily_limit=3, requires_gate=True)
    conversation = Conversation(conversation_id="c-1")
    _, fleet = await execute(gated, conversation=conversation, timeout=7)

    (around,) = fleet.around
    assert around.terms == Terms(cooldown_seconds=5, daily_limit=3, cost="expensive", requires_gate=True)
    assert (around.tag, around.context) == (gated, CONTEXT.model_copy(update={"groups": {"raw_arg": "owls"}}))
    assert fleet.callers == [Caller(user_id="@ada", permission="guest", allowed_modules=frozenset({"owls"}))]
    assert fleet.rest == [(conversation, 7)]


@pytest.mark.parametrize(
    ("answer", "success", "message"),
    [
        (done(None), True, None),
        (done("Found."), True, "Found."),
        (done({"öwls": [1]}), True, '{"öwls": [1]}'),
        (done({"message": "Found."}), True, "Found."),
        (done({"message": None, "side_effects": []}), True, None),
        (done({"success": False, "message": "None there."}), False, "None there."),  # as a module may say it
        (done({"message": "a", "other": "b"}), True, '{"message": "a", "other": "b"}'),  # means something else
        (done({"message": ["a"]}), True, '{"message": ["a"]}'),
        (ToolResult.refused("x.y", "blocked_by_gate", "Not now."), False, "Not now."),
        (ToolResult.refused("x.y", "permission_denied", "No."), False, "No."),
        (
            ToolResult.failed("x.y", "module_error", "Silent.", effect_state="unknown").model_copy(
                update={"result": {"success": False, "message": None}}
            ),
            False,
            None,
        ),
        (
            ToolResult.failed("x.y", "timed_out", "Late.", effect_state="unknown").model_copy(
                update={"result": {"success": True, "message": "Fine."}}
            ),
            False,
            "Fine.",
        ),
    ],
)
async def test_what_a_call_came_to_is_a_message(answer: ToolResult, success: bool, message: str | None) -> None:
    """The tool's own words if it has any, else its result or the fleet's reason."""
    result, _ = await execute(echo_tag, answer)
    assert (result.success, result.message) == (success, message)


async def test_the_stamps_are_the_fleets() -> None:
    """Whatever a handler writes under their names; where the call never ran, the agent's own clock makes them."""
    said = {"message": "m", "audit": {"tool": "mine", "ts": "never", "duration_ms": -1, "call_id": "none", "posts": 3}}
    audit = Audit(call_id="c-1", tool="owls.echo", ts=1_700_000_000.5, duration_ms=12.7)
    result, _ = await execute(echo_tag, done(said).model_copy(update={"audit": audit}))
    assert result.audit == {
        "posts": 3,
        "duration_ms": 12,
        "tool": "echo",
        "ts": "2023-11-14T22:13:20.500000+00:00",
        "call_id": "c-1",
    }

    result, _ = await execute(echo_tag, done())
    assert result.audit.keys() == {"duration_ms", "tool", "ts"}
    assert 0 <= result.audit["duration_ms"] < 60_000
    assert (datetime.now(UTC) - datetime.fromisoformat(result.audit["ts"])).total_seconds() < 60


async def test_limits_and_missing_tools_raise() -> None:
    """And nothing else of what happens to a call."""
    limited = ToolResult.refused("x.y", "rate_limited", "Later.").model_copy(update={"retry_after_seconds": 7.5})
    with pytest.raises(ToolRateLimited, match=r"^Later\.$") as caught:
        await execute(research_tag, limited)
    assert (caught.value.tool_name, caught.value.retry_after_seconds) == ("research", 7.5)

    with pytest.raises(ToolNotFound):
        await execute(research_tag, ToolResult.refused("x.y", "unknown_tool", "?"))
    with pytest.raises(ToolNotFound):
        await execute(research_tag, ToolResult.refused("x.y", "unknown_module", "?"))
    with pytest.raises(ToolNotFound, match="There is no tool 'nowhere'"):
        await TagRegistry(Answering(done())).execute("nowhere", CONTEXT)


def test_local_tools_wait_in_a_queue_of_their_own() -> None:
    """That the fast lane serves, unless the settings say otherwise."""
    settings = Settings(local_tools="a.b:c", module_services={"owls": "http://owls"})
    assert queues_of("fast", settings) == ["tools.local", "tools.owls", "toolfleet.control"]

    slow = settings.model_copy(update={"slow_modules": frozenset({"local"})})
    assert (lane_of("local", slow), queues_of("slow", slow)) == ("slow", ["tools.local"])


def test_a_confidence_is_a_number() -> None:
    """One that no JSON can carry is refused where it is made."""
    with pytest.raises(ValueError, match="finite"):
        ToolContext(raw_arg="", confidence=math.nan)
