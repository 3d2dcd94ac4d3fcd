"""Our message is the one that Celery and kombu would have written."""

import asyncio
import json
from base64 import b64decode
from collections.abc import Generator
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.settings import Settings
from toolfleet_tasks.app import FleetApp, make_app
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.envelope import (
    TASK,
    Label,
    args_shown,
    call_message,
    message,
    revocation_message,
    revocation_topic,
    sender,
)
from toolfleet_tasks.queues import queue_for

QUEUE = "tools.research"
ARGUMENTS = {"b": {"__type__": "datetime"}, "a": '🦉 "quoted" \\ \u2028', "na\u00efve\n": 2**70}

# Copies that kombu makes of what stands elsewhere, and a time that Redis's lists have no use for.
ONLY_KOMBUS = {"argsrepr", "kwargsrepr", "expiration"}


@pytest.fixture
def app(redis_url: str) -> Generator[FleetApp]:
    app = make_app(Settings(redis_url=redis_url, module_services={"research": "http://owls:1"}), stores_results=False)
    yield app
    app.close()


async def published_by_kombu(app: FleetApp, redis: Redis, call: PublishedCall) -> dict[str, Any]:
    await app.publisher.publish(call, seconds=10)
    app.publisher.close()
    return await taken(redis)


async def taken(redis: Redis) -> dict[str, Any]:
    return ours(str(await redis.rpop(QUEUE)))


def ours(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    found["body"] = json.loads(b64decode(found["body"]))
    return found


def first_message(call: PublishedCall, origin: str | None = None) -> str:
    origin = sender() if origin is None else origin
    return call_message(call, text=json_text.dump(call), origin=origin, now=call.published_at)


async def test_a_call_reads_as_if_kombu_had_published_it(app: FleetApp, redis: Redis) -> None:
    """Every key has the same value; but for the two ids that nobody reads, each publisher has its own."""
    call = published("research.search_docs", arguments=ARGUMENTS, effect="read")
    theirs, mine = await published_by_kombu(app, redis, call), ours(first_message(call))
    for each in (theirs, mine):
        properties = each["properties"]
        assert len(properties.pop("delivery_tag")) > 5
        assert isinstance(properties.pop("reply_to"), str)
    for key in ONLY_KOMBUS:
        theirs["properties"].pop(key)

    seconds, *begins_as = mine.pop("begin").split()
    assert (int(seconds) > 60, begins_as) == (True, ["read", "call-1"])
    assert mine == theirs


async def test_a_retry_reads_as_if_celery_had_published_it(app: FleetApp, redis: Redis) -> None:
    """The second attempt has the same id, counts one retry and is not begun before its time."""
    call, eta = published(), "2031-01-02T03:04:05.678900+00:00"
    app.send_task(
        TASK,
        task_id=call.call_id,
        args=["x"],
        queue=QUEUE,
        retries=1,
        eta=eta,
        shadow=call.tool_name,
        time_limit=40,
        soft_time_limit=31,
        argsrepr="(query=…)",
        kwargsrepr="{}",
    )
    label = Label(call.call_id, call.tool_name, args_shown(call.arguments), QUEUE, (31, 40))
    theirs, mine = await taken(redis), ours(message("x", label, origin=sender(), retries=1, eta=eta))

    assert (mine["headers"], mine["body"]) == (theirs["headers"], theirs["body"])
    assert mine["headers"]["retries"] == 1
    assert mine["properties"]["delivery_tag"] != ours(first_message(call))["properties"]["delivery_tag"]


def test_of_very_many_names_some_are_shown() -> None:
    """And of very long ones a part: they travel beside the call."""
    assert args_shown({"b": 1, "a": 2}) == "(a=…, b=…)"
    assert args_shown({f"n{number}": 1 for number in range(1_000)}).endswith("=…, …)")
    assert len(args_shown({"n" * 10**6: 1})) < 3_000


@pytest.mark.parametrize("limit", [None, 0.5, 40])
def test_limits_are_json(limit: Any) -> None:
    """A message that others wrote may have none, and its retry has none, either."""
    found = ours(message("x", Label("c", "owls.count", "()", QUEUE, (limit, limit)), origin=""))

    assert found["headers"]["timelimit"] == [limit, limit]


def test_a_message_carries_its_text_as_it_is() -> None:
    """It may be signed: not a byte of it changes on its way."""
    text = 'eyJ."\\🦉\u2028.x'

    assert ours(call_message(published(), text=text, origin="", now=0))["body"][0] == [text]


async def test_a_revocation_reads_as_if_celery_had_sent_it(app: FleetApp, redis: Redis) -> None:
    """The same order on the same channel; only its number differs."""
    async with redis.pubsub() as ear:
        await ear.subscribe(revocation_topic(0))
        await app.publisher.revoke("c1")
        app.publisher.close()
        heard: dict[str, Any] = {}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while heard.get("type") != "message":
                heard = await ear.get_message(timeout=PATIENCE_SECONDS) or {}
    theirs, mine = ours(heard["data"]), ours(revocation_message(["c1"]))
    for each in (theirs, mine):
        each["properties"].pop("delivery_tag")

    assert mine == theirs


def test_the_task_is_the_one_that_workers_have(app: FleetApp) -> None:
    """It is registered under this name."""
    assert TASK in app.tasks


@pytest.mark.parametrize("hostile", ['"', "\\", "\x00", "\ud800", "🦉", '"}],"x":[{"'])
def test_no_text_breaks_out_of_its_place(hostile: str) -> None:
    """Names and values of arguments are data, whatever they hold."""
    call = published(f"research.{hostile}", call_id=hostile, arguments={hostile: hostile})
    label = Label(hostile, hostile, hostile, hostile, (2, 3))
    first = ours(first_message(call, hostile))
    again = ours(message(hostile, label, origin=hostile, reply_to=hostile, retries=1, eta=hostile))

    assert json.loads(first["body"][0][0])["arguments"] == {hostile: hostile}
    assert first["headers"]["shadow"] == f"research.{hostile}"
    assert first["properties"]["delivery_info"]["routing_key"] == queue_for(call)
    assert again["properties"]["delivery_info"]["routing_key"] == hostile
    assert again["body"][0] == [hostile]
    assert {again["headers"][name] for name in ("id", "shadow", "argsrepr", "eta", "origin")} == {hostile}
    assert again["properties"]["reply_to"] == hostile
