"""Keeps what operators may see of a call: a dead letter, if its end is unknown, and its arguments and result for an hour.

The ledger writes a dead letter when it ends a call whose outcome is unknown, or that failed inside the fleet
(`lua/dead_letters.lua`); `dead_letters` lists, replays and drops them.

Arguments and results are kept if `TOOLFLEET_CALL_CONTENTS` says so. Sensitive parts are hidden as in dead letters, and personal
data before that, as in everything that is stored of a call. Fails open: a call does not wait for this record, and ends as well
if it cannot be written.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pydantic_core import to_json
from redis.asyncio import Redis

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.contracts.call_context import ToolContext
from toolfleet_registry.contracts.calls import DeadAttempt, DeadLetter
from toolfleet_registry.policy.redaction import OUR_WORDS, REDACTED, redacted, scrubbed
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.redis_connection import PipelinedConnection, ignored
from toolfleet_tasks.scripts import script

KEEP = script("storage/keep")

FORGET_CONTENTS = script("storage/forget_contents")
"""Returns of how many calls something was removed."""

NOT_KEPT = "[not kept]"
"""The text in place of an argument that is too large to be kept, or was no JSON."""

_DEAD_CODES = frozenset({"outcome_unknown", "internal"})
_LETTER_BYTES = 64_000  # of a letter's arguments as JSON: all letters together must leave Redis room for the fleet
_LONGEST_TEXT = 2_000  # characters of a reason or a key


def is_dead(call: PublishedCall, result: ToolResult, *, is_unseen: bool, is_exhausted: bool) -> bool:
    """Return whether an operator must learn of a call that ended so: its outcome is unknown, or it failed inside the fleet, or twice.

    `is_unseen`: the end of its last attempt is unknown; `is_exhausted`: there were two or more, of which the last is
    not only a repeat of an answered one. A `read` tool that has answered that it failed leaves nothing to find out.
    """
    if result.success:
        return False
    has_answered = call.effect == "read" and result.effect_state == "none" and result.error_code == "module_error"
    is_unknown = is_unseen and result.effect_state == "unknown" and call.effect not in {"read", "idempotent"}
    return is_unknown or (is_exhausted and not has_answered) or result.error_code in _DEAD_CODES


def reason_of(call: PublishedCall, result: ToolResult) -> str:
    """Return why a call has failed, in a text that may be kept, at most 2,000 characters.

    Without sensitive arguments, and without a module's messages if results are sensitive.
    """
    if call.hides_results and result.error_code not in OUR_WORDS:
        return REDACTED
    return scrubbed(result.error or "", call.arguments, redacted(call.arguments, call.sensitive))[:_LONGEST_TEXT]


def dead_letter(
    call: PublishedCall, result: ToolResult, *, attempts: tuple[DeadAttempt, ...] = (), died_at: float
) -> str:
    """Return the letter as it is stored; `died_at` in seconds since the epoch.

    Never fails, and is never much over 64 kB.

    Without sensitive arguments; its reason is as `reason_of` says. Over 64 kB of JSON, the largest arguments are
    `NOT_KEPT`; quotes in an agent's context are kept if there is room for them.
    """
    shown = redacted(call.arguments, call.sensitive)
    kept = _within_bounds(shown)
    letter = DeadLetter(
        call_id=call.call_id,
        tool_name=call.tool_name,
        arguments=kept,
        is_redacted=_differ(kept, call.arguments),
        caller=call.caller,
        user_id=call.user_id,
        effect=call.effect,
        error_code=result.error_code or "internal",
        reason=reason_of(call, result),
        attempts=attempts,
        published_at=call.published_at,
        died_at=died_at,
        idempotency_key=call.idempotency_key and call.idempotency_key[:_LONGEST_TEXT],
        replay_of=call.replay_of,
        context=_kept_context(call, most=_LETTER_BYTES - (_size(kept) or 0)),
        tool_version=call.tool_version and call.tool_version[:_LONGEST_TEXT],
        asked_by=call.asked_by,
    )
    try:
        return json_text.dump(letter)
    except (ValueError, RecursionError):  # deeper than pydantic goes
        return json_text.dump(letter.model_copy(update={"arguments": {"*": NOT_KEPT}, "is_redacted": True}))


def _within_bounds(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments without values that are no JSON, and without the largest ones above `_LETTER_BYTES`.

    If names alone are more, without all.
    """
    kept = {name: NOT_KEPT if _size(value) is None else value for name, value in arguments.items()}
    sizes = {name: _size(value) or 0 for name, value in kept.items()}
    total = sum(sizes.values()) + sum((_size(name) or 0) + 2 for name in kept)
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if total <= _LETTER_BYTES:
            return kept
        kept[name] = NOT_KEPT
        total += len(NOT_KEPT) + 2 - sizes[name]
    return kept if total <= _LETTER_BYTES else {"*": NOT_KEPT}


def _kept_context(call: PublishedCall, *, most: int) -> ToolContext | None:
    """Return the context: numbers always, so that a replay speaks to the same chat; texts, which may quote arguments, within `most` bytes."""
    context = call.context
    if context is None:
        return None
    if call.sensitive:
        return context.model_copy(update={"raw_arg": "", "user_message": "", "kb_context": None})
    for left_out in ({}, {"kb_context": None}, {"kb_context": None, "raw_arg": "", "user_message": ""}):
        context = context.model_copy(update=left_out)
        if (_size(context.model_dump(mode="json")) or 0) <= most:
            break
    return context


