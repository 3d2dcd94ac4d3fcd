"""Runs the calls of the module `artifacts`, by which a model reads large results of its user's calls, and puts such results into arguments."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Protocol

from pydantic_core import from_json

from toolfleet_registry.contracts import PublishedCall, SealedCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.artifacts import (
    HANDLE,
    JSON_TYPE,
    NOT_YOURS,
    ArtifactRecord,
    named_artifacts,
    owner_of,
    screened,
)
from toolfleet_registry.contracts.attempts import UNBOUNDED, Attempt, Health, Lease, Outcome
from toolfleet_registry.contracts.call_context import CONVERSATION_FIELDS
from toolfleet_registry.contracts.names import ARTIFACTS
from toolfleet_registry.errors import ArtifactMissing, ArtifactStoreAway, FleetUnavailable, PersonalDataBlocked
from toolfleet_registry.linear_patterns import compiled
from toolfleet_registry.local.artifact_tools import MOST_CHARACTERS, MOST_LISTED, USUAL_CHARACTERS, USUAL_FOUND
from toolfleet_registry.schemas.arguments import MAX_VALUES, fault_in, size_of
from toolfleet_registry.schemas.validation import checked_with, takes_text
from toolfleet_workers.runner import Case, Proceed, ToolLookup, Verdict, seconds_left, unsuccessful

_AROUND = 80  # characters before and after a match
_MOST_BYTES = 8 * 2**20  # of arguments once artifacts are put into them, as JSON
_AT_ONCE = 16  # calls that read artifacts: each may have 8 MiB of them
_MOST_HELD = _AT_ONCE * _MOST_BYTES  # of artifacts, in all calls that were sent with some and have not ended
_TIMES = 10  # as much as usual, in a thread: some 0.2 s
_CONTINUATION = range(0x80, 0xC0)  # bytes of UTF-8
_END_SECONDS = 0.5  # of an attempt's time: to say that nothing was sent


class ArtifactPort(Protocol):
    """Finds and reads artifacts. Every method raises `FleetUnavailable` when Redis does not answer, and `ArtifactStoreAway`."""

    def within(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """Bound the waits of a block."""
        ...

    async def find(self, artifact_id: str, owner: str | None) -> ArtifactRecord | None:
        """Return the record of an owner's artifact; `None` if there is none of this id, or it is another owner's."""
        ...

    async def list(self, owner: str | None, *, limit: int) -> Sequence[ArtifactRecord]:
        """Return an owner's artifacts, those first that expire last."""
        ...

    async def read(self, record: ArtifactRecord) -> bytes:
        """Return the whole of an artifact. Raises `ArtifactMissing`."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


Hide = Callable[[PublishedCall, str, int, Any], Awaitable[Any]]
"""Returns a result of another tool, of about so many bytes, as the profile of a call has it. Raises `PersonalDataBlocked`."""


class CallArtifacts:
    """Reads artifacts for calls: those of the caller, made by tools that it may use now, as its profile leaves them.

    `may_use` says whether the caller of a call may use a tool now.
    """

    def __init__(self, artifacts: ArtifactPort, *, may_use: Callable[[PublishedCall, str], bool], hide: Hide) -> None:
        self.artifacts, self._may_use, self._hide = artifacts, may_use, hide
        self.slots = asyncio.Semaphore(_AT_ONCE)

    async def list(self, call: PublishedCall, *, limit: int) -> list[ArtifactRecord]:
        """Return those of the caller's artifacts that it may read."""
        found = await self.artifacts.list(owner_of(call), limit=MOST_LISTED)
        return [each for each in found if self._may_use(call, each.tool_name)][:limit]

    async def find(self, call: PublishedCall, artifact_id: str) -> ArtifactRecord:
        """Return the record of an artifact that the caller may read. Raises `_Wrong`."""
        record = await self.artifacts.find(artifact_id, owner_of(call))
        if record is None or not self._may_use(call, record.tool_name):
            raise _Wrong(NOT_YOURS)
        return record

    async def read(self, call: PublishedCall, record: ArtifactRecord) -> bytes:
        """Return the whole of it: half of what is to be hidden would not be found in a part."""
        data = await self.artifacts.read(record)
        return await screened(record, data, partial(self._hide, call, record.tool_name, record.size))


class _Wrong(Exception):
    """The model's arguments name nothing that it may read; the message says what to do."""


_FAULTS = (_Wrong, ArtifactMissing, PersonalDataBlocked, FleetUnavailable, ArtifactStoreAway)


