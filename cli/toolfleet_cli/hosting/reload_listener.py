"""Has a host read its tool files anew when somebody asks the fleet for it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import uuid4

from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.directory.reload_requests import ReloadAnswer, ReloadRequests
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings

_log = logging.getLogger("toolfleet.host")

_REDIS_SECONDS = 5.0
_LISTEN_SECONDS = 0.5  # between two questions
# Until Redis is asked again that did not answer: whoever wants a reload waits three seconds for hosts to begin.
_AWAY_SECONDS = 1.0
_INSTALL_SECONDS = 40.0  # for packages that are being installed, before the answer says that they are not there


class ReloadableHost(Protocol):
    """A host that can read what it serves anew."""

    name: str

    @property
    def manifest(self) -> ModuleManifest:
        """What is served, and what is not."""
        ...

    async def reload(self, *, is_forced: bool = False) -> bool:
        """Serve things as they are now."""
        ...


class ReloadListener:
    """For one host. Without the fleet's Redis nobody can ask."""

    def __init__(self, settings: Settings, host: ReloadableHost) -> None:
        self._settings = settings
        self._host = host
        self._id = uuid4().hex

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Listen meanwhile."""
        if self._settings.redis_url is None:
            yield
            return
        task = asyncio.ensure_future(self._listen(self._settings.redis_url))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _listen(self, url: str) -> None:
        """What was asked before it has begun is no concern of its: it has read everything then."""
        seen: int | None = None
        while True:
            master = self._settings.sentinel_master
            try:
                async with async_client(url, master=master, timeout_seconds=_REDIS_SECONDS) as redis:
                    requests = ReloadRequests(redis, self._settings.keys)
                    while True:
                        latest = await requests.latest()
                        if seen is not None and latest != seen:
                            await self._answer(requests, seen, latest)
                        seen = latest
                        await asyncio.sleep(_LISTEN_SECONDS)
            except (FleetUnavailable, OSError) as exc:
                _log.debug("Nobody can ask for a reload: %s", exc)
            except Exception as exc:  # noqa: BLE001 - whatever it is: the next request is listened to all the same
                _log.error("A request to reload %s was not answered", self._host.name, exc_info=exc)
            await asyncio.sleep(_AWAY_SECONDS)

    async def _answer(self, requests: ReloadRequests, since: int, latest: int) -> None:
        host = self._host
        await requests.answer(since, latest, self._id, ReloadAnswer(module=host.name))
        try:
            await host.reload(is_forced=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INSTALL_SECONDS):
                    while self._is_installing():  # noqa: ASYNC110 - a process of its own does it
                        await asyncio.sleep(_LISTEN_SECONDS)
        except Exception as exc:  # noqa: BLE001 - whatever it is: whoever has asked gets what there is
            _log.error("%s was not reloaded", host.name, exc_info=exc)
        manifest = host.manifest
        done = ReloadAnswer(
            module=host.name, is_done=True, tools=manifest.listed_count, errors=list(manifest.load_errors or ())
        )
        await requests.answer(since, latest, self._id, done)

    def _is_installing(self) -> bool:
        return any(each.error_type == "Installing" for each in self._host.manifest.load_errors or ())
