"""`location`: a user's place in a conversation, which the agent's core names and no model does."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from modules.files import FileSettings
from modules.location import places
from modules.location.globe import Point, direction, kilometres
from modules.location.manifest import module_for
from modules.location.settings import LocationSettings
from support.fleet import TestBed
from support.module_server import ModuleServer
from support.modules.example_modules import serving_here
from support.worker_process import WorkerProcess
from toolfleet import Caller, Conversation, ToolCall, ToolFleet, ToolResult
from toolfleet.sdk import ModuleClient, ModuleResult

ADA = Caller(user_id="ada", permission="user")
HOME = {"name": "Berlin", "latitude": 52.52, "longitude": 13.405}
CHAT = {"platform": "chat", "platform_channel_id": "7", "platform_thread_id": "t1"}
NOT_SAID = "The user has not said in this conversation where they are; ask, and save the answer with set_place."


@pytest.fixture
async def module(tmp_path: Path) -> AsyncIterator[ModuleClient]:
    async with module_for(LocationSettings(), FileSettings(root=tmp_path)).client(user_id="ada") as client:
        yield client


async def said(module: ModuleClient, tool: str, where: dict[str, str], **arguments: Any) -> ModuleResult:
    """As the fleet sends it: what the core told of the conversation lies among the arguments."""
    return await module.call(tool, **arguments, **where)


async def test_a_place_is_known_in_the_channel_that_it_was_said_in(module: ModuleClient) -> None:
    """In all its threads; not in another channel or on another platform, not outside, and not for another user."""
    set_ = await said(module, "set_place", CHAT, **HOME)
    other_thread = await said(module, "where_am_i", {**CHAT, "platform_thread_id": "t2"})
    elsewhere = [{**CHAT, "platform_channel_id": "8"}, {**CHAT, "platform": "mail"}, {"platform": "chat"}, {}]

    assert other_thread.result == set_.result
    assert set_.result.pop("said_at").endswith("+00:00")
    assert set_.result == {"place": "Berlin", "latitude": 52.52, "longitude": 13.405}
    for where in elsewhere:
        assert (await said(module, "where_am_i", where)).error == NOT_SAID
    assert (await said(module, "where_am_i", CHAT, user_id="bob")).error == NOT_SAID


async def test_a_place_replaces_the_one_before(module: ModuleClient) -> None:
    """With its coordinates; outside of any platform there is a place as well."""
    await said(module, "set_place", {}, **HOME)
    for _ in range(2):
        await said(module, "set_place", {}, name="at home")
    now = (await said(module, "where_am_i", {})).result
    assert (now["place"], "latitude" in now) == ("at home", False)


async def test_a_place_is_shared_where_it_was_asked_for(module: ModuleClient) -> None:
    """The message says which conversation it is for; with coordinates there is a link."""
    await said(module, "set_place", CHAT, **HOME)
    shared = (await said(module, "share", CHAT)).result
    assert shared == {
        "text": "📍 Berlin: https://www.openstreetmap.org/?mlat=52.52000&mlon=13.40500#map=15/52.52000/13.40500",
        "platform": "chat",
        "channel": "7",
        "thread": "t1",
    }
    await said(module, "set_place", {}, name="at home")
    assert (await said(module, "share", {})).result["text"] == "📍 at home"


async def test_the_way_to_a_point_is_reckoned(module: ModuleClient) -> None:
    """As the crow flies; a place without coordinates is told as such."""
    await said(module, "set_place", CHAT, **HOME)
    paris = {"latitude": 48.8566, "longitude": 2.3522}
    assert (await said(module, "distance", CHAT, **paris)).result == {
        "from": "Berlin",
        "kilometres": 877.5,
        "direction": "south-west",
    }
    await said(module, "set_place", CHAT, name="at home")
    error = (await said(module, "distance", CHAT, **paris)).error
    assert error == "Only the name of the user's place is known, 'at home'; set_place with its coordinates."


async def test_a_place_is_forgotten(module: ModuleClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the user wishes, in that channel only; and by itself after thirty days."""
    await said(module, "set_place", CHAT, **HOME)
    await said(module, "set_place", {}, **HOME)
    replies = [(await said(module, "forget_place", CHAT)).result["forgotten"] for _ in range(2)]
    assert replies == [True, False]
    assert (await said(module, "where_am_i", {})).success

    monkeypatch.setattr(places, "_now", lambda: datetime.now(UTC) + timedelta(days=31))
    assert (await said(module, "where_am_i", {})).error == NOT_SAID


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"latitude": 1}, "Give latitude and longitude both, or neither."),
        ({"latitude": 91, "longitude": 0}, "latitude"),
        ({"latitude": 0, "longitude": -181}, "longitude"),
        ({"name": " "}, "is no place's name"),
        ({"name": "a\nb"}, "is no place's name"),
        ({"name": "x" * 201}, "200 characters"),
    ],
)
async def test_what_is_no_place_is_refused(module: ModuleClient, arguments: dict[str, object], words: str) -> None:
    """In one sentence, and nothing is remembered."""
    reply = await said(module, "set_place", CHAT, **{"name": "x", **arguments})
    assert words in (reply.error or "")
    assert (await said(module, "where_am_i", CHAT)).error == NOT_SAID


async def test_a_call_without_a_user_is_refused(module: ModuleClient) -> None:
    """Nobody is nowhere."""
    reply = await said(module, "where_am_i", CHAT, user_id="")
    assert reply.error == "Places belong to a user, and this call has no user_id."


@pytest.mark.parametrize(
    ("end", "kilometres_away", "way"),
    [
        (Point(0, 0), 0, "north"),
        (Point(0, 180), 20015.1, "east"),
        (Point(-90, 77), 10007.6, "south"),
        (Point(1, 1), 157.2, "north-east"),
        (Point(0, -1), 111.2, "west"),
    ],
)
def test_the_globe_is_round(end: Point, kilometres_away: float, way: str) -> None:
    """Also at its poles, and on its other side."""
    assert (round(kilometres(Point(0, 0), end), 1), direction(Point(0, 0), end)) == (kilometres_away, way)


@pytest.fixture
def bed(redis_url: str, tmp_path: Path) -> Iterator[TestBed]:
    (tmp_path / "logs").mkdir()
    with serving_here("location", tmp_path) as server:
        yield TestBed(redis_url, (ModuleServer("location", url=server.url),), tmp_path / "logs")


@pytest.fixture
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


async def test_the_conversation_is_what_the_core_says(bed: TestBed, worker: WorkerProcess) -> None:
    """Through a fleet: a model is not offered the platform's fields, and what it writes under their names counts nothing."""
    here, there = Conversation(platform="chat", platform_channel_id="7"), Conversation(platform="chat")

    async def call(tool: str, conversation: Conversation | None, **arguments: object) -> ToolResult:
        wish = ToolCall(tool_name=f"location.{tool}", arguments=arguments)
        return await fleet.call(wish, ADA, conversation=conversation)

    async with ToolFleet(settings=bed.settings) as fleet:
        offered = {name for tool in await fleet.tools(ADA) for name in (tool.input_schema or {})["properties"]}
        await call("set_place", here, **HOME, platform="forged", platform_channel_id="8")
        found, forged, outside = await asyncio.gather(
            call("where_am_i", here),
            call("where_am_i", there, platform_channel_id="7"),
            call("where_am_i", None, platform="chat", platform_channel_id="7"),
        )

    assert offered == {"name", "latitude", "longitude"}
    assert found.result["place"] == "Berlin"
    assert (forged.error, outside.error) == (NOT_SAID, NOT_SAID)
