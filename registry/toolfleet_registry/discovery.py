"""Asking every module at once what it offers. What one module does, or fails to do, never touches another."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import TypeAlias

import httpx
import structlog

from toolfleet_registry.admission import admit, closed_tools, read_document, unknown_fields
from toolfleet_registry.aside import aside
from toolfleet_registry.bodies import read_body
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable, ManifestRefused
from toolfleet_registry.schema import unknown_types
from toolfleet_registry.terms import unknown_costs

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ManifestFailure:
    """Why a look at a module brought no manifest. `status`: of its HTTP answer, `None` if no usable one came."""

    error: str
    status: int | None = None


Look: TypeAlias = ModuleManifest | ManifestFailure
"""What a look at a module brought."""


async def discover(
    services: Mapping[str, str],
    *,
    timeout_seconds: float,
    max_bytes: int,
    client: httpx.AsyncClient | None = None,
) -> dict[str, Look]:
    """`GET /manifest` of every module (name -> base URL), each within `timeout_seconds` whatever it does.

    Follows no redirect, and uses no proxy. Logs one of `module_discovered`, `module_manifest_error`
    and `module_unreachable` for each module, and raises nothing for what a module does. A `client` of your own
    should have no connection limit; it stays open.
    """
    if client is None:
        with_tls = any(url.lower().startswith("https:") for url in services.values())
        async with _new_client(with_tls=with_tls) as own:
            return await discover(services, timeout_seconds=timeout_seconds, max_bytes=max_bytes, client=own)
    scout = _Scout(client, timeout_seconds, max_bytes)
    looks = await asyncio.gather(*(scout.look(module, url) for module, url in services.items()))
    return dict(zip(services, looks, strict=True))


@dataclass(frozen=True, slots=True)
class _Scout:
    client: httpx.AsyncClient
    timeout_seconds: float
    max_bytes: int

    @property
    def _connect_seconds(self) -> float:
        # For TCP and for TLS each, so that both end before the deadline: httpcore closes a socket whose handshake
        # times out, and leaves one open whose handshake is cancelled.
        return self.timeout_seconds / 2

    async def look(self, module: str, url: str) -> Look:
        found = await self._within_time(module, url)
        _report(module, found)
        return found

    async def _within_time(self, module: str, url: str) -> Look:
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await self._fetch(module, url)
        except TimeoutError:
            return ManifestFailure(f"no complete manifest within {self.timeout_seconds:g} s")
        except httpx.TimeoutException:  # the only one set
            return ManifestFailure(f"no connection within {self._connect_seconds:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            return ManifestFailure(str(exc)[:_MOST_SHOWN] or type(exc).__name__)
        except Exception as exc:  # noqa: BLE001 - what nobody thought of must not stop the looks at other modules
            _log.exception("module_look_failed", module=module)
            return ManifestFailure(f"{type(exc).__name__}: {exc}"[:_MOST_SHOWN])

    async def _fetch(self, module: str, url: str) -> Look:
        target = httpx.URL(f"{url}/manifest")
        # httpx logs the URLs that it asks for, with their passwords.
        auth = httpx.BasicAuth(target.username, target.password) if target.userinfo else None
        request = self.client.stream(
            "GET",
            target.copy_with(userinfo=b""),
            headers=_HEADERS,
            auth=auth,
            follow_redirects=False,
            timeout=httpx.Timeout(None, connect=self._connect_seconds),
        )
        async with request as response:
            status = response.status_code
            if status != HTTPStatus.OK:
                note = "; redirects are not followed" if response.is_redirect else ""
                return ManifestFailure(f"answered with status {status}{note}", status)
            try:
                body = await read_body(response, self.max_bytes)
                manifest, ignored, odd = await aside(lambda: _read(module, body), is_large=len(body) > _LARGE)
            except (BodyTooLarge, BodyUnreadable, ManifestRefused) as exc:
                return ManifestFailure(str(exc), status)
        if ignored:
            _log.warning("manifest_fields_ignored", module=module, fields=ignored)
        if odd:
            _log.warning("parameter_types_unknown", module=module, types=odd)
        return manifest


def _read(module: str, body: bytes) -> tuple[ModuleManifest, list[str], list[str]]:
    """The manifest, which of its fields mean nothing to us, and which types. Raises `ManifestRefused`."""
    document = read_document(body)
    manifest = admit(module, document)
    return manifest, unknown_fields(document), unknown_types(manifest.tools, most=_MOST_TYPES)


def _report(module: str, found: Look) -> None:
    if isinstance(found, ModuleManifest):
        _log.info("module_discovered", module=module, tools=len(found.tools), status=HTTPStatus.OK.value)
        if closed := closed_tools(found):
            _log.warning("tools_closed", module=module, tools=closed, reason="unknown required_permission")
        if unknown := unknown_costs(found.tools):
            _log.warning("costs_unknown", module=module, costs=unknown[:_MOST_TYPES], counted_as="expensive")
    elif found.status is None:
        _log.warning("module_unreachable", module=module, status=None, error=found.error)
    else:
        _log.warning("module_manifest_error", module=module, status=found.status, error=found.error)


def _new_client(*, with_tls: bool) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        # A context without certificates trusts nobody, and costs nothing.
        verify=_trusted_certificates() if with_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        trust_env=False,
        # With a limit, modules that never answer would use up the time of those that wait for a connection.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    )


@cache
def _trusted_certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # reads all certificates, which takes 20 ms


_LARGE = 200_000  # bytes of a manifest: to read them takes some 10 ms, which no event loop should wait
_MOST_TYPES = 20  # of parameters that mean nothing to us, in one line
_MOST_SHOWN = 300  # characters of an error, which may quote all that a module sent

# httpx would also offer brotli and zstandard where these are installed.
_HEADERS = {"accept": "application/json", "accept-encoding": "gzip, deflate", "user-agent": "toolfleet"}
