"""Serves an OpenAPI document as a module: its operations are tools, and what changes in its file or at its URL is served a moment later."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import httpx
from watchfiles import Change, awatch

from toolfleet_modules.hosts.host import Host, Listener
from toolfleet_modules.hosts.openapi.document import MOST_SELECTED_BYTES, DocumentWrong, OperationFault, document_of
from toolfleet_modules.hosts.openapi.document_tools import DocumentTools, OpenApiOptions, tools_of
from toolfleet_modules.hosts.openapi.operation_tool import HttpSender, OperationTool, within_origin
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.contracts.tool_definition import InEffect, ToolLoadError
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.once.port import OnceStore
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.http_bodies import BodyReader

_log = logging.getLogger("toolfleet.host")

_FETCH_SECONDS = 30.0
_MOST_REDIRECTS = 5
_DEBOUNCE_MS, _STEP_MS = 500, 50
_RESCAN_SECONDS = 5.0  # for file systems that say nothing, and folders that come back
_OK, _NOT_MODIFIED = 200, 304

_MOST_ERRORS = 1000  # in a manifest
_LONGEST_PLACE, _LONGEST_KIND, _LONGEST_MESSAGE = 1024, 100, 1000


def is_url(document: str) -> bool:
    """Return whether a document is named by its URL."""
    return document.startswith(("http://", "https://"))


class FileSource:
    """A file, which is watched."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: bytes | None = None

    async def read(self) -> bytes | None:
        """Return its bytes; `None` if it is unchanged since the last reading. Raises `DocumentWrong`."""
        try:
            data = await asyncio.to_thread(self._content)
        except OSError as exc:
            self._known = None
            raise DocumentWrong(f"It cannot be read: {exc.strerror}.") from None
        if data == self._known:
            return None
        self._known = data
        return data

    async def changes(self) -> AsyncGenerator[None]:
        """Yield each time it may have changed; its folder is watched, as editors replace the file."""
        while True:
            with contextlib.suppress(OSError):
                async for _ in awatch(
                    self._file.parent,
                    watch_filter=self._is_ours,
                    debounce=_DEBOUNCE_MS,
                    step=_STEP_MS,
                    rust_timeout=int(_RESCAN_SECONDS * 1000),
                    yield_on_timeout=True,
                    recursive=False,
                ):
                    yield
                    if not await asyncio.to_thread(self._file.parent.is_dir):
                        break
            await asyncio.sleep(_RESCAN_SECONDS)
            yield

    def _content(self) -> bytes:
        with self._file.open("rb") as opened:
            return opened.read(MOST_SELECTED_BYTES + 1)

    def _is_ours(self, change: Change, path: str) -> bool:
        del change
        return Path(path).name == self._file.name


