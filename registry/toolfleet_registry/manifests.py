"""The manifest cache in Redis: each module's last good manifest, which every process of the fleet reads.

A value is the manifest as its module sends it, so that older readers of the same key understand it, with one more
field, `discovered_at` (seconds since the epoch): in the same value, so that a manifest and its age never part.
"""

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

import structlog
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.admission import admit, read_document
from toolfleet_registry.answering import answering
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.errors import ManifestRefused
from toolfleet_registry.keys import Keys

DISCOVERED_AT = "discovered_at"

# A command takes a millisecond; redis-py alone would wait this long several times over, for it tries again.
_PATIENCE_SECONDS = 5

# However the client was built: one value that is no text would else fail the reading of all.
_AS_BYTES = {NEVER_DECODE: True}

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CachedManifest:
    """A module's last good manifest. `discovered_at` is `None` where another program wrote it without."""

    manifest: ModuleManifest
    discovered_at: float | None

    @property
    def age_seconds(self) -> float | None:
        """Since the look that found it; the clocks of two machines may differ, so never below zero."""
        return None if self.discovered_at is None else max(0.0, time.time() - self.discovered_at)


class ManifestCache:
    """Last good manifests by module. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, *, ttl_seconds: int, keys: Keys = Keys()) -> None:  # noqa: B008 - it is frozen
        self._redis = redis
        self._keys = keys
        self._ttl_seconds = ttl_seconds

    async def check(self) -> None:
        """Do nothing, but find out whether Redis answers."""
        async with self._answering():
            await self._redis.ping()

    async def save(self, manifest: ModuleManifest) -> CachedManifest:
        """Store what a look just found, and announce it on `keys.manifests_changed` if it says something new."""
        cached = CachedManifest(manifest, time.time())
        content = manifest.model_dump(mode="json", exclude_none=True)
        value = json.dumps({**content, DISCOVERED_AT: cached.discovered_at})
        key = self._keys.module_manifest(manifest.module_name)
        async with self._answering():
            # SET with GET tells atomically what was replaced, so that of two writers none misses a change.
            before = await self._redis.execute_command(
                "SET", key, value, "EX", self._ttl_seconds, "GET", get=True, **_AS_BYTES
            )
            if _content_of(before) != content:
                await self._redis.publish(self._keys.manifests_changed, manifest.module_name)
        return cached

    async def renew(self, module: str) -> bool:
        """Let the last good manifest live on unchanged after a failed look. Returns whether there is one."""
        async with self._answering():
            return bool(await self._redis.expire(self._keys.module_manifest(module), self._ttl_seconds))

    async def load(self, modules: Iterable[str]) -> dict[str, CachedManifest]:
        """The manifests that there are of these modules. An entry that breaks a rule is skipped with a warning."""
        names = list(modules)
        if not names:
            return {}
        async with self._answering():
            answer = await self._redis.execute_command("MGET", *map(self._keys.module_manifest, names), **_AS_BYTES)
        values = cast("list[bytes | None]", answer)
        found = {name: _read(name, value) for name, value in zip(names, values, strict=True) if value is not None}
        return {name: cached for name, cached in found.items() if cached is not None}

    def _answering(self) -> AbstractAsyncContextManager[None]:
        return answering(self._redis, seconds=_PATIENCE_SECONDS)


def _read(module: str, value: bytes) -> CachedManifest | None:
    try:
        document = read_document(value)
        manifest = admit(module, document)
    except ManifestRefused as exc:
        _log.warning("manifest_cache_unreadable", module=module, error=str(exc))
        return None
    at = document.get(DISCOVERED_AT)
    return CachedManifest(manifest, at if isinstance(at, float) else None)


def _content_of(value: bytes | None) -> Mapping[str, Any] | None:
    try:
        document = read_document(value or b"")
    except ManifestRefused:
        return None
    document.pop(DISCOVERED_AT, None)
    return document
