"""Jobs over HTTP: made once under their key, shown and ended by their own user only, and heard of by their conversation."""

import uuid
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.gateways.event_streams import streaming
from support.gateways.keyed_gateway import KeyedGateway
from support.workers.stored_programs import program_records, waiting_program
from support.workers.wakes import complete
from toolfleet_registry.redis.keys import Keys

REMINDER = {
    "name": "reminder",
    "message": "Feed the owls.",
    "schedule": {"delay_seconds": 3600},
    "conversation": {"conversation_id": "nest"},
}


def job_of(talk: str, **fields: Any) -> dict[str, Any]:
    """A job that ends at once, and wakes its conversation."""
    start = {"tool_name": "owls.echo", "arguments": {"text": talk}}
    return {"start": start, "conversation": {"conversation_id": talk}} | fields


@pytest.fixture
def talk() -> str:
    """A conversation that nobody else has."""
    return uuid.uuid4().hex


async def test_a_job_is_made_once_under_its_key(gateway: KeyedGateway, talk: str) -> None:
    """Asked for again it is the same one, at the place that the answer names; another under that key is a conflict."""
    async with gateway.client("bob") as client:
        headers = {"idempotency-key": talk}
        answers = [await client.post("/jobs", json=REMINDER, headers=headers) for _ in range(2)]
        other = await client.post("/jobs", json=job_of(talk), headers=headers)
        found = await client.get(answers[0].headers["location"])

    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json()["job_id"] == answers[1].json()["job_id"] == found.json()["job_id"]
    assert (other.status_code, other.json()["error_code"]) == (409, "conflict")


async def test_a_job_is_its_users(gateway: KeyedGateway) -> None:
    """Another user cannot see, list or end it: it looks like one that there is not. Its own user ends it, as often as they like."""
    job_id = (await gateway.post("bob", "/jobs", REMINDER)).json()["job_id"]

    assert job_id not in {job["job_id"] for job in (await gateway.get("eve", "/jobs")).json()["jobs"]}
    assert job_id in {job["job_id"] for job in (await gateway.get("bob", "/jobs")).json()["jobs"]}
    for _ in range(2):
        assert (await gateway.delete("bob", f"/jobs/{job_id}")).json()["state"] == "cancelled"
    listed = (await gateway.get("bob", "/jobs", params={"ended": "false"})).json()["jobs"]
    assert job_id not in {job["job_id"] for job in listed}


async def test_a_workflow_is_ended_as_a_whole(gateway: KeyedGateway, talk: str) -> None:
    """All its jobs are listed and cancelled, those of its user only."""
    for who in ("bob", "bob", "eve"):
        await gateway.post(who, "/jobs", {**REMINDER, "workflow_id": talk})

    assert (await gateway.get("bob", f"/workflows/{talk}")).json()["count"] == 2
    assert (await gateway.delete("bob", f"/workflows/{talk}")).json() == {"cancelled": 2}
    assert (await gateway.get("eve", f"/workflows/{talk}")).json()["jobs"][0]["state"] == "waiting"
    assert (await gateway.delete("eve", f"/workflows/{talk}")).json() == {"cancelled": 1}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (job_of("nest", start={"tool_name": "owls.nothing"}), 404, "unknown_tool"),
        (job_of("nest", start={"tool_name": "owls.admin_only"}), 404, "unknown_tool"),
        ({"schedule": {"cron": "never"}}, 422, "invalid_arguments"),
        ({"start": {"tool_name": "owls.echo"}, "deadline_seconds": -1}, 400, "invalid_request"),
        *(
            (job_of("nest", conversation={"conversation_id": "nest", name: "x" * 257}), 422, "invalid_arguments")
            for name in ("conversation_id", "platform", "platform_channel_id", "platform_thread_id", "run_id")
        ),
        ({"surprise": 1}, 400, "invalid_request"),
        ({"user_id": "eve"}, 403, "acts_for_others"),
    ],
)
async def test_what_cannot_be_a_job_is_refused(gateway: KeyedGateway, body: Any, status: int, code: str) -> None:
    """It is one problem that says why, and nothing is made."""
    answer = await gateway.post("bob", "/jobs", body)

    assert (answer.status_code, answer.json()["error_code"]) == (status, code)


