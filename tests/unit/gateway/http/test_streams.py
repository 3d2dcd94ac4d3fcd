"""A stream of events tells that it stands, ends with its gateway, and does not wait for a client that reads nothing; and what routes answer is JSON."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.types import Message

from support.waiting import wait_until
from toolfleet_gateway.auth.authenticator import Authenticator
from toolfleet_gateway.auth.identity import AuthRefused, Identity
from toolfleet_gateway.http import streams as module
from toolfleet_gateway.http.problems import Problem
from toolfleet_gateway.http.routes import json_answer, json_text
from toolfleet_gateway.http.streams import EventStream, OpenStreams, ServerSentEvent
from toolfleet_registry.contracts import Caller
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.aio import Closing

ADA = Identity(Caller(user_id="ada"), key_id="k")
SCOPE = {"type": "http", "method": "GET", "path": "/"}


class Limits:
    """No limit at all."""

    def stream(self, _: Identity) -> Any:
        return asyncio.Semaphore(1)


class Keys:
    """Says of all keys what it is told to say."""

    is_good: bool | None = True

    async def is_live(self, _: Identity) -> bool:
        if self.is_good is None:
            raise AuthRefused("auth-unavailable", "away")
        return self.is_good


class Client:
    """Takes what it is sent, unless it is stuck, until it goes."""

    def __init__(self, *, is_stuck: bool = False) -> None:
        self.sent = b""
        self.gone = asyncio.Event()
        self.was_cut = False
        self._is_stuck = is_stuck

    async def send(self, message: Message) -> None:
        self.sent += message.get("body", b"")
        if self._is_stuck and message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    def cut(self) -> None:
        self.was_cut = True

    async def follow(self, stream: EventStream) -> None:
        await stream({**SCOPE, "toolfleet.abort": self.cut}, self.receive, self.send)


class Events:
    """One event, then silence; knows when it was given up."""

    def __init__(self) -> None:
        self.has_ended = False

    async def read(self) -> AsyncGenerator[ServerSentEvent]:
        try:
            yield ServerSentEvent("progress", '{"fraction":0.5}', "c:1")
            await asyncio.Event().wait()
        finally:
            self.has_ended = True


def _streams(closing: Closing, *, keys: Keys | Authenticator | None = None, most: int = 1) -> OpenStreams:
    return OpenStreams(most, closing, keys or Keys(), Limits())  # type: ignore[arg-type] # all that it asks of them


async def test_a_silent_stream_says_that_it_stands() -> None:
    """An event comes as it is, comments follow, and the events are given up when the client goes."""
    client, events, streams = Client(), Events(), _streams(Closing())
    following = asyncio.create_task(client.follow(EventStream(ADA, events.read(), streams, heartbeat_seconds=0.01)))
    await wait_until(lambda: client.sent.count(b": still here\n\n") > 2, "it has said so")
    client.gone.set()
    await following

    assert client.sent.startswith(b'retry: 1000\n\nid: c:1\nevent: progress\ndata: {"fraction":0.5}\n\n: still')
    assert (events.has_ended, streams.count) == (True, 0)


async def test_the_last_event_of_a_gateway_that_ends() -> None:
    """A client hears that it shall come again, also one that comes only then: its balancer may not know yet."""
    closing, client, late = Closing(), Client(), Client()
    streams = _streams(closing, most=2)
    following = asyncio.create_task(client.follow(EventStream(ADA, Events().read(), streams)))
    await wait_until(lambda: b"progress" in client.sent, "it streams")
    closing.begin()
    await following

    assert client.sent.endswith(b"event: closing\ndata: {}\n\n")
    await late.follow(EventStream(ADA, Events().read(), streams))
    assert late.sent.endswith(b"event: closing\ndata: {}\n\n")


async def test_there_are_so_many_streams() -> None:
    """One more is refused, with a problem."""
    client, streams = Client(), _streams(Closing())
    following = asyncio.create_task(client.follow(EventStream(ADA, Events().read(), streams)))
    await wait_until(lambda: streams.count == 1, "it is open")

    with pytest.raises(Problem) as refused:
        await Client().follow(EventStream(ADA, Events().read(), streams))

    assert (refused.value.status, refused.value.error_code) == (503, "busy")
    client.gone.set()
    await following


@pytest.mark.parametrize(
    ("who", "most", "opened"),
    [
        (ADA, 6, 3),
        (ADA, 1, 1),
        (replace(ADA, streams=5), 6, 5),
        (replace(ADA, streams=1), 6, 6),  # counted over all gateways, elsewhere
    ],
)
async def test_a_key_has_half_of_the_streams(who: Identity, most: int, opened: int) -> None:
    """A key without a limit of its own leaves the other half to other keys, and has its share again when its streams end."""
    other = replace(ADA, key_id="other")
    for _ in range(2):
        streams = _streams(Closing(), most=most)
        async with AsyncExitStack() as stack:
            for _ in range(opened):
                await stack.enter_async_context(streams.place(who))
            if who.streams is None and most > 1:
                with pytest.raises(AuthRefused) as refused:
                    await stack.enter_async_context(streams.place(who))
                assert (refused.value.status, refused.value.problem) == (429, "too-many-streams")
                await stack.enter_async_context(streams.place(other))
        assert streams.count == 0


async def test_a_client_that_reads_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is aborted: closing it would wait for the client, too."""
    monkeypatch.setattr(module, "_SEND_SECONDS", 0.05)
    client, events, streams = Client(is_stuck=True), Events(), _streams(Closing())

    await client.follow(EventStream(ADA, events.read(), streams))

    assert (client.was_cut, streams.count) == (True, 0)


