"""Writes what gateways give to clients and keep for them: states of questions, sessions of the console, sessions of older clients."""

import json
import zlib
from typing import Any

from redis.asyncio import Redis

from toolfleet_gateway.auth.identity import Identity
from toolfleet_gateway.auth.own_secrets import FleetCodec
from toolfleet_gateway.console.sessions import ConsoleSessions
from toolfleet_gateway.mcp.old_clients import ClientSessions
from toolfleet_gateway.mcp.tasks import AskedRound, SealedStates
from toolfleet_gateway.mcp.view import McpView
from toolfleet_registry.contracts import Caller
from toolfleet_registry.redis.keys import GatewayKeys
from wire.keep import KEY
from wire.stored.samples.forms import FIXTURES

SEALED = FIXTURES / "gateway_sealed.json"
CONSOLE = "console session"
OWN_KEY = "ab" * 32
"""What lies in the Redis of a fleet without a signing key."""
VIEW = McpView(Identity(Caller(user_id="ada"), key_id="k1"), "owls")
QUESTION, APPROVAL = AskedRound("call-1", 2), AskedRound("call-1", 2, "3" * 64)
TOOL, ARGUMENTS = "owls.echo", {"text": "✓"}
CREDENTIAL = "tf_k1_secret"
SESSION: tuple[str, dict[str, Any], dict[str, Any]] = (
    "2025-11-25",
    {"name": "owl", "version": "1"},
    {"elicitation": {}},
)
KEYS_OF = {"unsigned": (), "signed": (KEY,)}


def codec_of(redis: Redis, keys: GatewayKeys, mode: str, purpose: str = "") -> FleetCodec:
    """What seals in a fleet of that mode."""
    return FleetCodec(redis, keys, KEYS_OF[mode], purpose=purpose)


async def written(redis: Redis, keys: GatewayKeys, mode: str) -> dict[str, str]:
    """One text of each kind by its name. `redis` has `OWN_KEY`."""
    states = SealedStates(redis, keys, KEYS_OF[mode])
    console = ConsoleSessions(codec_of(redis, keys, mode, CONSOLE), redis, keys)
    sessions = ClientSessions(redis, keys, seconds=60)
    session = await sessions.open(VIEW, *SESSION)
    await sessions.keep_log_level(session, VIEW, "info")
    kept = await redis.get(keys.mcp_session(session.id))
    return {
        "question": await states.seal(QUESTION, VIEW, TOOL, ARGUMENTS),
        "approval": await states.seal(APPROVAL, VIEW, TOOL, ARGUMENTS),
        "console": await console.begin(CREDENTIAL),
        "client session": kept.decode() if isinstance(kept, bytes) else str(kept),
    }


async def inside(redis: Redis, keys: GatewayKeys, mode: str, name: str, text: str) -> Any:
    """What a text has in it, without chance and time."""
    if name == "client session":
        return json.loads(text)
    data = await codec_of(redis, keys, mode, CONSOLE if name == "console" else "").unseal(text)
    read = json.loads(zlib.decompress(data) if name == "console" else data)
    if isinstance(read, dict):
        return {field: type(value).__name__ for field, value in read.items()}
    return [type(each).__name__ if isinstance(each, float) else each for each in read]


def kept_sealed() -> dict[str, dict[str, list[str]]]:
    """The fixtures: texts by mode, by kind, the oldest first; nothing, while there are none."""
    return json.loads(SEALED.read_text()) if SEALED.exists() else {}
