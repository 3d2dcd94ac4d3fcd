"""Lists, shows, replays and drops dead letters (`fleet.dead_letters`)."""

import builtins
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolfleet_registry.contracts import Caller, Conversation, ToolCall, ToolResult
from toolfleet_registry.contracts.call_context import CONVERSATION_FIELDS, ToolContext
from toolfleet_registry.contracts.calls import DeadLetter
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.policy.call_faults import as_sent
from toolfleet_registry.policy.redaction import REDACTED
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Circumstances
from toolfleet_tasks.calls.idempotency import end_of
from toolfleet_tasks.calls.prepare import check_timeout
from toolfleet_tasks.client.namespaces import Namespace
from toolfleet_tasks.client.session import Session
from toolfleet_tasks.client.sync_face import SyncFace, blocking
from toolfleet_tasks.dead_letters.letters import DeadLetters, Kept
from toolfleet_tasks.ledger.contents import NOT_KEPT

log = get_logger(__name__)

_MARGIN_SECONDS = 60  # after its deadline a call may still be running: clocks differ, and a module must hear of it
_MOST_NAMES = 20  # in one sentence


@dataclass(frozen=True, slots=True)
class Replay:
    """The parts of a letter's new call. It has no idempotency key: the old call's key stands for the old, unknown end."""

    call: ToolCall
    caller: Caller
    conversation: Conversation
    context: ToolContext | None = None
    asked_by: tuple[str, ...] = ()

    @property
    def around(self) -> Circumstances:
        """Return what its agent knew about the old call, as a gate is asked with it, with the new call's user."""
        if self.context is None:
            return replace(NOTHING_MORE, asked_by=self.asked_by) if self.asked_by else NOTHING_MORE
        user = self.caller.user_id or self.call.user_id or ""
        context = self.context.model_copy(update={"user": user})
        return Circumstances(context, raw_arg=self.context.raw_arg, asked_by=self.asked_by)


def replay_of(letter: Kept, given: Mapping[str, Any], caller: Caller | None = None) -> Replay | ToolResult:
    """Return the new call of a letter, with the arguments `given` over the letter's, each as a whole; or a refusal.

    The caller is the letter's own if none is given. It is refused if the letter cannot be read, or if some of its
    arguments were not kept and are not given.
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
    """Return the conversation that the fleet wrote into the old arguments, to be written into the new ones."""
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


class FleetDeadLetters(Namespace):
    """The calls with an unknown end, which a fleet keeps: `fleet.dead_letters`.

    Each method raises `FleetUnavailable` if Redis does not answer within 5 s.
    """

    async def list(self, limit: int = 50, offset: int = 0) -> builtins.list[Kept]:
        """List dead letters, the latest first.

        Args:
            limit: How many at most, up to 1,000.
            offset: How many of the first are left out.

        Returns:
            The letters; one that cannot be read is an `UnreadableLetter`.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).dead.calls.list(limit, offset)

    async def show(self, call_id: str) -> Kept:
        """Read the dead letter of a call.

        Args:
            call_id: The call's id.

        Returns:
            The letter; one that cannot be read is an `UnreadableLetter`.

        Raises:
            NoSuchDeadLetter: There is none of this call.
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).dead.calls.show(call_id)

    async def replay(
        self,
        call_id: str,
        caller: Caller | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> ToolResult:
        """Run a dead letter's call once more, as a new call that names it, and that is judged again.

        The letter is dropped when the replay succeeds, or is a dead letter itself. Only one replay of it runs at a
        time.

        Args:
            call_id: The id of the letter's call.
            caller: The user and the rights that it is made with; by default those of the letter's own caller.
            arguments: Replace the letter's, each as a whole. Those that the letter no longer has must be among them.
            timeout: Seconds until the new call has ended, as of `ToolFleet.call`.

        Returns:
            The new call's result, or a refusal: arguments are missing (`invalid_arguments`), or another replay may
            still run (`busy`).

        Raises:
            NoSuchDeadLetter: There is none of this call.
            ValueError: The timeout is not a number.
            FleetUnavailable: Redis does not answer within 5 s.

        """
        check_timeout(timeout)
        session = await self._sessions.opened()
        letter = await session.dead.calls.show(call_id)
        old = letter.caller if isinstance(letter, DeadLetter) else Caller()
        asked_by = caller or as_sent(old, session.settings.default_guest_modules)
        again = replay_of(letter, arguments or {}, asked_by)
        result = again if isinstance(again, ToolResult) else await _run(session, call_id, again, timeout)
        if result.audit.call_id:  # the new call's own
            return result
        return session.trail.refused(ToolCall(tool_name=result.tool_name), asked_by, result, {})

    async def drop(self, *call_ids: str) -> tuple[str, ...]:
        """Forget dead letters.

        Args:
            *call_ids: The ids of their calls.

        Returns:
            The ids of those that were there.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).dead.calls.drop(call_ids)

    async def drop_all(self) -> int:
        """Forget all dead letters.

        Returns:
            How many there were.

        Raises:
            FleetUnavailable: Redis does not answer within 5 s.

        """
        return await (await self._sessions.opened()).dead.calls.drop_all()


class SyncFleetDeadLetters(SyncFace[FleetDeadLetters]):
    """`FleetDeadLetters` with plain methods."""

    list = blocking(FleetDeadLetters.list)
    show = blocking(FleetDeadLetters.show)
    replay = blocking(FleetDeadLetters.replay)
    drop = blocking(FleetDeadLetters.drop)
    drop_all = blocking(FleetDeadLetters.drop_all)


async def _run(session: Session, call_id: str, again: Replay, timeout: float | None) -> ToolResult:
    asked = again.call, again.caller, again.conversation
    seconds = session.preparation.seconds_for(*asked, timeout)

    async def run() -> ToolResult:
        return await end_of(await session.begin(*asked, seconds, waits=True, replay_of=call_id, around=again.around))

    return await run_replay(session.dead.calls, call_id, seconds=seconds, run=run)
