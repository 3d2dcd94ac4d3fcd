"""A call that nothing holds back is published at once; the waiting begins where one is."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from support.clocks import run_virtually
from support.published_call import published
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.errors import BrokerUnavailable, NotPublished, PublishUnconfirmed
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import Refusal
from toolfleet_tasks.calls import dispatcher
from toolfleet_tasks.calls.dispatcher import Dispatcher
from toolfleet_tasks.calls.pending_call import PendingCall
from toolfleet_tasks.transport.publisher import Following

SHARE = Refusal("share", count=1)
DONE = ToolResult(tool_name="owls.count", success=True)
Answer = Refusal | Exception | None


class Follow(PendingCall):
    """Follows nothing; notes what it is told."""

    def __init__(self, call: PublishedCall) -> None:
        self.call_id, self.told, self.is_answered = call.call_id, list[str](), False
        self.ending = asyncio.get_running_loop().create_future()

    def published(self, *_: object, **__: object) -> None:
        self.told.append("published")

    def unpublished(self) -> None:
        self.told.append("unpublished")

    def give_up(self) -> None:
        self.told.append("given up")

    def unconfirmed(self) -> None:
        self.told.append("unconfirmed")

    def confirmed(self) -> None:
        self.told.append("confirmed")


class Broker:
    """Answers each publish with the next of the answers, after so many ticks; then takes everything."""

    most_in_flight = 3

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.asked, self.is_ready = list(answers), list[str](), True
        self.ticks = dict[str, int]()  # by call id
        self.tells = False

    async def ready(self) -> None:
        self.is_ready = True

    async def publish(self, call: PublishedCall, *, follow: Following | None = None, **_: object) -> Refusal | None:
        if follow is not None and self.tells:
            return await self._told(call, *follow)
        self.asked.append(call.call_id)
        for _tick in range(self.ticks.get(call.call_id, 1)):
            await asyncio.sleep(0)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _told(self, call: PublishedCall, ending: "asyncio.Future[Any]", told: Any) -> Refusal | None:
        """Tell the answer unless the call ends before, and return at its end."""
        answering: asyncio.Future[Refusal | None] = asyncio.ensure_future(self.publish(call))
        await asyncio.wait([answering, ending], return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            return await ending and None
        error = answering.exception()
        assert error is None or isinstance(error, Exception)
        if told(error or answering.result()):
            return await ending and None
        return await answering


class Others:
    """Stands for what a dispatcher has beside it: the workers, the joins and the admission."""

    backlog_limit = 0

    def needs_worker(self, _: object) -> bool:
        return False

    def is_in_vain(self, *_: object, **__: object) -> bool:
        return True

    def end_of(self, _: object, refusal: Refusal) -> Refusal:
        return refusal

    def take_back(self, *_: object) -> None:
        """Nothing has joined it."""

    give_up = take_back

    write = take_back

    def is_own(self, _: object) -> bool:
        return False


class Bed:
    def __init__(self, *answers: Answer) -> None:
        self.broker, self.followed = Broker(*answers), list[Follow]()
        broker, others, settings = self.broker, Others(), Settings()
        parts: Any = broker, others, others, others, others, settings
        self.dispatcher = Dispatcher(*parts, follow=self.follow, spawn=asyncio.ensure_future)

    def follow(self, call: PublishedCall) -> Follow:
        self.followed.append(Follow(call))
        return self.followed[-1]

    def post(self, *names: str, waits: bool = True, **how: Any) -> "list[asyncio.Task[Any]]":
        calls = [published("owls.count", call_id=name, user_id="ada", deadline_at=1_800_000_060.0) for name in names]
        return [asyncio.create_task(self.dispatcher.post(call, waits=waits, **how)) for call in calls]

    async def post_until_end(self) -> "asyncio.Task[Any]":
        """Post a call whose end is waited for, and return once the broker has answered."""
        self.broker.tells = True
        (task,) = self.post("a", until_end=True)
        for _ in range(10):
            await asyncio.sleep(0)
        return task

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


def test_a_call_whose_end_is_waited_for_keeps_no_place_until_then() -> None:
    """It is published, and others may be; its caller hears of it at its end."""

    async def test() -> None:
        bed = Bed()
        task = await bed.post_until_end()
        (follow,) = bed.followed
        assert (follow.told, follow.is_sent, bed.free, task.done()) == (["published"], True, 3, False)
        follow.ending.set_result(DONE)

        assert await task is follow
        assert bed.free == 3

    run(test())


def test_an_end_may_come_before_the_answer() -> None:
    """The call is no longer waited for; its place comes back once."""

    async def test() -> None:
        bed = Bed()
        bed.broker.ticks["a"] = 100
        task = await bed.post_until_end()
        (follow,) = bed.followed
        assert (follow.told, bed.free) == ([], 2)
        follow.ending.set_result(DONE)

        assert await task is follow
        assert (follow.told, bed.free) == (["published"], 3)

    run(test())


def test_a_refusal_is_heard_at_once_also_where_the_end_is_waited_for() -> None:
    """Over its limit the call waits for its turn, and no longer counts as waiting when it has been published."""

    async def test() -> None:
        bed = Bed(SHARE)
        task = await bed.post_until_end()

        assert await task is bed.followed[1]
        assert [each.told for each in bed.followed] == [["unpublished"], ["published"]]
        assert (bed.free, bed.dispatcher._back.crowd.total) == (3, 0)

    run(test())


def test_a_broker_that_is_away_is_tried_again_also_where_the_end_is_waited_for() -> None:
    """As for any call; the others hold back meanwhile."""

    async def test() -> None:
        bed = Bed(BrokerUnavailable("it restarts", passes=True))
        task = await bed.post_until_end()
        assert bed.dispatcher._back.has_failed

        assert await task is bed.followed[1]
        assert (bed.broker.asked, bed.dispatcher._back.has_failed, bed.free) == (["a", "a"], False, 3)

    run(test())


def test_an_unconfirmed_call_is_published_again_while_its_end_is_waited_for() -> None:
    """Its place is another's meanwhile; its end ends that, too."""

    async def test() -> None:
        bed = Bed(PublishUnconfirmed("no answer"))
        task = await bed.post_until_end()
        (follow,) = bed.followed
        assert (bed.broker.asked, follow.told) == (["a", "a"], ["unconfirmed", "published", "confirmed"])
        assert (bed.free, task.done()) == (3, False)
        follow.ending.set_result(DONE)

        assert await task is follow

    run(test())


@pytest.mark.parametrize("ticks", [1, 100])
def test_a_caller_that_goes_before_the_end_gives_its_place_back_once(ticks: int) -> None:
    """Whether the broker has answered or not: the call is taken back."""

    async def test() -> None:
        bed = Bed()
        bed.broker.ticks["a"] = ticks
        task = await bed.post_until_end()
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()
        assert (bed.followed[0].told[-1], bed.free) == ("given up", 3)

    run(test())
