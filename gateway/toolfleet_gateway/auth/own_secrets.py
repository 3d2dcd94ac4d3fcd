"""Makes the secrets of a gateway and of a local fleet, and seals texts that clients keep for any gateway of the fleet.

The secrets are a key for one process only, and those that are kept in files.
"""

import hashlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState
from redis.asyncio import Redis

from toolfleet_registry.access import ApiKey, KeyText, new_key_text, read_key_text
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.redis.servers import reaching_redis
from toolfleet_registry.system import fleet_clock

_USER = "operator"
"""The user of its calls, unless a request names another."""


@dataclass(frozen=True, slots=True)
class GeneratedKey:
    """A key with all rights. The process that starts the gateway prints its `text` once; logs have its id only."""

    key: ApiKey
    secret: KeyText = field(repr=False)

    @property
    def text(self) -> str:
        """The text that its holder sends."""
        return self.secret.text

    def is_sent_as(self, text: str) -> bool:
        """Return whether the text is this key."""
        return (read := read_key_text(text)) is not None and read.has_digest(self.secret.digest)


def generate_key(text: str | None = None) -> GeneratedKey:
    """Make one; or the one of a `text`, for several gateways that were started together. Raises `SettingsError` for a text that is no key."""
    secret = new_key_text() if text is None else read_key_text(text)
    if secret is None:
        raise SettingsError("The gateway's own key is none that `toolfleet` has made.")
    key = ApiKey(
        id=secret.id,
        user_id=_USER,
        permission="owner",
        allowed_modules="*",
        role="admin",
        acts_for_others=True,
        created_at=fleet_clock.now(),
        created_by="gateway",
        description="made by the gateway at its start",
    )
    return GeneratedKey(key, secret)


def kept_key(path: Path) -> str:
    """Return the gateway's key in the file; write a new one if the file has none that can be read.

    Raises `OSError` where the file cannot be written.
    """
    return _kept(path, lambda text: read_key_text(text) is not None, lambda: new_key_text().text)


def kept_login(path: Path) -> str:
    """Return `name:password` in the file; write a new one as `kept_key` does. Raises `OSError`."""
    return _kept(path, lambda text: 0 < text.find(":") < len(text) - 1, new_login)


def new_login() -> str:
    """Make a name and password, with a colon between."""
    return f"toolfleet:{secrets.token_urlsafe(32)}"


def _kept(path: Path, is_good: Callable[[str], bool], make: Callable[[], str]) -> str:
    try:
        if is_good(found := path.read_text(encoding="ascii").strip()):
            path.chmod(0o600)
            return found
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    made = make()
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)  # of a process that died here, and had our number
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{made}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return made


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
        """Return the data as a text for headers and URLs. Raises `FleetUnavailable`."""
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
            async with reaching_redis():
                await self._redis.set(self._keys.mcp_state_key, secrets.token_hex(32), nx=True)
                key = await self._redis.get(self._keys.mcp_state_key)
            self._codec = AESGCMRequestStateCodec([self._derived(key if isinstance(key, bytes) else str(key).encode())])
        return self._codec

    def _derived(self, key: bytes) -> bytes:
        return key if not self._purpose else hashlib.sha256(f"{self._purpose}\n".encode() + key).digest()


def _long(key: str) -> bytes:
    """Return a key of the codec's length, for any key that the operator has chosen."""
    return hashlib.sha256(key.encode()).digest()
