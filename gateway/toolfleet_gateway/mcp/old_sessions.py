"""Keeps in Redis the sessions of MCP clients of 2025-11-25 and before, what they watch, and what they are asked."""

import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import mcp_types as types
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts.call_context import LogLevel
from toolfleet_registry.contracts.inputs import InputRequest
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import MOST_WATCHED
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.system import machine_clock, randomness

_FACTS = 4  # of a session, behind its holder: what a later gateway has put behind them is passed over
_MOST_SESSIONS = 1_000  # of one key or subject: a service with one key opens a session for each of its users
_KEPT_FRACTION = 0.9  # of them stay when there are more: not every opening looks at all of them
_COUNTED_SECONDS = 7 * 86_400.0  # after the last session was opened: some may live longer than that one
_NAMES = ("name", "title", "version")  # of `clientInfo`: the rest names nothing
_LONGEST_NAME = 256  # characters
_MOST_CAPABILITIES = 8_192  # characters, as JSON
_ASKED = ("elicitation", "roots", "sampling")  # capabilities that decide what a client is asked

_LONGEST_SECONDS = 600.0  # for a person to answer; the call's deadline may come before
_WAIT_SECONDS = 1.0  # less than what an answer of Redis may take
_KEPT_SECONDS = 60  # of an answer that was not fetched yet


@dataclass(frozen=True, slots=True)
class ClientSession:
    """A client's statements at the opening of its session, and the log messages it wants since."""

    id: str
    protocol_version: str
    client_info: Any
    capabilities: Any
    log_level: LogLevel | None = None


class ClientSessions:
    """The sessions. One is good for who has opened it, at the endpoint where that was; for others there is none."""

    def __init__(self, redis: Redis, keys: GatewayKeys, *, seconds: float) -> None:
        self._redis = redis
        self._keys = keys
        self._ms = round(seconds * 1000)

    async def open(self, view: McpView, protocol_version: str, client_info: Any, capabilities: Any) -> ClientSession:
        """Start a session, and store its client's name and capabilities. Raises `FleetUnavailable`.

        If a key has too many sessions, those that were silent for the longest time end: their clients open others.
        """
        facts = (_cut_info(client_info), _cut_capabilities(capabilities))
        session = ClientSession(secrets.token_hex(16), protocol_version, *facts)
        await self._keep(session, view)
        await self._count(session, self._keys.mcp_sessions(view.who.name))
        return session

    async def keep_log_level(self, session: ClientSession, view: McpView, level: LogLevel) -> None:
        """Remember which log messages the session's client wants from its next request on. Raises `FleetUnavailable`."""
        await self._keep(replace(session, log_level=level), view, is_known=True)

    async def find(self, session_id: str, view: McpView) -> ClientSession | None:
        """Return the session, and extend it; `None` for one that has ended, or is another user's.

        Raises `FleetUnavailable`.
        """
        try:
            text = await self._redis.getex(self._keys.mcp_session(session_id), px=self._ms)
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc
        if text is None:
            return None
        holder, *facts = json.loads(text)
        return ClientSession(session_id, *facts[:_FACTS]) if holder == _holder(view) else None

    async def note_call(self, session: ClientSession, request_id: str | int, call_id: str) -> None:
        """Remember which call a request has become, so that its client can cancel it at any gateway. This needs Redis.

        No call: its client has taken it back, and wants no answer.
        """
        with contextlib.suppress(RedisError, OSError):
            await self._redis.set(self._keys.mcp_request(session.id, request_id), call_id, px=self._ms)

    async def is_cancelled(self, session: ClientSession, request_id: Any) -> bool:
        """Return whether a request's client no longer wants an answer. Fails open: without Redis it gets one."""
        try:
            return await self.called(session, request_id) == ""
        except FleetUnavailable:
            return False

    async def called(self, session: ClientSession, request_id: str | int) -> str | None:
        """The call that a request has become. Raises `FleetUnavailable`."""
        try:
            found = await self._redis.get(self._keys.mcp_request(session.id, request_id))
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc
        return found.decode() if isinstance(found, bytes) else found

    async def end(self, session: ClientSession) -> None:
        """Forget a session. Raises `FleetUnavailable`."""
        try:
            await self._redis.unlink(self._keys.mcp_session(session.id))
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc

    async def _count(self, session: ClientSession, sessions: str) -> None:
        """Note a session of its key's. A process that dies within leaves some sessions too many, and the next opening ends them."""
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.sadd(sessions, self._keys.mcp_session(session.id))
                pipeline.pexpire(sessions, max(round(_COUNTED_SECONDS * 1000), 2 * self._ms))
                pipeline.scard(sessions)
                *_, count = await pipeline.execute()
            if count > _MOST_SESSIONS:
                await self._end_oldest(sessions)
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc

    async def _end_oldest(self, sessions: str) -> None:
        """Forget the sessions that are over, and if too many are left, those whose time ends first: they were silent the longest."""
        names: list[Any] = list(await self._redis.smembers(sessions))
        async with self._redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.pttl(name)
            left = sorted(zip(await pipeline.execute(), names, strict=True))
        over = sum(ms < 0 for ms, _ in left)
        if len(left) - over > _MOST_SESSIONS:
            over = len(left) - round(_MOST_SESSIONS * _KEPT_FRACTION)
        if ended := [name for _, name in left[:over]]:
            await self._redis.unlink(*ended)
            await self._redis.srem(sessions, *ended)

    async def _keep(self, session: ClientSession, view: McpView, *, is_known: bool = False) -> None:
        """Write it down; one that is known only if it has not ended meanwhile."""
        facts = [_holder(view), session.protocol_version, session.client_info, session.capabilities, session.log_level]
        try:
            await self._redis.set(self._keys.mcp_session(session.id), json.dumps(facts), px=self._ms, xx=is_known)
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc


