"""An OpenAPI document that is served in this process, without sockets of its own; its service is elsewhere."""

import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.hosts.second_judge import second_judge
from support.waiting import wait_until
from toolfleet_modules.hosts.openapi.openapi_host import OpenApiHost, OpenApiOptions
from toolfleet_modules.hosts.openapi.operation_tool import HttpSender, ServiceAnswer
from toolfleet_modules.hosts.openapi.outgoing_request import OutgoingRequest
from toolfleet_modules.sdk.client import ModuleClient, ModuleResult


@dataclass
class HostedDocument:
    """`file` has the document; its module is named `birds`."""

    file: Path
    host: OpenApiHost
    client: ModuleClient
    changes: list[int]

    def write(self, document: dict[str, Any] | str) -> None:
        """Save it at once, as editors do."""
        draft = self.file.with_suffix(".draft")
        draft.write_text(document if isinstance(document, str) else json.dumps(document))
        draft.rename(self.file)

    async def call(self, tool: str, **arguments: Any) -> ModuleResult:
        return await self.client.send(f"birds.{tool}", arguments)

    def input_schema(self, tool: str) -> dict[str, Any]:
        schema = self.host.tools[f"birds.{tool}"].definition.input_schema
        assert schema is not None
        return schema

    def errors(self) -> dict[str, str]:
        """The kinds, by what the place of each ends in: `GET /owls`."""
        return {each.file.removeprefix(str(self.file)).strip(): each.error_type for each in self.errors_listed()}

    def errors_listed(self) -> list[Any]:
        return list(self.host.manifest.load_errors or ())

    async def wait_for_tools(self, *names: str) -> None:
        wanted = {f"birds.{name}" for name in names}
        await wait_until(lambda: set(self.host.tools) == wanted, f"{wanted} are served")


class JudgedSender(HttpSender):
    """Has the second judge see each request before it is sent. `faults` has what it says."""

    def __init__(self, file: Path, base: str, *, most_bytes: int) -> None:
        super().__init__(most_bytes=most_bytes)
        self._file, self._base = file, base
        self.faults: list[str] = []

    async def send(self, request: OutgoingRequest, *, seconds: float, may_begin: Callable[[], bool]) -> ServiceAnswer:
        with contextlib.suppress(ValueError):  # YAML, or what is broken meanwhile
            self.faults += second_judge(json.loads(self._file.read_text()), self._base, request)
        return await super().send(request, seconds=seconds, may_begin=may_begin)


@asynccontextmanager
async def hosted_document(
    folder: Path, document: dict[str, Any] | str, *, source: str | None = None, **options: Any
) -> AsyncGenerator[HostedDocument]:
    """Serve a document from its file, or from the URL `source`. Each request is right by the document, by a second judge, too."""
    file = folder / "birds.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    changes = list[int]()

    async def told() -> None:
        changes.append(len(host.tools))

    host = OpenApiHost(OpenApiOptions("birds", source or str(file), **options), listener=told)
    judged = JudgedSender(file, options.get("base", ""), most_bytes=host.limits.result_bytes)
    host._sender = judged
    async with ModuleClient(host, user_id=None, permission="user") as client:
        yield HostedDocument(file, host, client, changes)
    assert source is not None or judged.faults == []
