"""Calls over REST: begun in one gateway, followed, answered and cancelled in another; and what belongs to a key."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway
from support.module_server import ModuleServer, holding
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import ApiKeys, CreatedKey

Json = dict[str, Any]


async def test_a_call_brings_its_result(here: httpx.AsyncClient) -> None:
    """The answer is the tool's result, as a Python agent has it."""
    answer = await here.post("/calls", json={"tool_name": "owls.echo", "arguments": {"a": 1}})

    assert answer.status_code == 200, answer.text
    assert answer.json()["success"] is True
    assert answer.json()["result"] == {"a": 1}
    assert answer.json()["audit"]["attempts"] == 1


async def test_a_tools_failure_is_a_result(here: httpx.AsyncClient) -> None:
    """The request has worked: the status is 200, and the result says that the tool failed."""
    answer = await here.post("/calls", json={"tool_name": "owls.fail"})

    assert answer.status_code == 200
    assert (answer.json()["success"], answer.json()["error_code"]) == (False, "module_error")


REFUSED = [
    ({"tool_name": "echo"}, 400, "invalid_tool_name"),
    ({"tool_name": "owls.ecko"}, 404, "unknown_tool"),
    ({"tool_name": "jays.echo"}, 404, "unknown_module"),
    ({"tool_name": "owls.echo", "tool_version": "9"}, 409, "version_mismatch"),
    ({"tool_name": "owls.echo", "arguments": {"a": "x" * 2**20}}, 422, "invalid_arguments"),
]


@pytest.mark.parametrize(("body", "status", "code"), REFUSED, ids=[code for *_, code in REFUSED])
async def test_a_call_that_is_in_no_queue_is_a_problem(
    here: httpx.AsyncClient, owls: ModuleServer, body: Json, status: int, code: str
) -> None:
    """Its error code decides the status, and the hint for the model is there."""
    answer = await here.post("/calls", json=body)

    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["error_code"]) == (status, code)
    assert (answer.json()["effect_state"], owls.requests) == ("none", [])
    assert answer.json()["hint"]


