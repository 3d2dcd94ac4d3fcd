"""Keeps a call's arguments and result for an hour, if `TOOLFLEET_CALL_CONTENTS` says so, and reads them.

Sensitive parts are hidden as in dead letters, and personal data before that, as in everything that is stored of a call.
Fails open: a call does not wait for this record, and ends as well if it cannot be written.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pydantic_core import to_json
from redis.asyncio import Redis

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.policy.redaction import REDACTED, redacted, scrubbed
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger.dead_letters import NOT_KEPT, reason_of
from toolfleet_tasks.redis_connection import PipelinedConnection, ignored
from toolfleet_tasks.scripts import script

KEEP = script("storage/keep")

FORGET_CONTENTS = script("storage/forget_contents")
"""Returns of how many calls something was removed."""

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
