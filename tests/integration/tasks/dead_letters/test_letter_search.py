"""Searching dead letters: by words and age, page by page, and never through all of very many at once."""

import pytest
from redis.asyncio import Redis

from support.workers.dead_news import RECEIVER, bury
from toolfleet import Settings
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.dead_letters import store
from toolfleet_tasks.dead_letters.letters import DeadEntries
from toolfleet_tasks.dead_letters.store import DeadKind, WantedLetters, mark_before

KEYS = Keys()
EVENT = f"1@{RECEIVER}"


@pytest.fixture
def dead(redis: Redis, redis_url: str) -> DeadEntries:
    return DeadEntries(redis, Settings(redis_url=redis_url))


async def bury_call(redis: Redis, call_id: str, *, at: float) -> None:
    """One that nobody can read, which is enough to find it."""
    await redis.hset(KEYS.dead, call_id, "no letter")
    await redis.zadd(KEYS.dead_order, {call_id: at * 1000})


@pytest.fixture
async def letters(redis: Redis) -> None:
    """Of every kind; three of them died in the same moment, in two places."""
    await bury_call(redis, "call-1", at=1)
    await bury(redis, "job-2", at=2)
    await bury_call(redis, "call-3", at=3)
    await bury_call(redis, "call-4", at=3)
    await bury(redis, EVENT, kind="registry", at=3)
    await bury_call(redis, "call-6", at=6)


async def ids_of(dead: DeadEntries, wanted: WantedLetters, *, limit: int, most_pages: int = 20) -> list[str]:
    """All of them, page by page; no page has more than so many."""
    found, behind = list[str](), None
    for _ in range(most_pages):
        page = await dead.search(wanted, behind=behind, limit=limit)
        assert len(page.entries) <= limit
        found += [one.id for one in page.entries]
        behind = page.next
        if behind is None:
            return found
    pytest.fail("the pages come to no end")


ONLY_CALLS: tuple[DeadKind, ...] = ("call",)


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("limit", [1, 2, 3, 50])
@pytest.mark.parametrize("at_once", [1, 2, 100])
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (WantedLetters(), ["call-6", "call-4", "call-3", EVENT, "job-2", "call-1"]),
        (WantedLetters(ONLY_CALLS), ["call-6", "call-4", "call-3", "call-1"]),
        (WantedLetters(about="CALL-"), ["call-6", "call-4", "call-3", "call-1"]),
        (WantedLetters(about="git.push"), [EVENT]),
        (WantedLetters(about="Talk-1", error="refused"), ["job-2"]),
        (WantedLetters(error="cannot be READ"), ["call-6", "call-4", "call-3", "call-1"]),
        (WantedLetters(until=3), ["job-2", "call-1"]),
        (WantedLetters(about="nobody"), []),
    ],
    ids=str,
)
async def test_letters_are_found_page_by_page(
    dead: DeadEntries,
    monkeypatch: pytest.MonkeyPatch,
    wanted: WantedLetters,
    found: list[str],
    limit: int,
    at_once: int,
) -> None:
    """Each once, the latest first, however many a page has and however many are read at once."""
    monkeypatch.setattr(store, "_AT_ONCE", at_once)

    assert await ids_of(dead, wanted, limit=limit) == found


@pytest.mark.usefixtures("letters")
async def test_one_question_looks_at_so_many_only(dead: DeadEntries, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says where the next goes on, also if none of them was wanted."""
    monkeypatch.setattr(store, "_AT_ONCE", 2)
    monkeypatch.setattr(store, "MOST_SEARCHED", 2)
    first = await dead.search(WantedLetters(about="call-1"))
    second = await dead.search(WantedLetters(about="call-1"), behind=first.next)

    assert (first.entries, second.entries) == ([], [])
    assert await ids_of(dead, WantedLetters(about="call-1"), limit=50) == ["call-1"]


@pytest.mark.usefixtures("letters")
async def test_what_is_dropped_meanwhile_is_passed_over(dead: DeadEntries, redis: Redis) -> None:
    """Neither it nor the letter that a page has ended with must still be there."""
    first = await dead.search(WantedLetters(), limit=2)
    await dead.drop(["call-4", "call-3"])
    await redis.hdel(KEYS.dead, "call-1")  # between the reading of its id and of the letter

    assert [one.id for one in (await dead.search(WantedLetters(), behind=first.next)).entries] == [EVENT, "job-2"]
    await redis.zrem(KEYS.dead_order, "call-1")


@pytest.mark.usefixtures("letters")
async def test_what_dies_later_is_not_behind_a_moment(dead: DeadEntries) -> None:
    """Whoever has begun to handle letters does not come to newer ones."""
    found = await dead.search(WantedLetters(), behind=mark_before(3))

    assert [one.id for one in found.entries] == ["job-2", "call-1"]


@pytest.mark.parametrize("text", ["", "3", "~", "x~call-1", "nan~call-1", "inf~", f"1~{'x' * 2_000}"])
async def test_what_is_no_mark_is_refused(dead: DeadEntries, text: str) -> None:
    """Whoever has made it up hears so."""
    with pytest.raises(ValueError, match=r"."):
        await dead.search(WantedLetters(), behind=text)
