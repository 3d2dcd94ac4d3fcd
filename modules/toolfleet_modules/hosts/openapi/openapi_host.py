"""Serves an OpenAPI document as a module: its operations are tools, and what changes in it is served a moment later."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from toolfleet_modules.hosts.openapi.calls.http_sender import HttpSender
from toolfleet_modules.hosts.openapi.calls.operation_tool import OperationTool
from toolfleet_modules.hosts.openapi.document_source import source_of
from toolfleet_modules.hosts.openapi.document_tools import DocumentTools, tools_of
from toolfleet_modules.hosts.openapi.documents.document import DocumentWrong
from toolfleet_modules.hosts.openapi.documents.document_text import document_of
from toolfleet_modules.hosts.openapi.documents.operations import OperationFault
from toolfleet_modules.hosts.openapi.options import OpenApiOptions
from toolfleet_modules.hosts.serving.host import Host, Listener
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.contracts.tool_definition import InEffect, ToolLoadError
from toolfleet_registry.once.port import OnceStore
from toolfleet_registry.time import machine_clock

_log = logging.getLogger("toolfleet.host")

_MOST_ERRORS = 1000  # in a manifest
_LONGEST_PLACE, _LONGEST_KIND, _LONGEST_MESSAGE = 1024, 100, 1000


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
        self._source = source_of(options.document, refresh_seconds=options.refresh_seconds)
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