def _holder(view: McpView) -> str:
    return f"{view.who.name} of {view.who.caller.user_id} at {view.module or ''}"


def _cut_info(client_info: Any) -> dict[str, str] | None:
    """Return what names a client, each text as long as a name is."""
    if not isinstance(client_info, dict):
        return None
    return {name: said[:_LONGEST_NAME] for name in _NAMES if isinstance(said := client_info.get(name), str)}


def _cut_capabilities(capabilities: Any) -> Any:
    """Return what a client can do; if that is too long, only whether it can be asked, without details."""
    if not isinstance(capabilities, dict) or len(json.dumps(capabilities)) <= _MOST_CAPABILITIES:
        return capabilities if isinstance(capabilities, dict) else None
    return {name: {} for name in _ASKED if isinstance(capabilities.get(name), dict)}


class SessionWatches:
    """The watches of one fleet's sessions, for any gateway.

    Raises `FleetUnavailable`. All of it expires with its session.
    """

    def __init__(self, redis: Redis, keys: GatewayKeys, *, seconds: float) -> None:
        self._redis = redis
        self._keys = keys
        self._ms = round(seconds * 1000)

    async def add(self, session: ClientSession, uri: str) -> bool:
        """Have the session told of a resource; false if it watches too many."""
        key = self._keys.mcp_session_watches(session.id)
        async with _answering(), self._redis.pipeline() as pipeline:
            pipeline.sadd(key, uri)
            pipeline.scard(key)
            pipeline.pexpire(key, self._ms)
            added, count, _ = await pipeline.execute()
        if not added or count <= MOST_WATCHED:
            return True
        await self.remove(session, uri)
        return False

    async def remove(self, session: ClientSession, uri: str) -> None:
        """Have it told no more."""
        async with _answering():
            await self._redis.srem(self._keys.mcp_session_watches(session.id), uri)

    async def has(self, session: ClientSession, uri: str) -> bool:
        """Return whether the session watches a resource."""
        async with _answering():
            return bool(await self._redis.sismember(self._keys.mcp_session_watches(session.id), uri))

    async def of(self, session: ClientSession) -> list[str]:
        """Return the resources that the session watches."""
        async with _answering():
            found: set[Any] = await self._redis.smembers(self._keys.mcp_session_watches(session.id))
        return sorted(uri.decode("utf-8", "replace") if isinstance(uri, bytes) else uri for uri in found)

    async def take_stream(self, session: ClientSession) -> str:
        """Make a stream the one that is told; returns its name. One that was there before ends: its client has come again."""
        name = randomness.uuid4().hex
        async with _answering():
            await self._redis.set(self._keys.mcp_session_stream(session.id), name, px=self._ms)
        return name

    async def has_stream(self, session: ClientSession, name: str) -> bool:
        """Return whether that is still the one. It is extended, with the session's watches."""
        async with _answering(), self._redis.pipeline(transaction=False) as pipeline:
            pipeline.getex(self._keys.mcp_session_stream(session.id), px=self._ms)
            pipeline.pexpire(self._keys.mcp_session_watches(session.id), self._ms)
            found: Any = (await pipeline.execute())[0]
        return (found.decode() if isinstance(found, bytes) else found) == name

    async def forget(self, session: ClientSession) -> None:
        """Forget what there is of a session that has ended."""
        async with _answering():
            names = self._keys.mcp_session_watches(session.id), self._keys.mcp_session_stream(session.id)
            await self._redis.unlink(*names)


