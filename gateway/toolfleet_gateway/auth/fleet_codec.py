"""Seals what passes through other hands, for one fleet: what one gateway has sealed another opens."""

import hashlib
import secrets

from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState
from redis.asyncio import Redis
from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import GatewayKeys


class NotSealedHere(ValueError):
    """A sealed text was changed on its way, or another fleet has sealed it, or for another purpose."""


class FleetCodec:
    """Seals with the fleet's signing key; with a key stored in its Redis if it has none.

    `purpose`: a text sealed for one is not opened for another. An empty one is that of MCP clients' states.
    """

    def __init__(self, redis: Redis, keys: GatewayKeys, signing_keys: tuple[str, ...], *, purpose: str = "") -> None:
        self._redis = redis
        self._keys = keys
        self._purpose = purpose
        self._codec = (
            AESGCMRequestStateCodec([self._derived(key) for key in map(_long, signing_keys)]) if signing_keys else None
        )

    async def seal(self, data: bytes) -> str:
        """The data as a text for headers and URLs. Raises `FleetUnavailable`."""
        return (await self._opened()).seal(data)

    async def unseal(self, text: str) -> bytes:
        """Open a sealed text. Raises `NotSealedHere` and `FleetUnavailable`."""
        codec = await self._opened()
        try:
            return codec.unseal(text)
        except (InvalidRequestState, ValueError):
            raise NotSealedHere("It was not sealed here.") from None

    async def _opened(self) -> AESGCMRequestStateCodec:
        if self._codec is None:
            try:
                await self._redis.set(self._keys.mcp_state_key, secrets.token_hex(32), nx=True)
                key = await self._redis.get(self._keys.mcp_state_key)
            except (RedisError, OSError) as exc:
                raise FleetUnavailable("Redis does not answer.") from exc
            self._codec = AESGCMRequestStateCodec([self._derived(key if isinstance(key, bytes) else str(key).encode())])
        return self._codec

    def _derived(self, key: bytes) -> bytes:
        return key if not self._purpose else hashlib.sha256(f"{self._purpose}\n".encode() + key).digest()


def _long(key: str) -> bytes:
    """Return a key of the codec's length, for any key that the operator has chosen."""
    return hashlib.sha256(key.encode()).digest()
