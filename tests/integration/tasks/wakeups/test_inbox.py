"""Wake-ups that are read and stay until they are confirmed, on a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from support.waiting import PATIENCE_SECONDS, wait_until_answered
from support.workers.wakes import complete, complete_many, wake
from toolfleet import Caller, Settings, SettingsError, ToolFleet
from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.wakeups.events import wake_body
from toolfleet_tasks.wakeups.service import CompletionInbox, Entry, is_entry_id

ADA = Caller(user_id="ada")
OF_ALL, OF_ADA = Keys().completions("talk-1"), Keys().completions_of("talk-1", "ada")
KEY = "kJ3vR9wQ2mZx7LpT5bNc8YdF1gHs4VuAeXoPq6WiMzE="


@pytest.fixture
async def fleet(redis_url: str) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        yield fleet


async def entries_of(inbox: CompletionInbox, count: int) -> list[Entry]:
    """The first entries, none of which is confirmed."""
    async with aclosing(inbox.follow()) as entries, asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(entries) for _ in range(count)]


async def read(inbox: CompletionInbox, count: int) -> list[tuple[str, WakeUp]]:
    """The same where all of them are wake-ups."""
    found = await entries_of(inbox, count)
    return [(entry_id, entry) for entry_id, entry in found if isinstance(entry, WakeUp)]


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
    async with aclosing(inbox.follow()) as entries, asyncio.timeout(PATIENCE_SECONDS):
        first = await anext(entries)
        waiting = asyncio.ensure_future(anext(entries))
        await complete(redis, "job-2")

        assert [first[1], (await waiting)[1]] == [wake("job-1"), wake("job-2")]


async def test_others_news_are_neither_shown_nor_confirmed(fleet: ToolFleet, redis: Redis) -> None:
    """Those of another user's jobs stay, and so do they for an id that is later than all."""
    await complete(redis, "job-1", user_id="bob")
    await complete(redis, "job-2")
    inbox = await fleet.wakeups.inbox("talk-1", ADA)
    ((own_id, own),) = await read(inbox, 1)

    assert own.job_id == "job-2"
    assert await inbox.confirm_up_to("9999999999999999-0") == 0
    assert await inbox.confirm_up_to(own_id) == 1
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
    assert await redis.xlen(OF_ADA) == 1


async def test_news_that_an_agent_has_read_are_gone(fleet: ToolFleet, redis: Redis) -> None:
    """Both read one stream: what the one is done with, the other does not get."""
    await complete(redis, "job-1")
    await complete(redis, "job-2")
    async with aclosing(fleet.wakeups.completions("talk-1")) as wakes, asyncio.timeout(PATIENCE_SECONDS):
        assert (await anext(wakes)).job_id == "job-1"
        assert (await anext(wakes)).job_id == "job-2"  # with which it is done with the first
        inbox = await fleet.wakeups.inbox("talk-1", ADA)
        assert [entry.job_id for _, entry in await read(inbox, 1)] == ["job-2"]


async def test_what_older_processes_have_written_is_read(fleet: ToolFleet, redis: Redis) -> None:
    """In the order in which it came, beside what newer ones write; others' entries stay, and what is confirmed is gone."""
    await complete(redis, "job-1", is_older=True)
    await complete(redis, "bobs", is_older=True, user_id="bob")
    await complete(redis, "job-2", is_older=True)
    inbox = await fleet.wakeups.inbox("talk-1", ADA)
    async with aclosing(inbox.follow()) as entries, asyncio.timeout(PATIENCE_SECONDS):
        first = [await anext(entries), await anext(entries)]
        await complete(redis, "job-3")
        first.append(await anext(entries))
        await complete(redis, "job-4", is_older=True)
        first.append(await anext(entries))

    assert [entry for _, entry in first] == [wake(f"job-{number}") for number in range(1, 5)]
    assert await entries_of(inbox, 4) == first
    assert await inbox.confirm(first[1][0])
    assert await inbox.confirm_up_to(first[2][0]) == 2
    assert await entries_of(inbox, 1) == first[3:]
    assert [await redis.xlen(key) for key in (OF_ALL, OF_ADA)] == [1, 1]
    assert await redis.ttl(OF_ADA) > 0


async def later_than_all(redis: Redis) -> None:
    """Return once entries get ids that are in none of the streams yet: they begin with Redis's milliseconds."""
    newest: Any = await redis.xrevrange(OF_ADA, count=1)
    last = int(newest[0][0].partition("-")[0])

    async def has_passed() -> bool:
        seconds, microseconds = await redis.time()
        return seconds * 1000 + microseconds // 1000 > last

    await wait_until_answered(has_passed, "a millisecond has passed")