class UrlSource:
    """A URL, which is asked now and then whether there is something new. Redirects are followed within its origin."""

    def __init__(self, url: str, refresh_seconds: float) -> None:
        self._url = url
        self._seconds = refresh_seconds
        self._validators: dict[str, str] = {}
        self._known: bytes | None = None

    async def read(self) -> bytes | None:
        """Return its bytes; `None` if it is unchanged since the last reading. Raises `DocumentWrong`.

        After an unreadable document, the next one counts as changed in any case.
        """
        try:
            return await self._changed()
        except DocumentWrong:
            self._known, self._validators = None, {}
            raise

    async def _changed(self) -> bytes | None:
        try:
            async with (
                asyncio.timeout(_FETCH_SECONDS),
                httpx.AsyncClient(trust_env=False, timeout=_FETCH_SECONDS) as client,
            ):
                data = await self._fetched(client)
        except TimeoutError:
            raise DocumentWrong(f"It did not arrive within {_FETCH_SECONDS:g} s.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise DocumentWrong(f"It cannot be fetched: {str(exc)[:200] or type(exc).__name__}.") from None
        except (BodyTooLarge, BodyUnreadable) as exc:
            raise DocumentWrong(f"It cannot be read: {exc}.") from None
        if data is None or data == self._known:
            return None
        self._known = data
        return data

    async def changes(self) -> AsyncGenerator[None]:
        """Yield each time it may have changed."""
        while True:
            await asyncio.sleep(self._seconds)
            yield

    async def _fetched(self, client: httpx.AsyncClient) -> bytes | None:
        url = self._url
        for _ in range(_MOST_REDIRECTS + 1):
            headers = {
                "Accept": "application/json, application/yaml, */*",
                "Accept-Encoding": "gzip",
                **self._validators,
            }
            async with client.stream("GET", url, headers=headers) as response:
                if response.status_code == _NOT_MODIFIED and self._known is not None:
                    return None
                if response.is_redirect:
                    url = within_origin(url, response.headers.get("location", "")) or ""
                    if not url:
                        raise DocumentWrong("Its server redirects to another one, which is not followed.")
                    continue
                if response.status_code != _OK:
                    raise DocumentWrong(f"Its server answers with status {response.status_code}.")
                return await self._body(response)
        raise DocumentWrong("Its server redirects without an end.")

    async def _body(self, response: httpx.Response) -> bytes:
        said = response.headers
        reader = BodyReader(
            MOST_SELECTED_BYTES, encoding=said.get("content-encoding", ""), announced=said.get("content-length", "")
        )
        async for chunk in response.aiter_raw():
            reader.feed(chunk)
        body = reader.finish()
        names = {"etag": "If-None-Match", "last-modified": "If-Modified-Since"}
        self._validators = {sent: said[name] for name, sent in names.items() if name in said}
        return body


DocumentSource: TypeAlias = FileSource | UrlSource


def _source_of(document: str, *, refresh_seconds: float) -> DocumentSource:
    """The source of a document that is named by a path or a URL."""
    return UrlSource(document, refresh_seconds) if is_url(document) else FileSource(Path(document))


class OpenApiHost(Host[OperationTool]):
    """A module whose `app` serves the operations; while its lifespan runs, the document is watched.

    A document that cannot be read leaves the tools as they are, and is listed as an error.
    """

    assumes_once = True

    def __init__(
        self, options: OpenApiOptions, *, replies: OnceStore | None = None, listener: Listener | None = None
    ) -> None:
        super().__init__(options, replies=replies, listener=listener, lifespan=self._running)
        self._options = options
        self._sender = HttpSender(most_bytes=options.result_bytes)
        self._source = _source_of(options.document, refresh_seconds=options.refresh_seconds)
        self._errors: list[ToolLoadError] = []
        self._loading = asyncio.Lock()

    @property
    def manifest(self) -> ModuleManifest:
        """The manifest of the served tools, with the load errors."""
        return super().manifest.model_copy(update={"load_errors": self._errors or None})

    async def reload(self) -> bool:
        """Serve the document as it is now; returns whether anything is different."""
        async with self._loading:
            before = self.definitions, self._errors
            try:
                data = await self._source.read()
                if data is None:
                    return False
                is_selected = bool(self._options.tags or self._options.paths)
                document = await document_of(data, is_selected=is_selected)
                self._take(await asyncio.to_thread(tools_of, document, self._options, self._sender))
            except DocumentWrong as exc:
                fault = OperationFault("", "DocumentWrong", str(exc))
                self._errors = self._listed([fault], "previous" if self.tools else "none")
            is_changed = (self.definitions, self._errors) != before
            if is_changed:
                await self.tell()
            return is_changed

    def _take(self, found: DocumentTools) -> None:
        self.tools = found.tools
        self._errors = self._listed(found.faults, "none")

    def _listed(self, faults: Iterable[OperationFault], in_effect: InEffect) -> list[ToolLoadError]:
        """Return the errors for the manifest; one that is listed already keeps its time."""
        known = {_what(each): each for each in self._errors}
        listed = [self._error(fault, in_effect) for fault in faults][:_MOST_ERRORS]
        for each in listed:
            if _what(each) not in known:
                _log.error("tool_load_failed file=%s error=%s: %s", each.file, each.error_type, each.message)
        return [known.get(_what(each), each) for each in listed]

    def _error(self, fault: OperationFault, in_effect: InEffect) -> ToolLoadError:
        hide = self._options.secrets.hide
        place = f"{self._options.document} {fault.label}".strip()
        return ToolLoadError(
            file=hide(place)[:_LONGEST_PLACE],
            error_type=fault.kind[:_LONGEST_KIND],
            message=hide(fault.message)[:_LONGEST_MESSAGE],
            timestamp=machine_clock.wall(),
            in_effect=in_effect,
        )

    async def _watch(self) -> None:
        async for _ in self._source.changes():
            try:
                await self.reload()
            except Exception as exc:  # noqa: BLE001 - after any error, the next change is still processed
                _log.error("%s was not read again", self._options.document, exc_info=exc)

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        """Serve the document meanwhile."""
        async with self._sender.running():
            watching = asyncio.ensure_future(self._watch())
            try:
                await asyncio.sleep(0)  # so that it watches before the first reading: no change falls between both
                await self.reload()
                yield
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)


def _what(error: ToolLoadError) -> tuple[object, ...]:
    return error.file, error.error_type, error.message, error.in_effect
