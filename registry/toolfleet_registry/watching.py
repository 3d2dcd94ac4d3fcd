"""Carries changes of MCP servers through the fleet's Redis: what clients watch, and what has changed."""

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.functions.passed_methods import LONGEST_URI, MOST_WATCHED, ChangedKind, ServerChange
from toolfleet_registry.lua_files import script
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.redis.servers import answering

_KEPT: Final = 5_000  # changes; who is further behind is told that some are lost
_AT_ONCE = 1_000
_WAIT_MS = 1_000  # less than what an answer of Redis may take
_PATIENCE_SECONDS = 5
_KINDS = frozenset(get_args(ChangedKind))
_BEGIN = "0-0"
_AS_BYTES = {NEVER_DECODE: True}  # a foreign entry that is no text would otherwise stop the reading

Fields = Mapping[bytes | str, bytes | str]

RENEW_SECONDS: Final = 60.0
"""How often a gateway says again what its clients watch."""

_LASTS_MS = 180_000  # two may be missed

_WATCH = script("watching/watch")


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """The changes read, by module, up to the id `until`. `are_lost`: others before these are gone."""

    changes: tuple[tuple[str, ServerChange], ...]
    until: str
    are_lost: bool = False


class ServerChanges:
    """The changes of MCP servers, of one fleet. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, keys: GatewayKeys) -> None:
        self._redis = redis
        self._key = keys.mcp_changes

    async def tell(self, module: str, changes: Iterable[ServerChange]) -> None:
        """Tell all gateways of changes."""
        async with (
            answering(self._redis, seconds=_PATIENCE_SECONDS),
            self._redis.pipeline(transaction=False) as pipeline,
        ):
            for change in changes:
                fields: dict[Any, Any] = {"module": module, "kind": change.kind, "uri": change.uri}
                pipeline.xadd(self._key, fields, maxlen=_KEPT, approximate=True)
            await pipeline.execute()

    async def last(self) -> str:
        """Return the id of the last change that there was."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            words = ("+", "-", "COUNT", 1)
            found: Any = await self._redis.execute_command("XREVRANGE", self._key, *words, **_AS_BYTES)
        return _text(found[0][0]) if found else _BEGIN

    async def after(self, last: str) -> ReadChanges:
        """Return the changes after one, at most 1,000; nothing if there is none within a second."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            words = ("COUNT", _AT_ONCE, "BLOCK", _WAIT_MS, "STREAMS", self._key, last)
            answer: Any = await self._redis.execute_command("XREAD", *words, **_AS_BYTES)
            if not answer:
                return ReadChanges((), last)
            oldest: Any = await self._redis.execute_command("XRANGE", self._key, "-", "+", "COUNT", 1, **_AS_BYTES)
        entries: list[tuple[bytes | str, Fields]] = answer[0][1]
        are_lost = last != _BEGIN and bool(oldest) and _place(_text(oldest[0][0])) > _place(last)
        changes = tuple(read for _, fields in entries if (read := _change_of(fields)) is not None)
        return ReadChanges(changes, _text(entries[-1][0]), are_lost)


def _change_of(fields: Fields) -> tuple[str, ServerChange] | None:
    """Parse an entry; `None` for one that this release does not know."""
    said = {_text(name): _text(value) for name, value in fields.items()}
    module, kind, uri = said.get("module", ""), said.get("kind"), said.get("uri", "")
    if not module or kind not in _KINDS or len(uri) > LONGEST_URI or (kind == "resource") != bool(uri):
        return None
    return module, ServerChange(cast("ChangedKind", kind), uri)


def is_before(one: str, other: str) -> bool:
    """Return whether the change of one id came before that of another."""
    return _place(one) < _place(other)


def _place(entry_id: str) -> tuple[int, int]:
    time, _, number = entry_id.partition("-")
    return int(time), int(number or 0)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class WatchedResources:
    """The resources that clients watch, of one fleet. Raises `FleetUnavailable` when Redis does not answer within 5 s.

    A client that no longer wants one just stops renewing: others may watch the same.
    """

    def __init__(self, redis: Redis, keys: GatewayKeys) -> None:
        self._redis = redis
        self._keys = keys

    async def watch(self, module: str, uris: Iterable[str]) -> None:
        """Have a module's resources watched for three minutes from now on. Of more than 1,000 the last ones are."""
        wanted = list(dict.fromkeys(uris))[:MOST_WATCHED]
        if not wanted:
            return
        key = self._keys.mcp_watched(module)
        command = _WATCH.command(watched=key, lasts_ms=_LASTS_MS, most=MOST_WATCHED, uris=wanted)
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            await self._redis.execute_command(*command)

    async def of(self, module: str) -> frozenset[str]:
        """Return the resources of a module that are watched now."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            seconds, microseconds = await self._redis.time()
            after = f"({seconds * 1000 + microseconds // 1000}"
            command = ("ZRANGEBYSCORE", self._keys.mcp_watched(module), after, "+inf")
            answer = self._redis.execute_command(*command, **_AS_BYTES)
            found = await cast("Awaitable[list[bytes]]", answer)
        return frozenset(uri.decode("utf-8", "replace") for uri in found)
