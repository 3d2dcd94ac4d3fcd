"""What belongs to somebody else looks like what does not exist, on each route that takes an id."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from support.gateways.event_streams import streaming
from support.gateways.keyed_gateway import KeyedGateway

_HOOK = "whsec_" + "b3ds" * 8


@dataclass(frozen=True)
class Row:
    """A request about something: of which kind it is, and the path, with `{id}` for its id."""

    kind: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.method} {self.path} of a {self.kind}"


_ROWS = [
    *(Row(kind, method, "/calls/{id}") for kind in ("running call", "ended call") for method in ("GET", "HEAD", "DELETE")),
    *(Row(kind, "GET", "/calls/{id}/events") for kind in ("running call", "ended call")),
    Row("running call", "GET", "/calls/{id}", (("prefer", "wait=1"),)),
    Row("running call", "GET", "/calls/{id}/events", (("last-event-id", "{id}:end"),)),
    Row("running call", "GET", "/calls/{id}/events", (("last-event-id", f"{uuid.UUID(int=7)}:end"),)),
    *(Row(kind, method, "/jobs/{id}") for kind in ("job", "ended job") for method in ("GET", "HEAD", "DELETE")),
    *(Row(kind, "POST", "/hooks/{id}") for kind in ("job", "hooked job")),
    *(Row("workflow", method, "/workflows/{id}") for method in ("GET", "DELETE")),
    Row("conversation", "POST", "/conversations/{id}/completions/1-1/ack"),
    *(Row("tool", method, "/tools/{id}") for method in ("GET", "HEAD")),
    *(Row("key", method, "/operations/keys/{id}") for method in ("DELETE",)),
    *(Row("running call", method, "/operations/dead-letters/{id}") for method in ("GET", "DELETE")),
    Row("job", "GET", "/operations/wake-ups/{id}"),
]  # fmt: skip


@pytest.fixture(scope="module")
def of_bob(gateway: KeyedGateway) -> Iterator[dict[str, str]]:
    """One thing of each kind, that is not Eve's. At the end nothing of it goes on: other files use the same module."""
    things = asyncio.run(_things(gateway))
    yield things
    asyncio.run(_end(gateway, things))


async def _things(gateway: KeyedGateway) -> dict[str, str]:
    talk = uuid.uuid4().hex
    async with gateway.client("bob") as bob:
        running = await _begun(bob, "owls.nap", {"seconds": 20})
        ended = await _begun(bob, "owls.echo", {"text": "hoo"})
        assert (await bob.get(f"/calls/{ended}", headers={"prefer": "wait=20"})).json()["state"] == "done"
        where = {"conversation": {"conversation_id": talk}, "workflow_id": talk}
        later = {"message": "Feed the owls.", "schedule": {"delay_seconds": 3600}, **where}
        job, over = [(await bob.post("/jobs", json=later)).json()["job_id"] for _ in range(2)]
        await bob.delete(f"/jobs/{over}")
        hooked = (await bob.post("/jobs", json={"hook": {"secrets": [_HOOK]}, **where})).json()["job_id"]
    return {
        "running call": running,
        "ended call": ended,
        "job": job,
        "ended job": over,
        "hooked job": hooked,
        "workflow": talk,
        "conversation": talk,
        "tool": "owls.admin_only",
        "key": gateway.key_id("bob"),
    }


async def _end(gateway: KeyedGateway, things: dict[str, str]) -> None:
    await gateway.delete("bob", f"/calls/{things['running call']}")
    await gateway.delete("bob", f"/workflows/{things['workflow']}")


async def _begun(client: httpx.AsyncClient, tool: str, arguments: dict[str, Any]) -> str:
    body = {"tool_name": tool, "arguments": arguments}
    answer = await client.post("/calls", json=body, headers={"prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["call_id"])


def _unknown(like: str) -> str:
    """An id of the same form and length, that nobody has."""
    return f"{like[:-1]}{'0' if like[-1] != '0' else '1'}"


async def _answer(gateway: KeyedGateway, row: Row, name: str) -> tuple[int, dict[str, str], str]:
    """What Eve is answered, but for the time and the id."""
    headers = {header: value.replace("{id}", name) for header, value in row.headers}
    async with gateway.client("eve") as eve:
        answer = await eve.request(row.method, row.path.replace("{id}", name), headers=headers)
    kept = {header: value for header, value in answer.headers.items() if header != "date"}
    return answer.status_code, kept, answer.text.replace(name, "{id}")


@pytest.mark.parametrize("row", _ROWS, ids=str)
async def test_a_foreign_id_looks_like_an_unknown_one(gateway: KeyedGateway, of_bob: dict[str, str], row: Row) -> None:
    """Status, headers and body are the same, byte for byte, but for the id that was asked for."""
    name = of_bob[row.kind]

    foreign, unknown = [await _answer(gateway, row, one) for one in (name, _unknown(name))]

    assert foreign == unknown


async def test_what_was_asked_about_is_as_it_was(gateway: KeyedGateway, of_bob: dict[str, str]) -> None:
    """Nobody else has cancelled, ended or confirmed anything."""
    for row in _ROWS:
        await _answer(gateway, row, of_bob[row.kind])

    async with gateway.client("bob") as bob:
        call = (await bob.get(f"/calls/{of_bob['running call']}")).json()
        jobs = [(await bob.get(f"/jobs/{of_bob[kind]}")).json()["state"] for kind in ("job", "hooked job")]
    assert call["result"] is None or call["result"]["success"]
    assert jobs == ["waiting", "waiting"]


async def test_a_foreign_last_event_confirms_nothing(gateway: KeyedGateway) -> None:
    """In a conversation of the same name, of another user, and with an id of the future; what it is about comes all the same."""
    talk = uuid.uuid4().hex
    job = {"start": {"tool_name": "owls.echo", "arguments": {"text": talk}}, "conversation": {"conversation_id": talk}}
    path = f"/conversations/{talk}/completions"
    job_id = (await gateway.post("bob", "/jobs", job)).json()["job_id"]
    async with streaming(gateway, "bob", path) as stream:
        first = await stream.next()
    for last in (first.id, "9999999999999-9"):
        async with streaming(gateway, "eve", path, last=last):
            pass
    acks = [await gateway.post("eve", f"{path}/{name}/ack") for name in (first.id, "9999999999999-9")]

    async with streaming(gateway, "bob", path) as stream:
        again = await stream.next()

    assert {answer.status_code for answer in acks} == {404}
    assert len({json.dumps({**answer.json(), "instance": ""}) for answer in acks}) == 1
    assert (again.id, again.data["job_id"]) == (first.id, job_id)
