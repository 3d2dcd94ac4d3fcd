"""One deployment while the module runs: its front, what answers behind it, and how that is kept alive."""

import asyncio
import logging
import secrets
import shutil
import time
from collections import deque
from typing import Literal

from modules.deployer.backend import Backend
from modules.deployer.front import Front
from modules.deployer.plan import DeployRefused
from modules.deployer.process_backend import ProcessBackend
from modules.deployer.record_store import Record, RecordStore
from modules.deployer.releases import Release
from modules.deployer.settings import DeployerSettings
from modules.deployer.site_backend import SiteBackend
from modules.kept_commands import KeptCommand, LogPart

Status = Literal["running", "starting", "stopped", "failed"]

_HEALTHY_IN_A_ROW = 2  # before it takes over: one good answer may be luck
_SICK_IN_A_ROW = 3  # before it is started again
_HEALTH_PAUSE_SECONDS = 0.1
_WATCH_SECONDS = 0.25
_STARTS = 2  # of a release that is deployed: another may have taken its port
_RESTARTS = 5  # within the window below: then it is given up
_RESTARTS_WINDOW_SECONDS = 60.0
_SHOWN_BYTES = 600
_KEPT_RUNS = 3
_FAULTS = (OSError, ValueError)  # of the machine, such as a full disk: they may pass, and end no keeping

logger = logging.getLogger(__name__)


