"""A context on its way: in messages, in dead letters, and to workers of the version before."""

import asyncio

import pytest

from support.local_tools.tag_tools import research_tag
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.published_call import published
from support.waiting import PATIENCE_SECONDS
from support.workers.hand_worker import hand_worker
from toolfleet_registry.contracts import ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.calls import DeadLetter
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.settings import Settings
from toolfleet_registry.tags import ToolContext
from toolfleet_tasks.calls.eval_gate import Circumstances
from toolfleet_tasks.calls.prepare import as_before, context_for
from toolfleet_tasks.client.dead_letters import Replay, replay_of
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.client.tags import TagRegistry
from toolfleet_tasks.ledger.contents import dead_letter
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.signing import Seal

KEY = "a secret of more than thirty-two characters"
CONTEXT = ToolContext("owls", "Owls?", "@ada", 7, "Barns.", 0.5)
TOLD = CONTEXT.model_copy(update={"raw_arg": "", "user": ""})
LOST = ToolResult.failed("local.told", "outcome_unknown", "lost", effect_state="unknown")
TAKES = ToolDefinition(name="local.told", takes_context=True)
BEFORE = {  # what workers of the version before say of a tag's function
    "type": "object",
    "properties": {
        "raw_arg": {"type": "string"},
        "user_message": {"type": "string", "default": ""},
        "chat_id": {"type": "integer", "default": 0},
        "kb_context": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "confidence": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "groups": {"type": "object", "additionalProperties": {"type": "string"}, "default": {}},
    },
    "required": ["raw_arg"],
    "additionalProperties": False,
}


def test_only_a_message_with_a_context_needs_a_reader_of_this_version() -> None:
    """So that older workers run all other calls."""
    assert json_text.version_of(published()) == 1
    assert "context" not in json_text.dump(published())

    call = published(context=TOLD)
    assert json_text.version_of(call) == 2
    assert json_text.load(type(call), json_text.dump(call)) == call


def test_a_context_is_sealed_with_its_call() -> None:
    """Whoever changes it in the queue has changed the call."""
    seal = Seal(KEY)
    sealed = seal.seal(published(context=TOLD))
    assert seal.open(sealed, task_id="call-1").context == TOLD

    other = seal.seal(published(context=TOLD.model_copy(update={"chat_id": 999})))
    parts, others = sealed.split("."), other.split(".")
    with pytest.raises(MessageRefused):
        seal.open(".".join([parts[0], others[1], parts[2]]), task_id="call-1")


MAY = frozenset({"larks"})


@pytest.mark.parametrize(
    ("tool", "context", "told"),
    [
        (TAKES, CONTEXT, TOLD),
        (TAKES, ToolContext("x", user="@ada", groups={"a": "b"}), None),  # nothing that does not travel anyway
        (TAKES, None, None),
        (ToolDefinition(name="local.told"), CONTEXT, None),
        (ToolDefinition(name="owls.echo", takes_context=True), CONTEXT, None),  # whatever a module says of itself
        (ToolDefinition(name="larks.told", takes_context=True), CONTEXT, TOLD),
        (ToolDefinition(name="larks.echo"), CONTEXT, None),
    ],
)
def test_a_context_goes_to_functions_that_take_it(
    tool: ToolDefinition, context: ToolContext | None, told: ToolContext | None
) -> None:
    """Without the user and the groups, which travel as what they are."""
    assert context_for(tool, Circumstances(context), MAY) == told


def letter_of(**fields: object) -> DeadLetter:
    return json_text.load(DeadLetter, dead_letter(published("local.told", **fields), LOST, died_at=1.0))


def test_a_replay_is_told_what_the_call_was_told() -> None:
    """Else it would speak to another chat."""
    letter = letter_of(context=TOLD.model_copy(update={"raw_arg": "owls  here"}), user_id="@ada")
    again = replay_of(letter, {})

    assert isinstance(again, Replay)
    assert context_for(TAKES, again.around, frozenset()) == letter.context
    assert again.around.context is not None
    assert again.around.context.user == "@ada"  # as a gate is told
    assert letter.context is not None
    assert (letter.context.raw_arg, letter.context.kb_context) == ("owls  here", "Barns.")
    assert letter_of().context is None


def test_a_dead_letter_keeps_its_chat_and_no_secret() -> None:
    """Texts may quote a sensitive argument; and of large ones there is no room for all."""
    secret = letter_of(context=TOLD, arguments={"pin": "1234"}, sensitive=("/pin",)).context
    large = letter_of(context=TOLD.model_copy(update={"kb_context": "x" * 100_000})).context
    larger = letter_of(context=TOLD.model_copy(update={"user_message": "x" * 100_000})).context

    assert secret == ToolContext("", chat_id=7, confidence=0.5)
    assert large == TOLD.model_copy(update={"kb_context": None})
    assert larger == ToolContext("", chat_id=7, confidence=0.5)


async def test_workers_of_the_version_before_are_told_as_they_read_it(redis_url: str) -> None:
    """Among the arguments, as their manifest says. They are updated after the agents."""
    module = ModuleServer("local")
    module.add("research", echo, input_schema=BEFORE)
    with serve(module) as served:
        settings = Settings(redis_url=redis_url, module_services={"local": served.url})
        async with ToolFleet(settings=settings) as fleet, hand_worker(settings) as worker:
            registry = TagRegistry(fleet)
            registry.register(research_tag)
            running = asyncio.create_task(registry.execute("research", CONTEXT))
            queued = await worker.until_queued(queue="tools.local")
            running.cancel()
            await asyncio.wait([running], timeout=PATIENCE_SECONDS)

    (call,) = queued
    assert call.arguments == {**CONTEXT.model_dump(exclude={"user"}), "groups": {"raw_arg": "owls"}}
    assert (call.context, call.user_id, json_text.version_of(call)) == (None, "@ada", 1)


def test_a_models_own_call_is_left_as_it_is() -> None:
    """Whatever workers say: only a tag's call has a context to tell."""
    call, before = ToolCall(tool_name="local.research"), ToolDefinition(name="local.research", input_schema=BEFORE)
    assert as_before(call, before, Circumstances(CONTEXT)) is call
    assert as_before(call, TAKES, Circumstances(CONTEXT, tag=research_tag)) is call
