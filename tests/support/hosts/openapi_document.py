"""An OpenAPI document that is served in this process, without sockets of its own; its service is elsewhere."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.waiting import wait_until
from toolfleet_modules.hosts.openapi.openapi_host import OpenApiHost
from toolfleet_modules.hosts.openapi.options import OpenApiOptions
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


@asynccontextmanager
async def hosted_document(
    folder: Path, document: dict[str, Any] | str, *, source: str | None = None, **options: Any
) -> AsyncGenerator[HostedDocument]:
    """Serve a document from its file, or from the URL `source`."""
    file = folder / "birds.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    changes = list[int]()

    async def told() -> None:
        changes.append(len(host.tools))

    host = OpenApiHost(OpenApiOptions("birds", source or str(file), **options), listener=told)
    async with ModuleClient(host, user_id=None, permission="user") as client:
        yield HostedDocument(file, host, client, changes)
