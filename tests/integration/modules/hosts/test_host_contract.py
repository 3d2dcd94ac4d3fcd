"""What every kind of host does alike: of a tool folder, an MCP server, and an OpenAPI document."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.hosts.bird_service import bird_service, document, json_body, operation
from support.hosts.mcp_server import hosted_server
from support.hosts.odd_server import Answer, odd_http
from support.hosts.openapi_document import hosted_document
from support.hosts.tool_folder import HEAD, hosted
from support.waiting import wait_until
from toolfleet_modules.hosts.secrets import Secrets
from toolfleet_modules.sdk.client import ModuleClient

pytestmark = pytest.mark.asyncio

VALUE = "planted-secret-0123456789"
SECRETS = Secrets({"TOKEN": VALUE})
TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


@dataclass
class Stage:
    """A host with the tool `echo`: how often that was run, and what has its source offer other tools, or be broken."""

    host: Any
    client: ModuleClient
    runs: Callable[[], int]
    offer: Callable[..., object]
    break_source: Callable[[], object]

    def tools(self) -> set[str]:
        return {name.partition(".")[2] for name in self.host.tools}


@asynccontextmanager
async def of_folder(path: Path, **options: Any) -> AsyncGenerator[Stage]:
    def source(*names: str) -> str:
        tools = [
            f'''
@tool(effect="once")
def {name}(text: str) -> str:
    """Say it."""
    with open({str(path / "runs")!r}, "a") as file:
        file.write("x")
    return {VALUE!r} + text
'''
            for name in names
        ]
        return HEAD + "".join(tools)

    async with hosted(path / "tools", {"owls.py": source("echo")}, security="off", **options) as folder:
        yield Stage(
            folder.host,
            folder.client,
            lambda: len((path / "runs").read_text()) if (path / "runs").exists() else 0,
            lambda *names: folder.write("owls.py", source(*names)),
            lambda: folder.write("owls.py", "def ("),
        )


@asynccontextmanager
async def of_server(path: Path, **options: Any) -> AsyncGenerator[Stage]:
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "result": {"content": [{"type": "text", "text": VALUE}]}})
    answer = Answer(200, body.replace('"id": 0', '"id": %d'))
    with odd_http({"echo": answer}) as (odd, server):
        async with hosted_server(server, path / "notes", refresh_seconds=0.1, **options) as served:
            yield Stage(
                served.host,
                served.client,
                lambda: odd.executed["echo"],
                lambda *names: setattr(odd, "pages", lambda _: {"tools": odd.listed(*names)}),
                lambda: setattr(odd, "pages", lambda _: {"tools": "none"}),
            )


@asynccontextmanager
async def of_document(path: Path, **options: Any) -> AsyncGenerator[Stage]:
    def paths(*names: str) -> dict[str, Any]:
        return document({f"/{name}": {"post": operation(name, requestBody=json_body(TEXT))} for name in names})

    headers = {"X-Key": "${TOKEN}"}
    with bird_service() as service:
        async with hosted_document(path, paths("echo"), base=service.url, headers=headers, **options) as birds:
            yield Stage(
                birds.host,
                birds.client,
                lambda: service.asked.count("POST /echo"),
                lambda *names: birds.write(paths(*names)),
                lambda: birds.write('{"openapi": '),
            )


Make = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture(params=[of_folder, of_server, of_document])
def make(request: pytest.FixtureRequest) -> Make:
    """Each kind in turn."""
    made: Make = request.param
    return made


@pytest.mark.parametrize("make", [of_folder, of_document])
async def test_wrong_arguments_are_refused_before_anything_is_run(make: Make, tmp_path: Path) -> None:
    """By every host but one of an MCP server, which checks them itself."""
    async with make(tmp_path, secrets=SECRETS) as stage:
        for arguments in ({}, {"text": 7}, {"text": "x", "more": 1}):
            refused = await stage.client.call("echo", **arguments)
            assert (refused.success, refused.effect_state, stage.runs()) == (False, "none", 0), arguments


async def test_a_call_is_run_once_and_shows_no_secret(make: Make, tmp_path: Path) -> None:
    """A repeat under its id brings what the first one came to."""
    async with make(tmp_path, secrets=SECRETS) as stage:
        assert "Unknown tool" in str((await stage.client.call("nowhere", text="x")).error)
        assert stage.runs() == 0

        first, second = [await stage.client.send("echo", {"text": "x"}, call_id="one") for _ in range(2)]
        other = await stage.client.send("echo", {"text": "y"}, call_id="one")
        assert (first.success, second.result, other.status, stage.runs()) == (True, first.result, 422, 1)
        assert "[secret TOKEN]" in json.dumps(first.result)
        assert VALUE not in json.dumps([first.result, stage.host.manifest.model_dump(mode="json")])
        assert (await stage.client.reconcile("one"))["state"] == "done"
        assert (await stage.client.http.get("/health")).is_success


async def test_what_its_source_offers_is_served_a_moment_later(make: Make, tmp_path: Path) -> None:
    """A source that breaks is an error, and its tools stay as they are until it is whole again."""
    async with make(tmp_path, secrets=SECRETS) as stage:
        assert (stage.tools(), stage.host.manifest.load_errors or []) == ({"echo"}, [])
        stage.offer("echo", "more")
        await wait_until(lambda: stage.tools() == {"echo", "more"}, "both are served")
        stage.break_source()
        await wait_until(lambda: stage.host.manifest.load_errors, "the error is listed")
        assert stage.tools() == {"echo", "more"}
        stage.offer("echo")
        await wait_until(lambda: stage.tools() == {"echo"}, "what is whole again is served")
        await wait_until(lambda: not stage.host.manifest.load_errors, "no error is left")


async def test_a_host_with_a_key_is_for_the_fleet_only(make: Make, tmp_path: Path) -> None:
    """A request without its token is refused, and nothing is run."""
    async with make(tmp_path, secrets=SECRETS, key="k" * 32) as stage:
        body = {"tool_name": next(iter(stage.host.tools)), "arguments": {"text": "x"}}
        assert (await stage.client.http.post("/execute", json=body)).status_code == 403
        assert stage.runs() == 0
