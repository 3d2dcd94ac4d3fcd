"""Asks an older client something while its call runs: on the stream of its request, and answered by a request of its own, at any gateway."""

import json
import secrets
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_gateway.mcp.old_era.client_sessions import ClientSession
from toolfleet_registry.contracts.inputs import InputRequest
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.time import machine_clock

_LONGEST_SECONDS = 600.0  # for a person to answer; the call's deadline may come before
_WAIT_SECONDS = 1.0  # less than what an answer of Redis may take
_KEPT_SECONDS = 60  # of an answer that was not fetched yet


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