def _refused(call: PublishedCall, fault: Exception) -> Attempt:
    """Return the end of an attempt for which an artifact could not be read: nothing was sent."""
    match fault:
        case FleetUnavailable() | ArtifactStoreAway():
            return unsuccessful(call, Outcome.NOT_SENT, "fleet_unavailable", f"Tool execution error: {fault}")
        case ArtifactMissing():
            text = NOT_YOURS
        case PersonalDataBlocked():
            text = f"The artifact is not passed on. {fault}"
        case _:
            text = str(fault)
    return unsuccessful(call, Outcome.PERMANENT, "invalid_arguments", text)


def _busy(call: PublishedCall) -> Attempt:
    text = "This worker holds as many artifacts for calls as it can."
    return unsuccessful(call, Outcome.TURNED_AWAY, "busy", text)


class ArtifactExecutor:
    """The executor of the module `artifacts`."""

    def __init__(self, reader: CallArtifacts) -> None:
        self._reader = reader

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt:
        """Make one attempt within `seconds`. Raises `TimeoutError` if they are over. It has no effect, so the lease does not matter."""
        del lease
        if self._reader.slots.locked():
            return _busy(call)
        try:
            async with asyncio.timeout(seconds), self._reader.slots:
                return await self._answer(call, seconds - _END_SECONDS)
        except _FAULTS as exc:
            return _refused(call, exc)

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt | None:
        """Return `None`: a repeat of a reading does no harm."""
        del call, seconds, lease
        return None

    async def probe(self, module: str, *, seconds: float) -> Health:
        """Return that it is well: it is in its worker."""
        del module, seconds
        return Health.WELL

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        await self._reader.artifacts.aclose()

    async def _answer(self, call: PublishedCall, seconds: float) -> Attempt:
        match call.tool_name.removeprefix(f"{ARTIFACTS}."):
            case "list":
                found = await self._reader.list(call, limit=call.arguments.get("limit", USUAL_FOUND))
                return Attempt(Outcome.SUCCESS, ToolResult.ok(call.tool_name, {"artifacts": [*map(_described, found)]}))
            case "read":
                answer = _part
            case "search":
                answer = _matches
            case _:
                return unsuccessful(call, Outcome.PERMANENT, "unknown_tool", f"Unknown tool: {call.tool_name}")
        async with self._reader.artifacts.within(seconds):
            record = await self._reader.find(call, call.arguments["id"])
            data = await self._reader.read(call, record)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise _Wrong(
                f"Artifact {record.id} is no text, but {record.media_type}: it can only be passed on."
            ) from None
        said = await asyncio.to_thread(answer, text, call.arguments)
        return Attempt(Outcome.SUCCESS, ToolResult.ok(call.tool_name, {"id": record.id, **said}))


class ArtifactArguments:
    """Puts artifacts in place of the arguments that name them, and checks the whole as any arguments, before the guards."""

    def __init__(self, reader: CallArtifacts, tools: ToolLookup) -> None:
        self._reader, self._tools = reader, tools
        self._held = 0  # bytes of artifacts

    def decide(self, case: Case) -> Verdict:
        """Return "pass": a plain call has none."""
        del case
        return "pass"

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Proceed with the artifacts in their places."""
        if not call.artifacts:  # nearly every call
            return await proceed(call)
        if self._reader.slots.locked():
            return _busy(call)
        holding = 0
        try:
            async with self._reader.slots:
                try:
                    async with self._reader.artifacts.within(seconds_left() - _END_SECONDS):
                        records = await self._records(call)
                        size = sum(record.size for record in records.values())
                        if self._held + size > _MOST_HELD:
                            return _busy(call)
                        self._held, holding = self._held + size, size
                        arguments = await self._whole(call, records)
                except _FAULTS as exc:
                    return _refused(call, exc)
            whole = call.whole() if isinstance(call, SealedCall) else call
            return await proceed(whole.model_copy(update={"arguments": arguments, "artifacts": ()}))
        finally:
            self._held -= holding

    async def _records(self, call: PublishedCall) -> dict[str, ArtifactRecord]:
        """Return the records of the artifacts, by their arguments. Raises `_Wrong` for those that cannot be passed on."""
        named = {name: (each[HANDLE], each.get("sha256")) for name, each in named_artifacts(call.arguments).items()}
        if named != {each.name: (each.id, each.sha256) for each in call.artifacts}:
            raise _Wrong("The artifacts among the arguments are not those that were checked.")
        records = {each.name: await self._reader.find(call, each.id) for each in call.artifacts}
        if any(records[each.name].sha256 != each.sha256 for each in call.artifacts):
            raise _Wrong(NOT_YOURS)
        if (size := sum(record.size for record in records.values())) > _MOST_BYTES:  # before the first is read
            raise _Wrong(f"The artifacts have {size} bytes, and arguments may have {_MOST_BYTES}.")
        return records

    async def _whole(self, call: PublishedCall, records: Mapping[str, ArtifactRecord]) -> dict[str, Any]:
        """Return the arguments with their artifacts. Raises `_Wrong` for those that cannot be passed on."""
        if (tool := self._tools.find(call.tool_name)) is None:
            raise _Wrong(f"Tool {call.tool_name!r} is not there any more.")
        arguments = dict(call.arguments)
        for name, record in records.items():
            data = await self._reader.read(call, record)
            arguments[name] = _value(record, data, is_text=takes_text(tool.definition, name))
        return await asyncio.to_thread(_checked, tool.definition, arguments)


def _checked(tool: ToolDefinition, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as the agent would have checked them, with more effort than an agent has for them. Raises `_Wrong`."""
    if fault := fault_in(arguments, most=MAX_VALUES * _TIMES):
        raise _Wrong(fault)
    if (size := size_of(arguments)) > _MOST_BYTES:
        raise _Wrong(f"The arguments have {size} bytes with their artifacts, and may have {_MOST_BYTES}.")
    context = {name: value for name, value in arguments.items() if name in CONVERSATION_FIELDS}
    own = {name: value for name, value in arguments.items() if name not in context}
    found = checked_with(context, tool, own, times=_TIMES)
    if found.arguments is None:
        raise _Wrong(str(found.fault))
    return found.arguments


