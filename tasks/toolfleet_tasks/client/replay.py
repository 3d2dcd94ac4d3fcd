"""Runs a dead letter again: as a new call, judged again, that names the old one."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolfleet_registry.contracts import Caller, Conversation, ToolCall, ToolResult
from toolfleet_registry.contracts.dead_letters import DeadLetter
from toolfleet_registry.contracts.tool_context import CONVERSATION_FIELDS, ToolContext
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.policy.redaction import REDACTED
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Circumstances
from toolfleet_tasks.dead_letters.call_letters import DeadLetters, Kept
from toolfleet_tasks.ledger.dead_letters import NOT_KEPT

log = get_logger(__name__)

_MARGIN_SECONDS = 60  # after its deadline a call may still be running: clocks differ, and a module must hear of it
_MOST_NAMES = 20  # in one sentence


@dataclass(frozen=True, slots=True)
class Replay:
    """The parts of a letter's new call. It has no idempotency key: the old call's stands for the old, unknown end."""

    call: ToolCall
    caller: Caller
    conversation: Conversation
    context: ToolContext | None = None
    asked_by: tuple[str, ...] = ()

    @property
    def around(self) -> Circumstances:
        """Its agent's facts about the old call: as a gate is told it, with the user."""
        if self.context is None:
            return replace(NOTHING_MORE, asked_by=self.asked_by) if self.asked_by else NOTHING_MORE
        user = self.caller.user_id or self.call.user_id or ""
        context = self.context.model_copy(update={"user": user})
        return Circumstances(context, raw_arg=self.context.raw_arg, asked_by=self.asked_by)


def replay_of(letter: Kept, given: Mapping[str, Any], caller: Caller | None = None) -> Replay | ToolResult:
    """The new call, by default for the old caller, with the arguments `given` over the letter's, each as a whole.

    Or the refusal, where the letter cannot be read, or some of its arguments were not kept and are not given.
    """
    if not isinstance(letter, DeadLetter):
        text = f"Dead letter {letter.call_id!r} cannot be replayed: {letter.reason}"
        return ToolResult.refused("", "internal", text, hint="Drop it, and make its call anew if you know it.")
    kept = {} if given and letter.arguments == _NONE_KEPT else letter.arguments
    missing = [name for name, value in kept.items() if name not in given and _is_incomplete(value)]
    if letter.is_redacted and missing:
        return _incomplete(letter, missing)
    arguments, version = {**kept, **given}, letter.tool_version
    call = ToolCall(tool_name=letter.tool_name, arguments=arguments, user_id=letter.user_id, tool_version=version)
    return Replay(call, caller or letter.caller, _conversation_in(call.arguments), letter.context, letter.asked_by)


async def run_replay(
    dead: DeadLetters, call_id: str, *, seconds: float, run: Callable[[], Awaitable[ToolResult]]
) -> ToolResult:
    """Run the new call of a dead letter, which takes at most `seconds`, unless another replay of the letter may still run.

    An interrupted replay leaves the letter, to be replayed once that call has surely ended.
    """
    letter, rest = await dead.take(call_id, seconds=seconds + _MARGIN_SECONDS)
    if rest > 0:
        return _being_replayed(letter, rest)
    result = await run()
    replay_id = result.audit.call_id or None
    try:
        await dead.settle(call_id, replay_id=replay_id, succeeded=result.success)
    except FleetUnavailable as exc:  # no reason to lose the result
        log.warning("dead_letter_not_settled", call_id=call_id, error=str(exc))
    return result


def _being_replayed(letter: Kept, seconds: int) -> ToolResult:
    text = f"Dead letter {letter.call_id!r} is being replayed, or was left so: that may take up to {seconds} s."
    result = ToolResult.refused(
        letter.tool_name if isinstance(letter, DeadLetter) else "", "busy", text, hint="See what comes of it first."
    )
    return result.model_copy(update={"retryable": True, "retry_after_seconds": float(seconds)})


def _incomplete(letter: DeadLetter, missing: list[str]) -> ToolResult:
    names = ", ".join(map(repr, sorted(missing)[:_MOST_NAMES])) + (" …" if len(missing) > _MOST_NAMES else "")
    text = f"Dead letter {letter.call_id!r} does not have these arguments as they were: {names}."
    hint = "Sensitive or very large arguments are not kept: replay it with them, each as a whole."
    return ToolResult.refused(letter.tool_name, "invalid_arguments", text, hint=hint)


def _conversation_in(arguments: Mapping[str, Any]) -> Conversation:
    """The conversation that the fleet wrote into the old arguments, to be written into the new ones."""
    fields = {name: arguments.get(name) for name in CONVERSATION_FIELDS}
    # Numbers were texts, for a module that has them taken for numbers.
    return Conversation(**{name: str(value) for name, value in fields.items() if type(value) in {str, int, float}})


def _is_incomplete(value: Any) -> bool:
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if node in (REDACTED, NOT_KEPT):
            return True
        if isinstance(node, dict | list):
            waiting.extend(node.values() if isinstance(node, dict) else node)
    return False


_NONE_KEPT = {"*": NOT_KEPT}
