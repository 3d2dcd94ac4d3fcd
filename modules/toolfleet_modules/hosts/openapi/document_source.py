"""Fetches a document from its file or its URL, and tells when it may be another one."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TypeAlias

import httpx
from watchfiles import Change, awatch

from toolfleet_modules.hosts.openapi.calls.http_sender import within_origin
from toolfleet_modules.hosts.openapi.documents.document import DocumentWrong
from toolfleet_modules.hosts.openapi.documents.document_text import MOST_SELECTED_BYTES
from toolfleet_registry.errors import BodyTooLarge, BodyUnreadable
from toolfleet_registry.system.http_bodies import BodyReader

_FETCH_SECONDS = 30.0
_MOST_REDIRECTS = 5
_DEBOUNCE_MS, _STEP_MS = 500, 50
_RESCAN_SECONDS = 5.0  # for file systems that say nothing, and folders that come back
_OK, _NOT_MODIFIED = 200, 304


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


def source_of(document: str, *, refresh_seconds: float) -> DocumentSource:
    """The source of a document that is named by a path or a URL."""
    return UrlSource(document, refresh_seconds) if is_url(document) else FileSource(Path(document))
