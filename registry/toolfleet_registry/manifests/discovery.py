"""Asks every module what it offers, a bounded number at once. What one does, or fails to do, never touches another."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from toolfleet_registry.admission_rules import admit, read_document, unknown_fields
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable, ManifestRefused
from toolfleet_registry.headers import NO_HEADERS, ModuleHeaders
from toolfleet_registry.manifests.http_get import HttpAnswer, NoAnswer, anywhere, requested
from toolfleet_registry.permissions import broken_because, level_of_tool
from toolfleet_registry.policy.limits import unknown_costs
from toolfleet_registry.redis.urls import read_url
from toolfleet_registry.schemas.definition import unknown_types
from toolfleet_registry.system.http_bodies import read_body
from toolfleet_registry.system.lazy_names import LazyModule
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.offload import aside

if TYPE_CHECKING:
    import httpx
else:
    httpx = LazyModule("httpx")

_log = get_logger(__name__)


_MOST_BYTES = 4 * 2**20  # of a manifest: some hundred tools with full schemas are about 0.5 MiB
_AT_WORK = 50  # more would not be answered sooner: an answer takes about two milliseconds of this process's time
_TURN_SECONDS = 0.5  # who is silent for longer costs no time meanwhile


@dataclass(frozen=True, slots=True)
class ManifestFailure:
    """The reason why a probe brought no manifest. `status`: of its HTTP answer, `None` if no usable one came.

    `offered`: the usable part, if only some tools are missing.
    """

    error: str
    status: int | None = None
    offered: ModuleManifest | None = None


DiscoveryResult: TypeAlias = ModuleManifest | ManifestFailure
"""What a look at a module brought."""


def offered_by(probe: DiscoveryResult) -> ModuleManifest | None:
    """Return the part of a probe's result that can be registered."""
    return probe if isinstance(probe, ModuleManifest) else probe.offered


async def discover(
    services: Mapping[str, str],
    *,
    timeout_seconds: float,
    max_bytes: int = _MOST_BYTES,
    at_once: int = 500,
    guards: Mapping[str, Callable[[str], bool]] = MappingProxyType({}),
    headers: Mapping[str, ModuleHeaders] = MappingProxyType({}),
) -> dict[str, DiscoveryResult]:
    """Request `GET /manifest` of every module (name -> base URL), each within `timeout_seconds`.

    As many are asked at once as this process can serve: some dozens, and in addition up to `at_once` that have been
    silent for a while. A module's time starts with its turn. `guards` say, for some modules, at which IP addresses they
    may be, and `headers` what is sent to them in addition to our own.

    Follows no redirect, and uses no proxy. Logs one of `module_discovered`, `module_manifest_error` and
    `module_unreachable` for each module, and raises nothing for a module's behaviour.
    """
    return await _Scout(timeout_seconds, max_bytes, asyncio.Semaphore(at_once), guards, headers).probe_all(services)