@pytest.mark.parametrize("is_good", [False, None])
async def test_the_streams_of_a_bad_key_end(monkeypatch: pytest.MonkeyPatch, *, is_good: bool | None) -> None:
    """Those of a key that was revoked; not those of one of which nothing can be said now."""
    monkeypatch.setattr("toolfleet_gateway.http.streams._WATCH_SECONDS", 0.01)
    keys, client = Keys(), Client()
    streams = _streams(Closing(), keys=keys)
    watching = asyncio.create_task(streams.watch())
    following = asyncio.create_task(client.follow(EventStream(ADA, Events().read(), streams, heartbeat_seconds=0.01)))
    await wait_until(lambda: b"progress" in client.sent, "it streams")
    heartbeats = client.sent.count(b": still")
    keys.is_good = is_good
    if is_good is None:
        await wait_until(lambda: client.sent.count(b": still") > heartbeats + 5, "it goes on")
        client.gone.set()
    await following
    watching.cancel()

    assert client.sent.endswith(b"event: revoked\ndata: {}\n\n") == (is_good is False)


@pytest.mark.parametrize("order", [("short", "long"), ("long", "short"), ("short", "twin", "long")])
async def test_a_stream_ends_with_its_own_token(monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]) -> None:
    """Tokens of one subject that end at different times end their own streams only, whichever stream was opened first."""
    monkeypatch.setattr("toolfleet_gateway.http.streams._WATCH_SECONDS", 0.01)
    began, ahead = fleet_clock.now(), 0.0
    monkeypatch.setattr(fleet_clock, "now", lambda: began + ahead)
    ends = {"short": began + 4, "twin": began + 4, "long": began + 600}
    streams = _streams(Closing(), keys=Authenticator(None), most=6)  # type: ignore[arg-type] # tokens need no keys
    watching = asyncio.create_task(streams.watch())
    clients, following = {name: Client() for name in order}, dict[str, asyncio.Task[None]]()
    for name in order:
        who = Identity(Caller(user_id="ada"), subject="ada", expires_at=ends[name])
        stream = EventStream(who, Events().read(), streams, heartbeat_seconds=0.01)
        following[name] = asyncio.create_task(clients[name].follow(stream))
        await wait_until(lambda name=name: b"progress" in clients[name].sent, "it streams")  # type: ignore[misc]

    ahead = 5.0
    for name in set(order) - {"long"}:
        await following[name]
    beats = clients["long"].sent.count(b": still")
    await wait_until(lambda: clients["long"].sent.count(b": still") > beats + 5, "it goes on")
    ahead = 601.0
    await following["long"]
    watching.cancel()

    assert {name: client.sent.count(b"event: revoked") for name, client in clients.items()} == dict.fromkeys(order, 1)
    assert streams.count == 0


class Said(BaseModel):
    text: str
    value: Any = None


HALF = "\ud83e"


def test_half_a_surrogate_pair_is_answered_as_no_character() -> None:
    """No UTF-8 has one; a program that cuts texts by their length has sent it. Whole pairs, and all else, stay."""
    said = Said(text=f"an owl {HALF}", value={HALF: ["🦉", HALF], "none": None})

    assert json.loads(bytes(json_answer(said).body)) == {
        "text": "an owl \ufffd",
        "value": {"\ufffd": ["🦉", "\ufffd"], "none": None},
    }


def test_what_is_none_is_left_out_or_not() -> None:
    """As the route wants it, also of a model with such a half."""
    for text in ("owl", HALF):
        assert json.loads(json_text(Said(text=text))).keys() == {"text"}
        assert json.loads(json_text(Said(text=text), with_none=True)).keys() == {"text", "value"}