class Deployment:
    """Its record is the truth after a restart. Whoever changes it holds `turn`."""

    def __init__(self, record: Record, store: RecordStore, settings: DeployerSettings) -> None:
        self.record = record
        self.turn = asyncio.Lock()
        self.error: str | None = None
        self.restarts = 0
        self._store = store
        self._settings = settings
        self._front = Front(
            connections=settings.connections,
            first_byte_seconds=settings.first_byte_seconds,
            idle_seconds=settings.idle_seconds,
        )
        self._backend: Backend | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._draining: set[asyncio.Task[None]] = set()

    @property
    def status(self) -> Status:
        """`starting` also while it is started again after an end that nobody wanted."""
        if self._backend is not None:
            return "running"
        if self.record.wanted == "stopped":
            return "failed" if self.error else "stopped"
        return "starting" if self._keeping and not self._keeping.done() else "failed"

    @property
    def url(self) -> str | None:
        """Where it is reached, on this machine; `None` while it is stopped."""
        return f"http://127.0.0.1:{self._front.port}/" if self._front.port else None

    def is_serving(self, release_id: str) -> bool:
        """Whether this release answers now."""
        current = self.record.current
        return self.status == "running" and current is not None and current.release_id == release_id

    async def switch(self, release: Release, history: tuple[str, ...]) -> None:
        """Let `release` take over, once it is healthy; `history` is the new one. Raises `DeployRefused`, and nothing changes."""
        backend = await self._started(release)
        taking_over = asyncio.create_task(self._take_over(backend, release, history))
        try:
            await asyncio.shield(taking_over)
        except asyncio.CancelledError:  # record and traffic go together: what has begun is done
            await asyncio.wait({taking_over})
            raise

    def keep(self) -> None:
        """Look after it from now on: what ends, or answers no more, is started again."""
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep())

    async def resume(self) -> None:
        """Bring it back as its record says, after a start of the module."""
        if self.record.wanted == "running" and self.record.current is not None:
            port = await self._front.open(self.record.port)
            if port != self.record.port:
                await self._save(port=port)
            if self.record.current.kind == "static":
                self._take(await self._started(self.record.current))
            self.keep()

    async def stop(self) -> None:
        """End it, and remember that it is to stay so."""
        await self._save(wanted="stopped")
        await self.close()
        self.error = None

    async def close(self) -> None:
        """End what runs, and keep the record as it is."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        self._front.backend = None
        await self._front.close()
        await asyncio.gather(*self._draining, return_exceptions=True)
        if self._backend is not None:
            backend, self._backend = self._backend, None
            await backend.stop()

    def log(self, offset: int, limit: int) -> LogPart:
        """What the latest of its processes printed. A site prints nothing."""
        runs = sorted((self._store.folder(self.record.deployment_id) / "runs").glob("*"))
        return KeptCommand(runs[-1]).log(offset, limit) if runs else LogPart(0, "", 0, 0, 0)

    async def _started(self, release: Release) -> Backend:
        why = None
        for tries_left in reversed(range(_STARTS)):
            backend = self._backend_for(release)
            try:
                await backend.start()
                why = await self._why_not_healthy(backend)
            except OSError as exc:
                why = f"It could not be started ({exc.strerror or 'its files cannot be copied'})."
            except BaseException:
                await backend.stop()
                raise
            if why is None:
                return backend
            ended = backend.why_ended() is not None
            await backend.stop()
            if not (tries_left and ended):
                break
        said = await asyncio.to_thread(self.log, -_SHOWN_BYTES, _SHOWN_BYTES) if release.kind == "process" else None
        raise DeployRefused(f"{why}{f' Its last words: {said.text.strip()}' if said and said.text.strip() else ''}")

    async def _why_not_healthy(self, backend: Backend) -> str | None:
        give_up_at = time.monotonic() + self._settings.start_seconds
        in_a_row = 0
        while time.monotonic() < give_up_at:
            if why := backend.why_ended():
                return why
            in_a_row = in_a_row + 1 if await backend.is_healthy() else 0
            if in_a_row == _HEALTHY_IN_A_ROW:
                return backend.why_ended()
            await asyncio.sleep(_HEALTH_PAUSE_SECONDS)
        return f"It was not healthy within {self._settings.start_seconds:g} s."

    def _backend_for(self, release: Release) -> Backend:
        folder = self._store.folder(self.record.deployment_id)
        files = self._store.release_folder(self.record.deployment_id, release.release_id)
        if not files.is_dir():
            raise DeployRefused("The files of its release are gone.")
        if release.declaration is None:
            return SiteBackend(files)
        runs = folder / "runs"
        for old in sorted(runs.glob("*"))[: -(_KEPT_RUNS - 1)]:
            if KeptCommand(old).state() != "running":
                shutil.rmtree(old, ignore_errors=True)
        run = runs / f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        return ProcessBackend(release.declaration, files, run, folder / "data", self._settings)

    async def _take_over(self, backend: Backend, release: Release, history: tuple[str, ...]) -> None:
        try:
            port = await self._front.open(self.record.port)
            releases = {**self.record.releases, release.release_id: release}
            await self._save(
                wanted="running", port=port, history=history, releases={key: releases[key] for key in history}
            )
        except BaseException:
            await backend.stop()
            raise
        replaced = self._backend
        self._take(backend)
        self.error, self.restarts = None, 0
        if replaced is not None:
            self._let_go(replaced)
        self.keep()

    def _take(self, backend: Backend) -> None:
        self._backend = backend
        self._front.backend = backend

    def _let_go(self, backend: Backend) -> None:
        async def end() -> None:
            await self._front.drain(backend, self._settings.drain_seconds)
            await backend.stop()

        task = asyncio.create_task(end())
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)

    async def _save(self, **changes: object) -> None:
        record = Record.model_validate({**dict(self.record), **changes})
        await asyncio.to_thread(self._store.save, record)
        self.record = record

    async def _keep(self) -> None:
        starts = deque[float](maxlen=_RESTARTS)
        while True:
            if backend := self._backend:
                why = await self._watch(backend)
                if backend is not self._backend:  # it was replaced meanwhile
                    continue
                logger.warning("%s: %s It is started again.", self.record.deployment_id, why)
                self.error = why
                self.restarts += 1
                self._backend = self._front.backend = None
                try:
                    await backend.stop()
                except _FAULTS as exc:
                    self.error = self._told(exc)
            starts.append(time.monotonic())
            if len(starts) == _RESTARTS and starts[-1] - starts[0] < _RESTARTS_WINDOW_SECONDS:
                self.error = f"It was started again and again in vain. {self.error or ''}".strip()
                return
            await asyncio.sleep(self._settings.restart_seconds * (2 ** (len(starts) - 1) - 1))
            await self._start_again()

    async def _watch(self, backend: Backend) -> str:
        """Return when it is no longer what answers, or should not be; why, in the latter case."""
        try:
            return await self._why_over(backend)
        except _FAULTS as exc:
            return self._told(exc)

    async def _why_over(self, backend: Backend) -> str:
        sick, look_at = 0, time.monotonic() + self._settings.health_seconds
        while backend is self._backend:
            if why := backend.why_ended():
                return why
            await asyncio.sleep(_WATCH_SECONDS)
            if time.monotonic() > look_at:
                sick = 0 if await backend.is_healthy() else sick + 1
                if sick == _SICK_IN_A_ROW:
                    return "It answered no more."
                look_at = time.monotonic() + (0 if sick else self._settings.health_seconds)
        return ""

    async def _start_again(self) -> None:
        async with self.turn:
            current = self.record.current
            if self._backend is None and current is not None:
                try:
                    self._take(await self._started(current))
                except DeployRefused as exc:
                    self.error = str(exc)
                except _FAULTS as exc:
                    self.error = self._told(exc)

    def _told(self, exc: Exception) -> str:
        """Log what went wrong in keeping it, with its traceback; what the deployment's owner is told of it."""
        logger.error("%s could not be looked after; it is tried again", self.record.deployment_id, exc_info=exc)
        strerror = exc.strerror if isinstance(exc, OSError) else None
        return f"It could not be looked after ({strerror or type(exc).__name__})."