@dataclass(frozen=True, slots=True)
class _Scout:
    timeout_seconds: float
    max_bytes: int
    asked: asyncio.Semaphore
    guards: Mapping[str, Callable[[str], bool]]
    headers: Mapping[str, ModuleHeaders]
    at_work: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_WORK))

    @property
    def _connect_seconds(self) -> float:
        return self.timeout_seconds / 2  # what does not even connect is told apart from what is slow

    async def probe_all(self, services: Mapping[str, str]) -> dict[str, DiscoveryResult]:
        results = await asyncio.gather(*(self.probe(module, url) for module, url in services.items()))
        return dict(zip(services, results, strict=True))

    async def probe(self, module: str, url: str) -> DiscoveryResult:
        async with self.asked, _turn(self.at_work):
            found = await self._within_time(module, url)
        _report(module, found)
        return found

    async def _within_time(self, module: str, url: str) -> DiscoveryResult:
        own = self.headers.get(module, NO_HEADERS)
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await self._fetch(module, url, own)
        except TimeoutError:
            return ManifestFailure(f"no complete manifest within {self.timeout_seconds:g} s")
        except (NoAnswer, httpx.InvalidURL) as exc:
            return ManifestFailure(own.hide_text(str(exc))[:_MOST_SHOWN] or type(exc).__name__)
        except Exception as exc:  # noqa: BLE001 - an unexpected error must not stop the probes of other modules
            _log.exception("module_look_failed", module=module)
            return ManifestFailure(own.hide_text(f"{type(exc).__name__}: {exc}")[:_MOST_SHOWN])

    async def _fetch(self, module: str, url: str, own: ModuleHeaders) -> DiscoveryResult:
        target = read_url(f"{url}/manifest")
        connect_seconds, allows = self._connect_seconds, self.guards.get(module, anywhere)
        async with requested(
            target, headers=_HEADERS, own=own, connect_seconds=connect_seconds, allows=allows
        ) as answer:
            status = answer.status
            if status != HTTPStatus.OK:
                return _refused(answer, own)
            try:
                body = await read_body(answer.headers, answer.chunk, self.max_bytes)
                manifest, ignored, odd = await aside(lambda: _read(module, body), is_large=len(body) > _LARGE)
            except (BodyTooLarge, BodyUnreadable, ManifestRefused) as exc:
                return ManifestFailure(own.hide_text(str(exc)), status)
        if ignored:
            _log.warning("manifest_fields_ignored", module=module, fields=ignored)
        if odd:
            _log.warning("parameter_types_unknown", module=module, types=odd)
        return manifest


@asynccontextmanager
async def _turn(at_work: asyncio.Semaphore) -> AsyncGenerator[None]:
    """Hold one of the working slots, for at most the time that a fast module takes."""
    await at_work.acquire()
    is_over = False

    def end() -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            at_work.release()

    timer = asyncio.get_running_loop().call_later(_TURN_SECONDS, end)
    try:
        yield
    finally:
        timer.cancel()
        end()


def _refused(answer: HttpAnswer, own: ModuleHeaders) -> ManifestFailure:
    advice = "redirects are not followed" if answer.is_redirect else own.advice(answer.status)
    return ManifestFailure("; ".join(filter(None, (f"answered with status {answer.status}", advice))), answer.status)


def _read(module: str, body: bytes) -> tuple[ModuleManifest, list[str], list[str]]:
    """Return the manifest, which of its fields mean nothing to us, and which types. Raises `ManifestRefused`."""
    document = read_document(body)
    manifest = admit(module, document)
    return manifest, unknown_fields(document), unknown_types(manifest.tools, most=_MOST_TYPES)


def _report(module: str, found: DiscoveryResult) -> None:
    if isinstance(found, ModuleManifest):
        _log.info("module_discovered", module=module, tools=len(found.tools), status=HTTPStatus.OK.value)
        if closed := [tool for tool in found.tools if level_of_tool(tool.required_permission) is None]:
            _log.warning("tools_closed", module=module, tools=_reasons(closed[:_MOST_TYPES]))
        if unknown := unknown_costs(found.tools):
            _log.warning("costs_unknown", module=module, costs=unknown[:_MOST_TYPES], counted_as="expensive")
    elif found.status is None:
        _log.warning("module_unreachable", module=module, status=None, error=found.error)
    else:
        _log.warning("module_manifest_error", module=module, status=found.status, error=found.error)


def _reasons(closed: list[ToolDefinition]) -> dict[str, str]:
    """Return why no caller may use these tools, by name."""
    asked = ((tool.name, tool.required_permission) for tool in closed)
    return {name: broken_because(one) or f"it needs the unknown permission {one[:_SHOWN]!r}" for name, one in asked}


_LARGE = 200_000  # bytes of a manifest: to read them takes some 10 ms, which no event loop should wait
_MOST_TYPES = 20  # of parameters that mean nothing to us, and of tools that are closed, in one line
_SHOWN = 60  # characters of foreign text in a reason
_MOST_SHOWN = 300  # characters of an error, which may quote all that a module sent

_HEADERS = {"accept": "application/json", "accept-encoding": "gzip, deflate", "user-agent": "toolfleet"}