def _value(record: ArtifactRecord, data: bytes, *, is_text: bool) -> Any:
    """Return an artifact as an argument: JSON as its value unless the argument is a text, other text as it is, and files as base64."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return b64encode(data).decode()
    if is_text or record.media_type != JSON_TYPE:
        return text
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        raise _Wrong(f"Artifact {record.id} is no JSON.") from None


def _described(record: ArtifactRecord) -> dict[str, Any]:
    facts = record.model_dump(include={"id", "tool_name", "media_type", "size", "sha256"})
    return {**facts, "made_at": _written(record.made_at), "expires_at": _written(record.expires_at)}


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _part(text: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a text that a call asks for."""
    if (pointer := asked.get("pointer")) is not None:
        text = _at(text, pointer)
    start, limit = asked.get("offset", 0), asked.get("limit", USUAL_CHARACTERS)
    if "first_line" in asked:
        start = _after_lines(text, asked["first_line"] - 1, 0)
        if "lines" in asked:
            limit = min(_after_lines(text, asked["lines"], start) - start, asked.get("limit", MOST_CHARACTERS))
    end = min(start + limit, len(text))
    part: dict[str, Any] = {"text": text[start:end], "offset": start, "characters": len(text)}
    return part if end >= len(text) else {**part, "next_offset": end}


def _after_lines(text: str, lines: int, at: int) -> int:
    """Return where the text goes on after so many lines from there, as `search` counts them."""
    for _ in range(lines):
        at = text.find("\n", at) + 1
        if not at:
            return len(text)
    return at


def _at(text: str, pointer: str) -> str:
    """Return the value at a JSON pointer (RFC 6901), a text as it is and anything else as JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise _Wrong("The artifact is no JSON: leave `pointer` out.") from None
    steps = pointer.split("/")
    if steps[0]:
        raise _Wrong("A JSON pointer begins with `/`.")
    for at, step in enumerate(steps[1:], 1):
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            value = value[int(name)] if isinstance(value, list) and name.isdecimal() else value[name]
        except (LookupError, TypeError, ValueError):
            raise _Wrong(f"There is nothing at {'/'.join(steps[: at + 1])[:200]!r}: {_kind(value)}.") from None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"there are the keys {', '.join(str(key)[:60] for key in islice(value, 20))}"
    return f"there are {len(value)} items" if isinstance(value, list) else "there is a value without parts"


def _matches(text: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the matches of a pattern, in time that grows with the text only."""
    data, most = text.encode(), asked.get("limit", USUAL_FOUND)
    try:
        pattern = compiled(f"(?m){asked['pattern']}".encode(), extra="artifacts")
    except ValueError as exc:
        raise _Wrong(f"The search cannot be made: {exc}.") from None
    found, last, offset, line = list[dict[str, Any]](), 0, 0, 1
    whole = (match for match in pattern.finditer(data) if not _is_inside(data, match.start()))
    for match in islice(whole, most + 1):
        between = data[last : match.start()]
        offset, line, last = offset + len(between.decode()), line + between.count(b"\n"), match.start()
        length = len(data[match.start() : match.end()].decode(errors="ignore"))
        around = text[max(offset - _AROUND, 0) : offset + min(length, 2 * _AROUND) + _AROUND]
        found.append({"line": line, "offset": offset, "text": around})
    return {"matches": found[:most], "has_more": len(found) > most}


def _is_inside(data: bytes, at: int) -> bool:
    """Return whether a character goes on there: matches that are empty, or one byte, may begin at each byte of UTF-8."""
    return at < len(data) and data[at] in _CONTINUATION