@asynccontextmanager
async def _answering() -> AsyncGenerator[None]:
    try:
        yield
    except (RedisError, OSError) as exc:
        raise FleetUnavailable("Redis does not answer.") from exc


class ClientQuestions:
    """The questions of one fleet. An answer needs the question's id, which is secret, and the session."""

    def __init__(self, redis: Redis, keys: GatewayKeys) -> None:
        self._redis = redis
        self._keys = keys

    async def ask(
        self,
        session: ClientSession,
        writes: WriteStream[SessionMessage],
        related: str | int,
        request: InputRequest,
    ) -> dict[str, Any]:
        """The client's answer to a request that goes out on the stream of its request `related`.

        Raises `MCPError`, that of the client or that it has said nothing, and `FleetUnavailable`.
        """
        number = secrets.token_hex(16)
        asked = types.JSONRPCRequest(jsonrpc="2.0", id=number, method=request.method, params=request.params)
        await writes.send(SessionMessage(asked, metadata=ServerMessageMetadata(related_request_id=related)))
        message = await self._answer(self._keys.mcp_question(session.id, number))
        if message is None:
            raise MCPError(types.INTERNAL_ERROR, f"The client did not answer {request.method}.")
        error = message.get("error")
        if isinstance(error, dict):
            raise MCPError(types.INTERNAL_ERROR, f"The client refused {request.method}: {error.get('message')}"[:1000])
        result = message.get("result")
        return result if isinstance(result, dict) else {}

    async def take(self, session: ClientSession, message: Mapping[str, Any]) -> None:
        """Store a client's answer for the asking process. Raises `FleetUnavailable`."""
        name = self._keys.mcp_question(session.id, str(message.get("id")))
        try:
            async with self._redis.pipeline() as pipeline:
                pipeline.rpush(name, json.dumps(message))
                pipeline.expire(name, _KEPT_SECONDS)
                await pipeline.execute()
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc

    async def _answer(self, name: str) -> Mapping[str, Any] | None:
        give_up_at = machine_clock.monotonic() + _LONGEST_SECONDS
        while machine_clock.monotonic() < give_up_at:
            try:
                found = await self._redis.blpop([name], timeout=_WAIT_SECONDS)
            except (RedisError, OSError) as exc:
                raise FleetUnavailable("Redis does not answer.") from exc
            if found is not None:
                answer = json.loads(found[1])
                return answer if isinstance(answer, dict) else {}
        return None


def is_answer(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a client's answer."""
    return "method" not in message and isinstance(message.get("id"), str) and bool({"result", "error"} & message.keys())
