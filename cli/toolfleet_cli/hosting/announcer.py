"""Tells the fleet's Redis that a host is there as long as it runs, and when it ends."""

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from toolfleet_modules.sdk.module import ServedModule
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.directory.hosts import (
    ANNOUNCE_VARIABLE,
    HEARTBEAT_SECONDS,
    Announcement,
    AnnouncingHost,
    hosts_seal,
)
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import is_http_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import randomness
from toolfleet_registry.time import machine_clock

_REDIS_SECONDS = 5.0
_LEAVE_SECONDS = 2.0  # a Redis that is away must not delay the end: the host is forgotten within the TTL
_OFF_SECONDS = 0.5  # by which a heartbeat's time may be wrong before it is written again
_EVERYWHERE = {"0.0.0.0", "::", ""}  # noqa: S104 - nothing listens by it

_log = logging.getLogger("toolfleet.host")


class Announcer:
    """The announcer of one host, on its loop, which keeps its replies as the settings say.

    A Redis that is away is logged once, and tried again with each heartbeat.
    """

    def __init__(self, host: ServedModule, settings: Settings, url: str, keys: str = "") -> None:
        self._host, self._settings, self._url = host, settings, url
        host.replica_id = randomness.uuid4().hex
        self._redis = async_client(
            str(settings.redis_url), master=settings.sentinel_master, timeout_seconds=_REDIS_SECONDS
        )
        self._writer = AnnouncingHost(self._redis, settings, hosts_seal(keys))
        self._counter = 0
        self._ahead: float | None = None  # of Redis's clock, before this machine's monotonic one
        self._announced: Mapping[str, Any] | None = None
        self._digest = ""
        self._has_changed = asyncio.Event()
        self._is_away = False

    def check(self) -> None:
        """Have a heartbeat written at once if the host's tools have changed. Takes no time."""
        if self._announced is not self._host.tools:
            self._has_changed.set()

    async def keep(self) -> None:
        """Announce the host until cancelled."""
        while True:
            self._has_changed.clear()
            await self._announce_or_log()
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._has_changed.wait()

    async def leave(self) -> int:
        """Announce the host's end. Returns how many others serve its module, 0 if unknown. Raises nothing."""
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                return await self._writer.leave(self._host.name, self._host.replica_id)
        except (FleetUnavailable, TimeoutError) as exc:
            _log.warning("The fleet learns within seconds that %s has ended: %s", self._host.name, exc or "no answer")
            return 0
        finally:
            await self._redis.aclose()

    async def _announce_or_log(self) -> None:
        try:
            await self._announce()
        except FleetUnavailable as exc:
            if not self._is_away:
                _log.warning("%s is not announced: %s", self._host.name, exc)
            self._is_away = True
        except Exception:  # noqa: BLE001 - a defect of ours: a module that is gone would be worse
            if not self._is_away:
                _log.exception("%s is not announced", self._host.name)
            self._is_away = True
        else:
            if self._is_away:
                _log.info("%s is announced again.", self._host.name)
            self._is_away = False

    async def _announce(self) -> None:
        if self._ahead is None:
            self._ahead = await self._writer.now() - machine_clock.monotonic()
        said, now = await self._written()
        if abs(said.at - now) > _OFF_SECONDS:  # this machine was suspended, or Redis's clock was set
            await self._written()

    async def _written(self) -> tuple[Announcement, float]:
        self._counter += 1
        tools = self._host.tools
        if tools is not self._announced:
            self._digest = manifest_digest(self._host.manifest)
        said = Announcement(
            module=self._host.name,
            id=self._host.replica_id,
            url=self._url,
            digest=self._digest,
            has_shared_store=self._settings.host_replies_in_redis,
            at=machine_clock.monotonic() + (self._ahead or 0.0),
            counter=self._counter,
            slow=self._host.name in self._settings.slow_modules,
            timeout_seconds=self._settings.module_timeouts.get(self._host.name),
        )
        now = await self._writer.announce(said)
        self._announced, self._ahead = tools, now - machine_clock.monotonic()
        return said, now


def announcer_of(host: ServedModule, settings: Settings, *, address: str, port: int, url: str | None) -> Announcer:
    """Return the announcer of a host that listens there, and that others reach at `url`. `settings` name a Redis.

    Raises `SettingsError` for an address that other machines cannot reach, and for a missing or invalid key.
    """
    keys = os.environ.get(ANNOUNCE_VARIABLE, "")
    if not keys and settings.signing_key is not None:
        raise SettingsError(
            f"A host has no use for TOOLFLEET_SIGNING_KEY: it needs {ANNOUNCE_VARIABLE} instead, which "
            f"`toolfleet modules key {host.name} --announce` prints; or start it with --no-announce."
        )
    if url is None:
        if address in _EVERYWHERE:
            raise SettingsError(
                f"Nobody can call a host at {address or 'no address'}: say with --announce-url where others reach it, such as "
                f"http://this-machine:{port}; or start it with --no-announce."
            )
        url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
    if not is_http_url(url):
        raise SettingsError(f"--announce-url must be an http:// or https:// URL with a host, and not {url[:200]!r}.")
    return Announcer(host, settings, url, keys)


def manifest_digest(manifest: ModuleManifest) -> str:
    """Return a digest of a module's tools: the same for the same tools, in every process, and in any order."""
    tools = [tool.model_dump(mode="json", exclude_none=True) for tool in manifest.tools]
    text = json.dumps(sorted(tools, key=lambda tool: str(tool["name"])), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