async def test_a_completion_comes_until_it_is_confirmed(gateway: KeyedGateway, talk: str) -> None:
    """A cut stream loses none: without `Last-Event-ID` it comes again, and with it no more."""
    job_id = (await gateway.post("bob", "/jobs", job_of(talk))).json()["job_id"]
    path = f"/conversations/{talk}/completions"
    async with streaming(gateway, "bob", path) as stream:
        first = await stream.next()
    async with streaming(gateway, "bob", path) as stream:
        again = await stream.next()
    job = (await gateway.get("bob", f"/jobs/{job_id}")).json()
    second_job = (await gateway.post("bob", "/jobs", job_of(talk))).json()["job_id"]
    async with streaming(gateway, "bob", path, last=first.id) as stream:
        second = await stream.next()

    assert again == first
    assert (job["state"], job["result"]) == ("completed", {"text": talk})
    assert (first.kind, first.data["job_id"], first.data["result"]) == ("completion", job_id, {"text": talk})
    assert (second.data["job_id"], second.id != first.id) == (second_job, True)


async def test_a_stream_says_how_many_completions_were_dropped(gateway: KeyedGateway, bed: TestBed, talk: str) -> None:
    """Before those that are left, until it is confirmed as they are; another user with the same conversation has lost none."""
    path, keys = f"/conversations/{talk}/completions", Keys()
    await gateway.post("eve", "/jobs", job_of(talk))
    async with Redis.from_url(bed.redis_url) as redis:
        for number in range(1300):
            await complete(redis, f"{talk}-{number}", conversation_id=talk, user_id="bob", message="x")
        gone = 1300 - await redis.xlen(keys.completions_of(talk, "bob"))
    async with streaming(gateway, "bob", path) as stream:
        lost, first = await stream.next(), await stream.next()
    async with streaming(gateway, "bob", path) as stream:
        assert await stream.next() == lost
    async with streaming(gateway, "bob", path, last=lost.id) as stream:
        assert await stream.next() == first
    async with streaming(gateway, "eve", path) as stream:
        of_eve = await stream.next()

    assert (lost.kind, lost.data) == ("events_lost", {"count": gone})
    assert (first.kind, first.data["wake_id"]) == ("completion", f"{talk}-{gone}")
    assert (of_eve.kind, of_eve.data["user_id"]) == ("completion", "eve")


async def test_a_completion_is_confirmed_by_hand(gateway: KeyedGateway, talk: str) -> None:
    """It does not come again; confirmed twice, or by somebody else, it is not there."""
    await gateway.post("bob", "/jobs", job_of(talk))
    path = f"/conversations/{talk}/completions"
    async with streaming(gateway, "bob", path) as stream:
        first = await stream.next()
    foreign = await gateway.post("eve", f"{path}/{first.id}/ack")
    answers = [await gateway.post("bob", f"{path}/{first.id}/ack") for _ in range(2)]

    assert [foreign.status_code, *(answer.status_code for answer in answers)] == [404, 204, 404]
    last = (await gateway.post("bob", "/jobs", job_of(talk))).json()["job_id"]
    async with streaming(gateway, "bob", path) as stream:
        assert (await stream.next()).data["job_id"] == last


async def test_a_key_for_other_modules_sees_no_program(bed: TestBed, gateway: KeyedGateway) -> None:
    """As it sees no call of the tool that makes them: a program's value may be data of any module."""
    async with program_records(bed.settings) as records:
        program = await waiting_program(records, "program-of-gus", user_id="gus")
        path = "/programs/program-of-gus"

        assert [(await ask("gus", path)).status_code for ask in (gateway.get, gateway.delete)] == [404, 404]
        assert (await gateway.get("gus", "/programs")).json() == {"programs": [], "count": 0}
        assert (await gateway.get("vera", f"/operations{path}")).status_code == 200
        assert await records.end(program, None, []) is not None


async def test_a_program_is_its_users_over_http(bed: TestBed, gateway: KeyedGateway) -> None:
    """Another user cannot see, list or cancel it; operators see and cancel all."""
    async with program_records(bed.settings) as records:
        await waiting_program(records, "program-of-bob", user_id="bob")
    path = "/programs/program-of-bob"

    assert [(await gateway.get("eve", path)).status_code, (await gateway.delete("eve", path)).status_code] == [404, 404]
    assert (await gateway.get("eve", "/programs")).json() == {"programs": [], "count": 0}
    assert (await gateway.get("bob", "/programs")).json()["programs"][0]["program_id"] == "program-of-bob"
    found = (await gateway.get("bob", path)).json()
    assert (found["state"], found["calls"][0]["tool_name"]) == ("waiting", "owls.echo")
    listed = (await gateway.get("vera", "/operations/programs", params={"user_id": "bob"})).json()
    assert [each["program_id"] for each in listed["programs"]] == ["program-of-bob"]
    assert (await gateway.delete("olga", f"/operations{path}")).status_code == 200
    async with program_records(bed.settings) as records:
        program = await records.get("program-of-bob")
        assert program is not None
        assert program.place.is_cancelled
        assert await records.end(program, None, []) is not None
    ended = (await gateway.delete("bob", path)).json()
    assert (ended["state"], ended["error_code"]) == ("cancelled", "cancelled")
