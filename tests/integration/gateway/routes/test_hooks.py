"""Jobs that a signed request of an outside system ends: once, whenever it comes and however often, and told of once."""

import asyncio
import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from support.gateways.event_streams import streaming
from support.gateways.hook_requests import SECRET, signed
from support.gateways.keyed_gateway import KeyedGateway
from support.waiting import wait_until, wait_until_answered
from toolfleet_registry.contracts.jobs import HookSpec

OTHER = "whsec_" + "aG9v" * 8
DONE = {"success": True, "result": {"eggs": 3}}


@pytest.fixture
def talk() -> str:
    """A conversation that nobody else has."""
    return uuid.uuid4().hex


async def sent(
    gateway: KeyedGateway,
    job_id: str,
    body: Any = DONE,
    *,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> httpx.Response:
    """What the outside system, which has no key, is answered."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = signed(data, **options) if headers is None else headers
    async with gateway.client("nobody") as client:
        return await client.post(f"/hooks/{job_id}", content=data, headers=headers)


async def made(gateway: KeyedGateway, talk: str, **fields: Any) -> str:
    """A job that waits for its hook."""
    body = {"hook": {"secrets": [SECRET]}, "conversation": {"conversation_id": talk}} | fields
    answer = await gateway.post("bob", "/jobs", body)
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    return str(job["job_id"])


async def job_of(gateway: KeyedGateway, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = (await gateway.get("bob", f"/jobs/{job_id}")).json()
    return job


async def test_a_hook_ends_a_job_and_wakes_its_conversation_once(gateway: KeyedGateway, talk: str) -> None:
    """Ten requests, some at once, get the same answer; the conversation hears of the end once, and then of the next job's."""
    job_id = await made(gateway, talk, name="eggs")
    answers = [await sent(gateway, job_id)]
    answers += await asyncio.gather(*(sent(gateway, job_id) for _ in range(9)))
    last = await made(gateway, talk)
    await sent(gateway, last)
    path = f"/conversations/{talk}/completions"
    async with streaming(gateway, "bob", path) as stream:
        heard = [await stream.next(), await stream.next()]

    assert {(answer.status_code, answer.text) for answer in answers} == {(200, answers[0].text)}
    assert answers[0].json() == {"job_id": job_id, "state": "completed"}
    assert [one.data["job_id"] for one in heard] == [job_id, last]
    assert heard[0].data["result"] == {"eggs": 3}
    assert (await job_of(gateway, job_id))["result"] == {"eggs": 3}


async def test_of_contradictory_requests_at_once_one_counts(gateway: KeyedGateway, talk: str) -> None:
    """It gets its answer, each time; the others are told that the job has ended otherwise."""
    job_id = await made(gateway, talk)
    bodies = [DONE, {"success": False, "error": "They are cold."}]
    asked = [sent(gateway, job_id, bodies[number % 2], delivery=f"msg_{number}") for number in range(6)]
    answers = await asyncio.gather(*asked)
    first = next(number for number, answer in enumerate(answers) if answer.status_code == 200)
    again = await sent(gateway, job_id, bodies[first % 2], delivery=f"msg_{first}")

    assert sorted(answer.status_code for answer in answers) == [200, *[410] * 5]
    assert (again.status_code, again.text) == (200, answers[first].text)
    assert {answer.json().get("error_code") for answer in answers} == {None, "job_has_ended"}


async def test_a_failure_is_told_in_the_systems_words(gateway: KeyedGateway, talk: str) -> None:
    """The job has failed, with what the request says."""
    job_id = await made(gateway, talk)
    answer = await sent(gateway, job_id, {"success": False, "error": "They are cold."})

    assert answer.json()["state"] == "failed"
    assert (await job_of(gateway, job_id))["error"].endswith("They are cold.")


async def test_a_failure_ends_the_others_of_its_workflow(gateway: KeyedGateway, talk: str) -> None:
    """The hook of another one comes too late then, also before a worker has cancelled that one."""
    first, second = [await made(gateway, talk, workflow_id=talk) for _ in range(2)]
    await sent(gateway, first, {"success": False})

    assert (await sent(gateway, second)).status_code == 410
    assert (await job_of(gateway, second))["state"] == "cancelled"


async def test_a_job_is_started_and_then_waits_without_polls(gateway: KeyedGateway, talk: str) -> None:
    """Its first call is made once, and its success does not end it; nothing is due before the deadline."""
    start = {"tool_name": "owls.echo", "arguments": {"text": talk}}
    job_id = await made(gateway, talk, start=start, deadline_seconds=600)

    async def waits() -> bool:
        return bool((await job_of(gateway, job_id))["state"] == "waiting")

    await wait_until_answered(waits, "its first call has ended")
    job = await job_of(gateway, job_id)
    assert (job["due_at"], job["polls"]) == (job["deadline_at"], 0)
    assert (await sent(gateway, job_id)).status_code == 200


async def test_a_job_whose_start_fails_is_over(gateway: KeyedGateway, talk: str) -> None:
    """Its hook comes too late, and is told so."""
    job_id = await made(gateway, talk, start={"tool_name": "owls.fail"})

    async def failed() -> bool:
        return bool((await job_of(gateway, job_id))["state"] == "failed")

    await wait_until_answered(failed, "its first call has failed")
    assert (await sent(gateway, job_id)).status_code == 410


async def test_a_hook_may_come_before_the_first_call_has_ended(gateway: KeyedGateway, talk: str) -> None:
    """The job has ended then; the call is left to end, and changes nothing."""
    start = {"tool_name": "owls.nap_once", "arguments": {"seconds": 2}}
    job_id = await made(gateway, talk, start=start)
    answer = await sent(gateway, job_id)

    assert (answer.status_code, (await job_of(gateway, job_id))["state"]) == (200, "completed")


@pytest.mark.parametrize("end", ["cancelled", "timed_out"])
async def test_a_hook_that_comes_after_the_end_is_told_so(gateway: KeyedGateway, talk: str, end: str) -> None:
    """Of a job that was cancelled, or whose deadline has passed: 410, which senders do not repeat; it stays as it is."""
    job_id = await made(gateway, talk, deadline_seconds=0.2 if end == "timed_out" else 600)
    if end == "cancelled":
        await gateway.delete("bob", f"/jobs/{job_id}")
    else:
        until = (await job_of(gateway, job_id))["deadline_at"] + 0.05
        await wait_until(lambda: datetime.now(UTC).timestamp() > until, "its deadline has passed")
    answers = [await sent(gateway, job_id) for _ in range(2)]

    assert [(one.status_code, one.json()["error_code"]) for one in answers] == [(410, "job_has_ended")] * 2
    assert (await job_of(gateway, job_id))["state"] == end


async def test_unknown_jobs_and_wrong_signatures_look_alike(gateway: KeyedGateway, talk: str) -> None:
    """As do jobs without a hook: nobody finds out which there are."""
    later = {"schedule": {"delay_seconds": 3600}, "conversation": {"conversation_id": talk}}
    reminder = (await gateway.post("bob", "/jobs", later)).json()
    job_id = await made(gateway, talk)
    answers = [
        await sent(gateway, "nothing"),
        await sent(gateway, "x" * 300),
        await sent(gateway, reminder["job_id"]),
        await sent(gateway, job_id, secret=OTHER),
        await sent(gateway, job_id, b"[1]", headers=signed(b"[2]")),
        await sent(gateway, job_id, b"\xff", headers=signed(b"[2]")),
    ]

    assert {answer.status_code for answer in answers} == {404}
    assert len({json.dumps({**answer.json(), "instance": ""}) for answer in answers}) == 1
    assert (await job_of(gateway, job_id))["state"] == "waiting"


@pytest.mark.parametrize(
    ("requires", "named", "status"),
    [
        (False, None, 200),
        (False, "itself", 200),
        (False, "other", 404),
        (False, "", 404),
        (True, None, 400),
        (True, "itself", 200),
        (True, "other", 404),
        (True, "", 404),
    ],
)
async def test_a_request_names_its_job(
    gateway: KeyedGateway, talk: str, *, requires: bool, named: str | None, status: int
) -> None:
    """Another job's is answered as one that is not signed, also with the same secret; one without a name is taken unless the job requires it."""
    hook = {"secrets": [SECRET], "requires_job_id": requires}
    job_id, other = [await made(gateway, talk, hook=hook) for _ in range(2)]
    body = DONE if named is None else {"job_id": {"itself": job_id, "other": other}.get(named, named), **DONE}
    answer, unsigned = await sent(gateway, job_id, body), await sent(gateway, job_id, body, secret=OTHER)

    assert answer.status_code == status
    assert (await job_of(gateway, job_id))["state"] == ("completed" if status == 200 else "waiting")
    if status == 404:
        assert answer.json() == unsigned.json()
    if status == 400:
        assert "job_id" in answer.json()["detail"]
        assert (await sent(gateway, job_id, {"job_id": job_id, **DONE})).status_code == 200


async def test_a_new_hook_has_a_secret_of_its_own(gateway: KeyedGateway, talk: str) -> None:
    """The job that it is of must be named."""
    hooks = [HookSpec.new() for _ in range(2)]
    job_id = await made(gateway, talk, hook=hooks[0].model_dump(mode="json"))
    bodies = [DONE, {"job_id": job_id, **DONE}]

    assert hooks[0].secrets != hooks[1].secrets
    assert [(await sent(gateway, job_id, body, secret=hooks[0].secrets[0])).status_code for body in bodies] == [
        400,
        200,
    ]


async def test_a_secret_is_changed_while_requests_come(gateway: KeyedGateway, talk: str) -> None:
    """A job may know two secrets, and a request may have several signatures, of which one must do."""
    first = await made(gateway, talk, hook={"secrets": [SECRET, OTHER]})
    second = await made(gateway, talk)
    body = json.dumps(DONE).encode()
    headers = signed(body)
    several = f"v1a,x nonsense v1,!! {signed(body, OTHER)['webhook-signature']} {headers['webhook-signature']}"

    assert (await sent(gateway, first, secret=OTHER)).status_code == 200
    assert (await sent(gateway, second, body, headers=headers | {"webhook-signature": several})).status_code == 200


@pytest.mark.parametrize("shift", [timedelta(minutes=-6), timedelta(minutes=6)])
async def test_a_request_is_taken_within_five_minutes(gateway: KeyedGateway, talk: str, shift: timedelta) -> None:
    """One of another time is 400, of a job that there is and of one that there is not."""
    job_id = await made(gateway, talk)
    for one in (job_id, "nothing"):
        answer = await sent(gateway, one, at=datetime.now(UTC) + shift)
        assert (answer.status_code, answer.json()["error_code"]) == (400, "invalid_request")
    assert (await job_of(gateway, job_id))["state"] == "waiting"


BIG = b'{"success": true, "result": "' + b"x" * 262_144 + b'"}'


@pytest.mark.parametrize(
    ("body", "change", "status"),
    [
        (b"{}", {}, 400),
        (b"", {}, 400),
        (b"[]", {}, 400),
        (b'{"success": "yes"}', {}, 400),
        (b'{"success": true, "error": "no"}', {}, 400),
        (b'{"success": false, "result": 1}', {}, 400),
        (b'{"success": true, "surprise": 1}', {}, 400),
        (b'{"success": true, "result": NaN}', {}, 400),
        (b'{"success": true}', {"content-type": "text/plain"}, 415),
        (b'{"success": true}', {"webhook-id": ""}, 400),
        (b'{"success": true}', {"webhook-timestamp": "soon"}, 400),
        (b'{"success": true}', {"webhook-id": "x" * 300}, 400),
        (BIG, {}, 413),
    ],
)
async def test_what_is_wrong_is_said_and_ends_nothing(
    gateway: KeyedGateway, talk: str, body: bytes, change: dict[str, str], status: int
) -> None:
    """A body that is signed and not as it should be, or headers that are not: one problem, and the job waits on."""
    job_id = await made(gateway, talk)
    answer = await sent(gateway, job_id, body, headers=signed(body) | change)

    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert (await job_of(gateway, job_id))["state"] == "waiting"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"hook": {"secrets": ["owls"]}}, 422),
        ({"hook": {"secrets": []}}, 400),
        ({"schedule": {"delay_seconds": 60}}, 422),
        ({"poll": {"tool_name": "owls.echo"}}, 422),
    ],
)
async def test_a_hook_that_cannot_be_is_refused(
    gateway: KeyedGateway, talk: str, fields: dict[str, Any], status: int
) -> None:
    """It has a secret of Standard Webhooks, and stands in the place of `poll` and `schedule`; no secret is in the answer."""
    body = {"hook": {"secrets": [SECRET]}, "conversation": {"conversation_id": talk}} | fields
    answer = await gateway.post("bob", "/jobs", body)

    assert answer.status_code == status
    assert SECRET not in answer.text
    assert "owls" not in answer.json()["detail"].replace("owls.echo", "")


async def test_nobody_is_shown_a_secret(gateway: KeyedGateway, talk: str) -> None:
    """Neither in the job, before and after its end, nor in what its conversation hears."""
    job_id = await made(gateway, talk)
    shown = [await gateway.get("bob", f"/jobs/{job_id}"), await gateway.get("bob", "/jobs")]
    await sent(gateway, job_id)
    shown.append(await gateway.get("bob", f"/jobs/{job_id}"))
    async with streaming(gateway, "bob", f"/conversations/{talk}/completions") as stream:
        heard = await stream.next()

    assert SECRET not in "".join(answer.text for answer in shown) + json.dumps(heard.data)