def _differ(kept: dict[str, Any], arguments: dict[str, Any]) -> bool:
    """Return whether anything was left out.

    Identical values are not compared: they may be deeper than Python can recurse.
    """
    pairs = ((kept.get(name, NOT_KEPT), value) for name, value in arguments.items())
    return any(shown is not value and shown != value for shown, value in pairs)


def _size(value: Any) -> int | None:
    """Bytes as JSON; `None` for what came as something that only Python takes for JSON."""
    try:
        return len(json.dumps(value, allow_nan=False, separators=(",", ":")))
    except (ValueError, TypeError, RecursionError):
        return None


Command: TypeAlias = tuple[Any, ...]

KEPT_SECONDS: Final = 3_600
MOST_BYTES: Final = 16 * 2**10
"""The most bytes of the arguments, and of the result, as JSON. If there are more, only the beginning is kept."""

_SEARCHED_BYTES = 4 * MOST_BYTES  # of a result: looking for sensitive arguments in more would hold a worker's loop
_SPENT_BYTES = 512  # what Redis takes for two keys and their place in the user's share
_SECONDS = 5.0  # for one answer of Redis


@dataclass(frozen=True, slots=True)
class CallContents:
    """`arguments` and `result` are as the model and the tool gave them, with `[redacted]` for what is sensitive.

    Those that `cut` names are longer than 16 KiB: the beginning of their JSON stands there, as text.
    """

    arguments: Any = None
    result: Any = None
    error: str | None = None
    cut: tuple[str, ...] = ()


class ContentsWriter:
    """Keeps contents of calls as the settings say."""

    def __init__(self, settings: Settings) -> None:
        self.is_on = settings.call_contents != "off"
        """Return whether anything is kept at all."""
        self._keeps_successes = settings.call_contents == "all"
        self._keys, self._most = settings.keys, settings.stored_bytes_per_caller

    def keep(self, connection: PipelinedConnection, call: PublishedCall, result: ToolResult, token: str = "") -> None:
        """Send it with the other commands of this tick. `token`: of who ends the call in the ledger. Raises nothing."""
        if (command := self.command(call, result, token)) is not None:
            send_unanswered(connection, command)

    def command(self, call: PublishedCall, result: ToolResult, token: str = "") -> Command | None:
        """Return the command that `keep` sends; `None` for a call of which nothing is kept."""
        if not self.is_on or (result.success and not self._keeps_successes):
            return None
        return KEEP.command(
            record=self._keys.call(call.call_id),
            contents=self._keys.contents(call.call_id),
            stored=self._keys.stored(call.user_id),
            token=token,
            call_id=call.call_id,
            text=_text_of(call, result, owner=_owner(self._keys, call.user_id)),
            seconds=KEPT_SECONDS,
            most=self._most,
            spent=_SPENT_BYTES,
        )


def send_unanswered(connection: PipelinedConnection, command: Command) -> None:
    """Send a command whose answer does not matter. Raises nothing."""
    connection.send(*command).add_done_callback(ignored)


async def forget_contents(redis: Redis, keys: Keys, user_id: str) -> int:
    """Remove the records of a user's calls, and return how many there were. Raises `FleetUnavailable`."""
    command = FORGET_CONTENTS.command(stored=keys.stored(user_id), contents=keys.contents(""))
    async with answering(redis, seconds=_SECONDS):
        removed: Any = await redis.execute_command(*command)
    return int(removed)


def contents_for(
    keys: Keys,
    text: bytes | str | None,
    *,
    user_id: str | None,
    sees_all: bool,
    sees_tool: Callable[[str], bool] = lambda _: True,
) -> CallContents | None:
    """Read what was kept, for a reader who `sees_all`, or who acts for the call's own user and sees calls of its tool.

    `None` for any other, and for nothing.
    """
    try:
        said = json.loads(text or "")
        is_own = user_id is not None and said["owner"] == _owner(keys, user_id)
        if not sees_all and not (is_own and sees_tool(said["tool"])):
            return None
        cut = said["cut"]
        whole = {name: said[name] if name in cut else _read(said[name]) for name in ("arguments", "result")}
        return CallContents(**whole, error=said.get("error"), cut=tuple(cut))
    except (ValueError, LookupError, TypeError, RecursionError):  # nothing, or what another program has written there
        return None


def _text_of(call: PublishedCall, result: ToolResult, *, owner: str | None) -> str:
    shown = redacted(call.arguments, call.sensitive)
    said: dict[str, Any] = {"owner": owner, "tool": call.tool_name, "arguments": _json(shown), "result": None}
    if not result.success:
        said["error"] = reason_of(call, result)
    elif call.hides_results:
        said["result"] = _json(REDACTED)
    else:
        text = _json(result.result)
        is_searched = not call.sensitive or len(text) <= _SEARCHED_BYTES
        said["result"] = scrubbed(text, call.arguments, shown) if is_searched else _json(REDACTED)
    cut = [name for name in ("arguments", "result") if len((said[name] or "").encode()) > MOST_BYTES]
    for name in cut:
        said[name] = said[name].encode()[:MOST_BYTES].decode(errors="ignore")
    return json.dumps(said | {"cut": cut}, ensure_ascii=False).encode(errors="replace").decode()


def _owner(keys: Keys, user_id: str | None) -> str | None:
    """Return what stands for the call's user; `None` for a call of no user, which no reader acts for."""
    return None if user_id is None else keys.stored(user_id)


def _json(value: Any) -> str:
    with contextlib.suppress(ValueError):  # half a surrogate pair, or deeper than pydantic goes
        return to_json(value).decode()
    with contextlib.suppress(ValueError, RecursionError):
        return json.dumps(value, default=str)
    return json.dumps(NOT_KEPT)


def _read(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a number in it was hidden
        return text