async def test_an_id_that_is_in_both_streams_confirms_nothing(fleet: ToolFleet, redis: Redis) -> None:
    """Whether an older gateway has shown it, or this one, cannot be told: what nobody has seen is never removed."""
    await complete(redis, "newer")
    (entry_id, _), *_ = cast("list[tuple[str, Any]]", await redis.xrange(OF_ADA))
    await complete(redis, "older", is_older=True)
    (_, fields), *_ = cast("list[tuple[str, Any]]", await redis.xrange(OF_ALL))
    await redis.delete(OF_ALL)
    await redis.xadd(OF_ALL, fields, id=entry_id)
    await redis.expire(OF_ALL, 60)
    inbox = await fleet.wakeups.inbox("talk-1", ADA)

    assert await inbox.confirm_up_to(entry_id) == 0
    assert not await inbox.confirm(entry_id)
    assert sorted(str(entry) for _, entry in await entries_of(inbox, 2)) == sorted(
        map(str, map(wake, ("newer", "older")))
    )


async def test_an_older_gateways_id_confirms_what_that_has_shown(fleet: ToolFleet, redis: Redis) -> None:
    """It has shown nothing of a user's own stream: what lies there comes, whatever its id is, and what cannot be told comes again."""
    await complete(redis, "older-1", is_older=True)
    await complete(redis, "newer")
    await later_than_all(redis)
    await complete(redis, "older-2", is_older=True)
    await complete(redis, "older-3", is_older=True)
    lying: Any = await redis.xrange(OF_ALL)
    ids = [entry_id for entry_id, _ in lying]
    inbox = await fleet.wakeups.inbox("talk-1", ADA)

    assert await inbox.confirm_up_to(ids[1]) == 2
    assert await inbox.confirm_up_to(ids[1]) == 0  # in neither stream any more
    assert [entry for _, entry in await entries_of(inbox, 2)] == [wake("newer"), wake("older-3")]


async def test_a_user_pushes_out_nobody_elses_news(fleet: ToolFleet, redis: Redis) -> None:
    """The latest thousand of each are kept, whoever else uses the conversation's name."""
    await complete(redis, "job-1")
    await complete_many(redis, *[f"eve-{number}" for number in range(1300)], user_id="eve", message="x")

    inbox = await fleet.wakeups.inbox("talk-1", ADA)
    assert [entry for _, entry in await entries_of(inbox, 1)] == [wake("job-1")]
    assert await redis.exists(Keys().completions_lost("talk-1") + OF_ADA.removeprefix(OF_ALL)) == 0


async def test_what_was_trimmed_is_told_until_it_is_confirmed(fleet: ToolFleet, redis: Redis) -> None:
    """With its number, before what is left; by its own id, or by that of an entry behind it, it is not told again."""
    inbox = await fleet.wakeups.inbox("talk-1", ADA)
    await complete_many(redis, *[f"job-{number}" for number in range(1300)], message="x")
    gone = 1300 - await redis.xlen(OF_ADA)
    (lost_id, lost), (_, following) = first = await entries_of(inbox, 2)

    assert (lost, following) == (gone, wake(f"job-{gone}", message="x"))
    assert await entries_of(inbox, 2) == first
    assert [await inbox.confirm(lost_id), await inbox.confirm(lost_id)] == [True, False]
    ((entry_id, entry),) = await entries_of(inbox, 1)
    assert entry == following
    await complete_many(redis, *[f"more-{number}" for number in range(150)], message="x")
    more = 1450 - gone - await redis.xlen(OF_ADA)
    (_, told), (entry_id, entry) = await entries_of(inbox, 2)
    assert (told, isinstance(entry, WakeUp)) == (more, True)
    assert await inbox.confirm(entry_id)
    assert isinstance((await entries_of(inbox, 1))[0][1], WakeUp)


async def test_what_is_trimmed_while_one_reads_is_told_there(fleet: ToolFleet, redis: Redis) -> None:
    """A reader that is slower than what comes hears how many it has missed, each time it goes on."""
    await complete(redis, "job-0", message="x")
    inbox = await fleet.wakeups.inbox("talk-1", ADA)
    told = list[int]()
    async with aclosing(inbox.follow()) as entries, asyncio.timeout(3 * PATIENCE_SECONDS):
        await anext(entries)
        for round_number in (1, 2):
            await complete_many(redis, *[f"job-{round_number}.{number}" for number in range(1300)], message="x")
            while isinstance(entry := (await anext(entries))[1], WakeUp):
                pass  # what it had been given before
            told.append(entry)
            assert sum(told) == 1 + 1300 * round_number - await redis.xlen(OF_ADA)


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
