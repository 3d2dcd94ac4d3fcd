"""Keeps the sessions of older MCP clients in Redis, so that any gateway serves them."""

import contextlib
import json
import secrets
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts.logs.log_message import LogLevel
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.gateway_keys import GatewayKeys

_FACTS = 4  # of a session, behind its holder: what a later gateway has put behind them is passed over


@dataclass(frozen=True, slots=True)
class ClientSession:
    """What a client has said of itself when it opened its session, and which log messages it wants since."""

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
        """Begin a session. Raises `FleetUnavailable`."""
        session = ClientSession(secrets.token_hex(16), protocol_version, client_info, capabilities)
        await self._keep(session, view)
        return session

    async def keep_log_level(self, session: ClientSession, view: McpView, level: LogLevel) -> None:
        """Remember which log messages the session's client wants from its next request on. Raises `FleetUnavailable`."""
        await self._keep(replace(session, log_level=level), view, is_known=True)

    async def find(self, session_id: str, view: McpView) -> ClientSession | None:
        """The session, which lasts on; `None` for one that has ended, or is somebody else's. Raises `FleetUnavailable`."""
        try:
            text = await self._redis.getex(self._keys.mcp_session(session_id), px=self._ms)
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc
        if text is None:
            return None
        holder, *facts = json.loads(text)
        return ClientSession(session_id, *facts[:_FACTS]) if holder == _holder(view) else None

    async def note_call(self, session: ClientSession, request_id: str | int, call_id: str) -> None:
        """Remember which call a request has become, for its client to take it back at any gateway. Without Redis nobody can."""
        with contextlib.suppress(RedisError, OSError):
            await self._redis.set(self._keys.mcp_request(session.id, request_id), call_id, px=self._ms)

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

    async def _keep(self, session: ClientSession, view: McpView, *, is_known: bool = False) -> None:
        """Write it down; one that is known only if it has not ended meanwhile."""
        facts = [_holder(view), session.protocol_version, session.client_info, session.capabilities, session.log_level]
        try:
            await self._redis.set(self._keys.mcp_session(session.id), json.dumps(facts), px=self._ms, xx=is_known)
        except (RedisError, OSError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc


def _holder(view: McpView) -> str:
    return f"{view.who.name} of {view.who.caller.user_id} at {view.module or ''}"