async def test_what_is_begun_here_is_followed_there(
    here: httpx.AsyncClient, there: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """A gateway that has begun nothing says where the call is, and brings its result once there is one."""
    with holding(owls, "nap"):
        begun = await here.post(
            "/calls", json={"tool_name": "owls.nap", "arguments": {"seconds": 0}}, headers={"Prefer": "respond-async"}
        )
        assert begun.status_code == 202
        assert begun.headers["preference-applied"] == "respond-async"
        location = begun.headers["location"]
        assert location == f"/calls/{begun.json()['call_id']}"
        state = (await there.get(location)).json()

    assert (state["call_id"], state["tool_name"], state["result"]) == (begun.json()["call_id"], "owls.nap", None)
    assert state["state"] in {"queued", "running"}

    ended = (await there.get(location, headers={"Prefer": "wait=20"})).json()
    assert (ended["state"], ended["result"]["result"]) == ("done", "awake")
    assert (await here.get(location)).json() == ended


async def test_a_wait_that_is_over_is_a_202(here: httpx.AsyncClient) -> None:
    """Whoever waits for less than the call takes learns where to follow it."""
    answer = await here.post(
        "/calls", json={"tool_name": "owls.nap", "arguments": {"seconds": 30}}, headers={"Prefer": "wait=1"}
    )

    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=1")
    assert (await here.delete(answer.headers["location"])).json()["result"]["error_code"] == "cancelled"


async def test_a_client_may_wait_for_five_minutes(here: httpx.AsyncClient, owls: ModuleServer) -> None:
    """Whatever it asks for: each request that waits holds a connection."""
    answer = await here.post(
        "/calls", json={"tool_name": "owls.echo", "arguments": {"text": "hoo"}}, headers={"Prefer": "wait=999999"}
    )

    assert (answer.status_code, answer.headers["preference-applied"]) == (200, "wait=300")


async def test_what_is_begun_here_is_cancelled_there(
    here: httpx.AsyncClient, there: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """The running call is interrupted, both say how it ended, and a second cancelling changes nothing."""
    location = await _begun(here, "owls.nap", seconds=30)
    await wait_until(lambda: owls.running, "the call runs")

    cancelled = await there.delete(location)

    assert cancelled.status_code == 200, cancelled.text
    assert (cancelled.json()["state"], cancelled.json()["result"]["error_code"]) == ("done", "cancelled")
    await wait_until(lambda: not owls.running, "the module was told")
    assert (await here.delete(location)).json()["result"]["error"] == cancelled.json()["result"]["error"]
    assert (await here.get(location)).json()["result"]["error_code"] == "cancelled"


async def test_a_flood_of_cancels_ends_a_call_once(
    here: httpx.AsyncClient, there: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """Each is answered with how the call ended, and one end is what all of them say."""
    location = await _begun(here, "owls.nap", seconds=30)
    await wait_until(lambda: owls.running, "the call runs")

    answers = await asyncio.gather(*(client.delete(location) for client in (here, there) * 25))

    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["result"]["error_code"] for answer in answers} == {"cancelled"}


async def test_what_is_begun_here_is_streamed_there(here: httpx.AsyncClient, there: httpx.AsyncClient) -> None:
    """The stream ends with the call's end. Who has that is told not to come again, by 204 as `EventSource` has it; others get it."""
    location = await _begun(here, "owls.nap", seconds=0.5)

    events = await _events(there, location)
    last = {"Last-Event-ID": events[-1]["id"]}
    again = [await client.get(f"{location}/events", headers=last) for client in (here, there)]
    by_another_id = await _events(there, location, last=f"{events[-1]['id'].partition(':')[0]}:{'0' * 16}")

    assert [event["event"] for event in events] == ["end"]
    assert events[-1]["data"]["result"] == "awake"
    assert [(answer.status_code, answer.content) for answer in again] == [(204, b"")] * 2
    assert await _events(here, location) == by_another_id == events


async def test_a_repeat_with_its_key_runs_once(
    here: httpx.AsyncClient, there: httpx.AsyncClient, owls: ModuleServer
) -> None:
    """Two gateways that are asked at the same time with one key bring the first call's result."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    body = {"tool_name": "owls.nap_once", "arguments": {"seconds": 0.3}}

    answers = await asyncio.gather(*(client.post("/calls", json=body, headers=headers) for client in (here, there)))
    later = await there.post("/calls", json=body, headers=headers)

    assert [answer.status_code for answer in (*answers, later)] == [200, 200, 200]
    ids = {answer.json()["audit"]["call_id"] for answer in (*answers, later)}
    assert len(ids) == 1
    assert len(owls.calls("nap_once")) == 1
    assert (await here.get(f"/calls/{ids.pop()}")).json()["result"] == later.json()


async def test_a_key_stands_for_one_call(here: httpx.AsyncClient) -> None:
    """The same key with other arguments is a conflict."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    await here.post("/calls", json={"tool_name": "owls.echo", "arguments": {"a": 1}}, headers=headers)

    answer = await here.post("/calls", json={"tool_name": "owls.echo", "arguments": {"a": 2}}, headers=headers)

    assert (answer.status_code, answer.json()["error_code"]) == (409, "conflict")


async def test_each_call_of_a_batch_has_its_own_answer(here: httpx.AsyncClient) -> None:
    """One that is refused keeps no other from running."""
    calls = [
        {"tool_name": "owls.echo", "arguments": {"n": 1}},
        {"tool_name": "owls.ecko"},
        {"tool_name": "owls.nap", "arguments": {"seconds": 30}},
    ]

    answer = await here.post("/calls/batch", json={"calls": calls}, headers={"Prefer": "wait=4"})

    assert answer.status_code == 200, answer.text
    echoed, unknown, napping = answer.json()["calls"]
    assert (echoed["status"], echoed["result"]["result"]) == (200, {"n": 1})
    assert (unknown["status"], unknown["problem"]["error_code"]) == (404, "unknown_tool")
    assert (napping["status"], napping["call"]["state"]) == (202, "queued")
    await here.delete(f"/calls/{napping['call']['call_id']}")


async def test_each_call_of_a_batch_has_its_own_key(here: httpx.AsyncClient, owls: ModuleServer) -> None:
    """A batch that is sent again joins the calls of the first one."""
    calls = [{"tool_name": "owls.echo", "arguments": {"n": n}, "idempotency_key": str(uuid.uuid4())} for n in range(2)]
    answers = [await here.post("/calls/batch", json={"calls": calls}, headers={"Prefer": "wait=4"}) for _ in range(2)]
    first, again = ([call["result"] for call in answer.json()["calls"]] for answer in answers)

    assert first == again
    assert len(owls.calls("echo")) == 2


async def test_a_modules_tool_is_executed_through_the_queue(here: httpx.AsyncClient) -> None:
    """With the module's name before it or without; another module's is refused."""
    path = "/api/modules/owls/execute"
    answers = [await here.post(path, json={"tool_name": name}) for name in ("echo", "owls.echo", "jays.echo")]

    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert answers[0].json()["audit"]["worker"]


async def test_a_client_that_goes_away_does_not_cancel_its_call(here: httpx.AsyncClient, owls: ModuleServer) -> None:
    """The call runs to its end, and its result is there for whoever asks with the same key."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    body = {"tool_name": "owls.nap_once", "arguments": {"seconds": 1}}
    asking = asyncio.create_task(here.post("/calls", json=body, headers=headers))
    await wait_until(lambda: owls.running, "the call runs")
    asking.cancel()

    answer = await here.post("/calls", json=body, headers=headers)

    assert (answer.status_code, answer.json()["result"]) == (200, "awake")
    assert (len(owls.calls("nap_once")), owls.interrupted) == (1, [])


async def _begun(client: httpx.AsyncClient, tool: str, **arguments: object) -> str:
    answer = await client.post(
        "/calls", json={"tool_name": tool, "arguments": arguments}, headers={"Prefer": "respond-async"}
    )
    assert answer.status_code == 202, answer.text
    return str(answer.headers["location"])


async def _events(client: httpx.AsyncClient, location: str, *, last: str | None = None) -> list[Json]:
    headers = {} if last is None else {"Last-Event-ID": last}
    async with client.stream("GET", f"{location}/events", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        text = (await answer.aread()).decode()
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in fields:
            found.append({"id": fields["id"], "event": fields["event"], "data": json.loads(fields["data"])})
    return found


_NAP = {"tool_name": "owls.nap", "arguments": {"seconds": 30}}
_ASYNC = {"Prefer": "respond-async"}


@pytest.fixture
def keys(bed: TestBed) -> Iterator[ApiKeys]:
    """The keys of the fleet. Those that a test has made are revoked in the end: others have gateways with keys there, too."""
    keys = ApiKeys.of(bed.settings)
    before = {record.key.id for record in keys.records()}
    yield keys
    keys.revoke([record.key.id for record in keys.records() if record.key.id not in before])
    keys.close()


def _key(keys: ApiKeys, user_id: str, **more: object) -> CreatedKey:
    facts = {"user_id": user_id, "permission": "user", "allowed_modules": "*", **more}
    return keys.create(KeyDraft.model_validate(facts), COMMAND_LINE)


async def test_a_foreign_call_looks_like_none(one: Gateway, two: Gateway, keys: ApiKeys, owls: ModuleServer) -> None:
    """Neither its state, its stream nor its end is somebody else's; the answer is letter for letter that to an unknown id."""
    adas, bobs = _key(keys, "ada"), _key(keys, "bob")
    async with one.client(adas.text) as ada, two.client(bobs.text) as bob:
        location = (await ada.post("/calls", json=_NAP, headers=_ASYNC)).headers["location"]
        unknown = f"/calls/{uuid.UUID(int=7)}"
        for method, end in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
            foreign, none = [await bob.request(method, f"{path}{end}") for path in (location, unknown)]
            assert foreign.status_code == none.status_code == 404
            assert foreign.text.replace(location, unknown) == none.text
        assert (await ada.get(location)).json()["state"] != "done"
        assert (await ada.delete(location)).json()["result"]["error_code"] == "cancelled"


async def test_a_narrower_key_sees_less(one: Gateway, keys: ApiKeys, owls: ModuleServer) -> None:
    """A call of the same user to a module that the key does not name looks like none, and cannot be taken back with it."""
    wide, narrow = _key(keys, "ada"), _key(keys, "ada", allowed_modules=["research"])
    async with one.client(wide.text) as whole, one.client(narrow.text) as part:
        location = (await whole.post("/calls", json=_NAP, headers=_ASYNC)).headers["location"]
        answers = [await part.get(location), await part.delete(location), await part.get(f"{location}/events")]
        assert [answer.status_code for answer in answers] == [404, 404, 404]
        assert (await whole.get(location)).json()["state"] != "done"
        assert (await whole.delete(location)).json()["result"]["error_code"] == "cancelled"


async def test_a_key_acts_for_others_only_if_it_may(one: Gateway, keys: ApiKeys, owls: ModuleServer) -> None:
    """One that may has its calls run in the other's name, and follows them as its own."""
    mays, may_nots = _key(keys, "shop", acts_for_others=True), _key(keys, "bob")
    body = {"tool_name": "owls.echo", "user_id": "ada"}
    async with one.client(mays.text) as may, one.client(may_nots.text) as may_not:
        refused = await may_not.post("/calls", json=body)
        owls.forget()
        called = await may.post("/calls", json=body)
        followed = await may.get(f"/calls/{called.json()['audit']['call_id']}")

    assert (refused.status_code, refused.json()["error_code"]) == (403, "acts_for_others")
    assert (called.status_code, owls.calls("echo")[0]["user_id"]) == (200, "ada")
    assert followed.json()["state"] == "done"


async def test_the_streams_of_a_revoked_key_end(one: Gateway, keys: ApiKeys) -> None:
    """The last event says why, and the key opens nothing more."""
    made, another = _key(keys, "ada"), _key(keys, "ada")
    async with one.client(made.text) as ada, one.client(another.text) as ada_still:
        location = (await ada.post("/calls", json=_NAP, headers=_ASYNC)).headers["location"]
        async with ada.stream("GET", f"{location}/events") as following:
            assert following.status_code == 200
            keys.revoke([made.key.id])
            text = (await following.aread()).decode()
        again = await ada.get(location)
        assert (await ada_still.delete(location)).status_code == 200  # nobody after this test waits for its end

    assert text.endswith("event: revoked\ndata: {}\n\n")
    assert (again.status_code, again.json()["error_code"]) == (401, "invalid_key")


async def test_a_revoked_key_calls_nothing_more(one: Gateway, two: Gateway, keys: ApiKeys, owls: ModuleServer) -> None:
    """Though its caller's calls were decided already: a gateway looks at the key before each, and others go on."""
    made, another = _key(keys, "ada"), _key(keys, "ada")
    body = {"tool_name": "owls.echo"}
    async with one.client(made.text) as ada, two.client(made.text) as there, one.client(another.text) as ada_still:
        before = [(await client.post("/calls", json=body)).status_code for client in (ada, ada, there, there)]
        keys.revoke([made.key.id])
        async with asyncio.timeout(PATIENCE_SECONDS):
            for client in (ada, there):
                while (refused := await client.post("/calls", json=body)).status_code == 200:
                    pass  # until the gateway has heard of it
                assert (refused.status_code, refused.json()["error_code"]) == (401, "invalid_key")
        owls.forget()
        after = [(await client.post("/calls", json=body)).status_code for client in (ada, there, ada_still)]

    assert (before, after, len(owls.calls("echo"))) == ([200] * 4, [401, 401, 200], 1)


async def test_a_key_has_so_many_streams(one: Gateway, two: Gateway, keys: ApiKeys) -> None:
    """Over all gateways: one more is refused, and may be opened once another has ended."""
    made = _key(keys, "ada", streams=1)
    async with one.client(made.text) as here, two.client(made.text) as there:
        location = (await here.post("/calls", json=_NAP, headers=_ASYNC)).headers["location"]
        async with here.stream("GET", f"{location}/events") as first:
            assert first.status_code == 200
            second = await there.get(f"{location}/events")
        assert (second.status_code, second.json()["error_code"]) == (429, "too_many_streams")
        await there.delete(location)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (third := await there.get(f"{location}/events")).status_code != 200:
                pass  # until the gateway has seen that its client has gone
        assert "event: end" in third.text
