"""An OpenAPI document in a whole fleet: its operations are called by agents, and its secrets are nowhere."""

import json
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
import redis

from petstore import server as petstore
from support.documents import programs
from support.hosts.bird_service import bird_service, document, operation
from support.modules.example_modules import serving
from support.servers import redis_snapshot
from support.up import Up, toolfleet, up
from support.waiting import wait_until, wait_until_answered, wait_until_sync
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.config.run_file import find_run_file
from toolfleet_registry.settings import Settings

ROOT = Path(__file__).parents[3]
ANYBODY = Caller(user_id="ada", permission="owner", allowed_modules="*")
SECRET = "planted-secret-0123456789"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A fleet with the guide's pet store, and a service that echoes what it is sent. No test ends it."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "openapi.json").write_bytes((ROOT / "examples/petstore/openapi.json").read_bytes())
    secured = document(
        {"/echo": {"get": operation("echo", security=[{"key": []}])}},
        components={"securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "key"}}},
    )
    (folder / "birds.json").write_text(json.dumps(secured))
    with serving("petstore", petstore.app) as store, bird_service() as birds:
        settings = programs("docs/guides/openapi.md")["openapi"].replace("8010", store.url.rpartition(":")[2])
        settings += (
            f'\n[hosts.birds]\ndocument = "birds.json"\nbase = "{birds.url}"\nauth = {{ key = "${{BIRD_KEY}}" }}\n'
        )
        (folder / "toolfleet.toml").write_text(settings)
        with up(folder, {"BIRD_KEY": SECRET}, "--no-gateway") as running:
            yield running


@asynccontextmanager
async def agent(fleet: Up) -> AsyncGenerator[ToolFleet]:
    """An agent beside the fleet."""
    run_file = find_run_file(fleet.folder)
    assert run_file is not None
    async with ToolFleet(settings=Settings(redis_url=run_file.settings["redis_url"])) as running:
        yield running


async def call(agent: ToolFleet, tool: str, **arguments: Any) -> ToolResult:
    return await agent.call(ToolCall(tool_name=tool, arguments=arguments), ANYBODY)


async def lists(agent: ToolFleet, tool: str) -> str:
    """The name of the tool whose name begins so, once it is there."""
    found = list[str]()

    async def is_there() -> bool:
        found[:] = [each.name for each in await agent.tools(ANYBODY) if each.name.startswith(tool)]
        return bool(found)

    await wait_until_answered(is_there, f"{tool} is listed")
    return found[0]


async def test_a_public_document_is_called(fleet: Up) -> None:
    """Each of its operations does its work, and an error is the service's own."""
    async with agent(fleet) as client:
        by_id = await lists(client, "petstore.find_pet")
        made = await call(client, "petstore.addPet", name="Hedwig", tag="owl")
        assert made.success, made
        assert (await call(client, "petstore.findPets", tags=["owl"], limit=5)).result == [made.result]
        number = made.result["id"]
        assert (await call(client, by_id, id=number)).result == made.result
        assert (await call(client, "petstore.deletePet", id=number)).result is None
        gone = await call(client, by_id, id=number)

        assert (gone.success, gone.effect_state) == (False, "none")
        assert "There is no pet" in str(gone.error)


async def test_a_former_name_is_the_tools_name(fleet: Up) -> None:
    """It is listed nowhere; a call by it is published under the present name, and shares keys with calls by that."""
    async with agent(fleet) as client:
        await lists(client, "petstore.find_pet_by_id")
        names = [each.name for each in await client.tools(ANYBODY)]
        made = await call(client, "petstore.addPet", name="Errol")
        asked = [
            ToolCall(tool_name=name, arguments={"id": made.result["id"]}, idempotency_key="errol")
            for name in ("petstore.find_pet_by_id", "petstore.find_pet_by_id-x376f88fb")
        ]
        first, second = [await client.call(each, ANYBODY) for each in asked]

        assert "petstore.find_pet_by_id-x376f88fb" not in names
        assert first.result == made.result
        assert (second.tool_name, second.result) == (first.tool_name, first.result)
        assert second.audit.call_id == first.audit.call_id


async def test_a_changed_document_is_seen_by_agents(fleet: Up) -> None:
    """Without a restart of anything; one that breaks is shown, and leaves the tools."""
    file = fleet.folder / "openapi.json"
    whole = file.read_text()
    async with agent(fleet) as client:
        file.write_text(whole.replace('"deletePet"', '"forgetPet"'))
        await lists(client, "petstore.forgetPet")
        file.write_text(whole[:500])
        await wait_until(
            lambda: "DocumentWrong" in toolfleet("tools", "list", cwd=fleet.folder).stderr, "the error is shown"
        )
        await lists(client, "petstore.forgetPet")
        file.write_text(whole)
        await lists(client, "petstore.deletePet")


async def test_a_secret_is_nowhere(fleet: Up) -> None:
    """Neither in a result, nor in Redis, nor in any file that the fleet has written: only the service has it."""
    async with agent(fleet) as client:
        await lists(client, "birds.echo")
        echoed = await call(client, "birds.echo")
        definitions = json.dumps([each.model_dump(mode="json") for each in await client.tools(ANYBODY)])
    assert echoed.success, echoed
    assert echoed.result["arguments"] == {"key": "[secret BIRD_KEY]"}
    assert SECRET not in definitions

    run_file = find_run_file(fleet.folder)
    assert run_file is not None
    assert SECRET not in redis_snapshot.take(run_file.settings["redis_url"])
    with redis.Redis.from_url(run_file.settings["redis_url"]) as kept:
        kept.save()
    files = [path for path in fleet.folder.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_a_host_is_started_by_hand(tmp_path: Path) -> None:
    """With a document of YAML, chosen by tag, and a secret from a file; it says where it is."""
    text = "openapi: 3.1.0\npaths:\n  /echo:\n    get: {tags: [a], operationId: echo, security: [{key: []}]}\n"
    text += "    post: {operationId: post}\ncomponents:\n  securitySchemes: {key: {type: http, scheme: bearer}}\n"
    (tmp_path / "birds.yaml").write_text(text)
    (tmp_path / "key").write_text(f"{SECRET}\n")
    (tmp_path / "toolfleet.toml").write_text('[secrets.BIRD_KEY]\nfile = "key"\n')
    output = tmp_path / "said.txt"
    with bird_service() as birds, output.open("wb") as file:
        words = ["birds", "--document", "birds.yaml", "--base", birds.url, "--tag", "a", "--auth", "key=${BIRD_KEY}"]
        command = [sys.executable, "-m", "toolfleet_cli", "host", "openapi", *words]
        with Popen(command, cwd=tmp_path, stderr=file, stdout=file, env={**os.environ}) as host:
            try:
                wait_until_sync(lambda: "is served at" in output.read_text(), "it is served")
                wait_until_sync(lambda: "birds serves 1 tools" in output.read_text(), "it has its tool")
            finally:
                host.terminate()
                host.wait()
        assert SECRET not in output.read_text()
