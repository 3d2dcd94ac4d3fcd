"""What belongs to a key: its calls, its streams, and the names it may act in."""

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway
from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import ApiKeys, CreatedKey

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
