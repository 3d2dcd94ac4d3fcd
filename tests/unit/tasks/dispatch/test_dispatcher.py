"""A call that nothing holds back is published at once; the waiting begins where one is."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from support.clocks import run_virtually
from support.published_call import published
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.errors import BrokerUnavailable, NotPublished
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.calls import dispatcher
from toolfleet_tasks.calls.dispatcher import Dispatcher
from toolfleet_tasks.calls.pending_call import PendingCall

SHARE = Refusal("share", count=1)
Answer = Refusal | Exception | None


class Follow(PendingCall):
    """Follows nothing; notes what it is told."""

    def __init__(self, call: PublishedCall) -> None:
        self.call_id, self.told = call.call_id, list[str]()

    def published(self, *_: object, **__: object) -> None:
        self.told.append("published")

    def unpublished(self) -> None:
        self.told.append("unpublished")

    def give_up(self) -> None:
        self.told.append("given up")


class Broker:
    """Answers each publish with the next of the answers, after so many ticks; then takes everything."""

    most_in_flight = 3

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.asked, self.is_ready = list(answers), list[str](), True
        self.ticks = dict[str, int]()  # by call id

    async def ready(self) -> None:
        self.is_ready = True

    async def publish(self, call: PublishedCall, **_: object) -> Refusal | None:
        self.asked.append(call.call_id)
        for _tick in range(self.ticks.get(call.call_id, 1)):
            await asyncio.sleep(0)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


class Others:
    """Stands for what a dispatcher has beside it: the workers, the joins and the admission."""

    def needs_worker(self, _: object) -> bool:
        return False

    def is_in_vain(self, *_: object, **__: object) -> bool:
        return True

    def end_of(self, _: object, refusal: Refusal) -> Refusal:
        return refusal

    def backlog_limit(self, _: object) -> int:
        return 0

    def take_back(self, *_: object) -> None:
        """Nothing has joined it."""

    give_up = take_back


class Bed:
    def __init__(self, *answers: Answer) -> None:
        self.broker, self.followed = Broker(*answers), list[Follow]()
        broker, others, settings = self.broker, Others(), Settings()
        parts: Any = broker, others, others, others, settings
        self.dispatcher = Dispatcher(*parts, follow=self.follow, spawn=asyncio.ensure_future, before=lambda _: None)

    def follow(self, call: PublishedCall) -> Follow:
        self.followed.append(Follow(call))
        return self.followed[-1]

    def post(self, *names: str, waits: bool = True) -> "list[asyncio.Task[Any]]":
        calls = [published("owls.count", call_id=name, user_id="ada", deadline_at=1_800_000_060.0) for name in names]
        return [asyncio.create_task(self.dispatcher.post(call, waits=waits)) for call in calls]

    @property
    def free(self) -> int:
        return self.dispatcher._back.window._free


def run(work: Coroutine[Any, Any, None]) -> None:
    run_virtually(work)


def test_what_nothing_holds_back_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a place, and gives it back; nothing of the waiting is made for it."""
    monkeypatch.setattr(dispatcher, "Hold", None)

    async def test() -> None:
        bed = Bed()
        started = await asyncio.gather(*bed.post("a", "b"))

        assert [(each.call_id, each.told) for each in started] == [("a", ["published"]), ("b", ["published"])]
        assert bed.free == 3

    run(test())


def test_those_over_their_limit_wait_in_the_order_in_which_they_came() -> None:
    """Also if the later one hears of it first; a third one that comes meanwhile stands behind them."""

    async def test() -> None:
        bed = Bed(SHARE, SHARE)
        bed.broker.ticks["a"] = 3
        tasks = bed.post("a", "b")
        for _ in range(5):
            await asyncio.sleep(0)
        tasks += bed.post("c")
        started = await asyncio.gather(*tasks)

        assert bed.broker.asked == ["a", "b", "a", "b", "c"]
        assert [each.told for each in started] == [["published"]] * 3
        assert [each.told for each in bed.followed[:2]] == [["unpublished"]] * 2
        assert (bed.free, bed.dispatcher._wait_queue._rows) == (3, {})

    run(test())


def test_who_does_not_wait_is_told_at_once() -> None:
    """Over its limit it is busy."""

    async def test() -> None:
        bed = Bed(SHARE)
        (refused,) = await asyncio.gather(*bed.post("a", waits=False))

        assert isinstance(refused, ToolResult)
        assert (refused.error_code, bed.broker.asked, bed.free) == ("busy", ["a"], 3)

    run(test())


def test_a_broker_that_is_away_is_tried_again() -> None:
    """After the first try has found out; and others hold back meanwhile."""

    async def test() -> None:
        bed = Bed(BrokerUnavailable("it restarts", passes=True))
        tasks = bed.post("a")
        for _ in range(5):
            await asyncio.sleep(0)
        assert bed.dispatcher._back.has_failed
        tasks += bed.post("b")
        started = await asyncio.gather(*tasks)

        assert [each.told for each in started] == [["published"]] * 2
        assert (sorted(bed.broker.asked), bed.dispatcher._back.has_failed, bed.free) == (["a", "a", "b"], False, 3)

    run(test())


@pytest.mark.parametrize("error", [NotPublished("no"), BrokerUnavailable("it is full", passes=False)])
def test_what_will_not_pass_ends_the_call(error: NotPublished) -> None:
    """It is surely not in its queue, and says so."""

    async def test() -> None:
        bed = Bed(error)
        (ended,) = await asyncio.gather(*bed.post("a"))

        assert isinstance(ended, ToolResult)
        assert (ended.effect_state, bed.broker.asked, bed.free) == ("none", ["a"], 3)

    run(test())


def test_a_caller_that_goes_gives_its_place_back() -> None:
    """Its call may be in its queue: it is taken back."""

    async def test() -> None:
        bed = Bed()
        (task,) = bed.post("a")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        assert (bed.followed[0].told, bed.free) == (["given up"], 3)

    run(test())
