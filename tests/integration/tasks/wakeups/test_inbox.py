"""Wake-ups that are read and stay until they are confirmed, on a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from redis.asyncio import Redis

from support.workers.wakes import complete, wake
from toolfleet import Caller, Settings, SettingsError, ToolFleet
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.wakeups.events import wake_body
from toolfleet_tasks.wakeups.inbox import CompletionInbox, Entry, is_entry_id

ADA = Caller(user_id="ada")
KEY = "kJ3vR9wQ2mZx7LpT5bNc8YdF1gHs4VuAeXoPq6WiMzE="


@pytest.fixture
async def fleet(redis_url: str) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        yield fleet


async def read(inbox: CompletionInbox, count: int) -> list[Entry]:
    """The first ones, none of which is confirmed."""
    async with aclosing(inbox.follow()) as entries, asyncio.timeout(20):
        return [await anext(entries) for _ in range(count)]


async def test_what_is_not_confirmed_comes_again(fleet: ToolFleet, redis: Redis) -> None:
    """To every reader, in order; what is confirmed comes to none, and confirmed once more it is not there."""
    for job_id in ("job-1", "job-2", "job-3"):
        await complete(redis, job_id)
    inbox = await fleet.wakeups.inbox("talk-1", ADA)
    first = await read(inbox, 3)

    assert [entry.job_id for _, entry in first] == ["job-1", "job-2", "job-3"]
    assert await read(inbox, 3) == first
    assert await inbox.confirm(first[1][0])
    assert not await inbox.confirm(first[1][0])
    assert await read(inbox, 2) == [first[0], first[2]]
    assert await inbox.confirm_up_to(first[0][0]) == 1
    assert await read(inbox, 1) == [first[2]]


async def test_a_reader_that_waits_hears_of_what_comes(fleet: ToolFleet, redis: Redis) -> None:
    """It goes on behind what it has handed out."""
    await complete(redis, "job-1")
    inbox = await fleet.wakeups.inbox("talk-1", ADA)
    async with aclosing(inbox.follow()) as entries, asyncio.timeout(20):
        first = await anext(entries)
        waiting = asyncio.ensure_future(anext(entries))
        await complete(redis, "job-2")

        assert [first[1].job_id, (await waiting)[1].job_id] == ["job-1", "job-2"]


async def test_others_news_are_neither_shown_nor_confirmed(fleet: ToolFleet, redis: Redis) -> None:
    """Those of another user's jobs stay, and so do they for an id that is later than all."""
    await complete(redis, "job-1", user_id="bob")
    await complete(redis, "job-2")
    inbox = await fleet.wakeups.inbox("talk-1", ADA)
    ((own_id, own),) = await read(inbox, 1)

    assert own.job_id == "job-2"
    assert await inbox.confirm_up_to("9999999999999999-0") == 0
    assert await inbox.confirm_up_to(own_id) == 1
    assert await redis.xlen(Keys().completions("talk-1")) == 1
    of_bob = await fleet.wakeups.inbox("talk-1", Caller(user_id="bob"))
    assert [entry.job_id for _, entry in await read(of_bob, 1)] == ["job-1"]


async def test_a_fleet_that_signs_shows_nothing_that_is_forged(redis_url: str, redis: Redis) -> None:
    """What somebody else has written there is left out, and cannot be confirmed."""
    await complete(redis, "forged")
    await complete(redis, "job-1", body=Seal(KEY, purpose="job").sign(wake_body(wake("job-1"))))
    async with ToolFleet(settings=Settings(redis_url=redis_url, signing_key=KEY)) as fleet:
        inbox = await fleet.wakeups.inbox("talk-1", ADA)
        ((own_id, own),) = await read(inbox, 1)

        assert own.job_id == "job-1"
        assert await inbox.confirm_up_to(own_id) == 1
    assert await redis.xlen(Keys().completions("talk-1")) == 1


async def test_news_that_an_agent_has_read_are_gone(fleet: ToolFleet, redis: Redis) -> None:
    """Both read one stream: what the one is done with, the other does not get."""
    await complete(redis, "job-1")
    await complete(redis, "job-2")
    async with aclosing(fleet.wakeups.completions("talk-1")) as wakes, asyncio.timeout(20):
        assert (await anext(wakes)).job_id == "job-1"
        assert (await anext(wakes)).job_id == "job-2"  # with which it is done with the first
        inbox = await fleet.wakeups.inbox("talk-1", ADA)
        assert [entry.job_id for _, entry in await read(inbox, 1)] == ["job-2"]


async def test_where_a_core_is_woken_there_is_no_inbox(redis_url: str) -> None:
    """It says so, instead of waiting for ever."""
    settings = Settings(redis_url=redis_url, core_url="http://127.0.0.1:1", core_secret="whsec_" + "b3d" * 12)
    async with ToolFleet(settings=settings) as fleet:
        with pytest.raises(SettingsError, match="TOOLFLEET_CORE_URL"):
            await fleet.wakeups.inbox("talk-1", ADA)


@pytest.mark.parametrize("text", ["", "1", "-", "1-", "01-0", "1-1-1", "1_0", "x-0", "18446744073709551616-0"])
def test_what_is_no_entrys_id(text: str) -> None:
    """Redis would take some of it otherwise than it was meant."""
    assert not is_entry_id(text)
