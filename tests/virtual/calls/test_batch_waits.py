"""Calls that leave together wait for one answer, each until its own time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.clocks import run_virtually
from support.published_call import published
from toolfleet_registry.errors import PublishUnconfirmed
from toolfleet_registry.system.shared_timers import shared_timers
from toolfleet_tasks.redis_connection import ReplyWaiter
from toolfleet_tasks.transport.redis_publisher import _ASKED, _KEYS, AdmissionBatcher, _Publishing


class Line:
    """A connection whose commands are answered when a test says so."""

    def __init__(self) -> None:
        self.built = list[tuple[Any, ...]]()
        self.replies = list[ReplyWaiter]()

    def send(self, *command: Any) -> "asyncio.Future[Any]":
        self.send_for(reply := asyncio.get_running_loop().create_future(), lambda: command)
        return reply

    def send_for(self, waiter: ReplyWaiter, build: Callable[[], tuple[Any, ...]]) -> None:
        self.replies.append(waiter)
        asyncio.get_running_loop().call_soon(lambda: self.built.append(build()))


def asked(call_id: str) -> tuple[Any, ...]:
    """The parameters of `ADMIT` for a call that may be in a batch."""
    own = {"number": _KEYS, "call_id": call_id, "deadline": 9, "message": "{}", "bound": 5, "keep_ms": 0, "marks": ""}
    return tuple(own.get(name, name) for name in _ASKED)


class Bed:
    def __init__(self) -> None:
        line: Any = Line()
        self.line, self.loop = line, asyncio.get_running_loop()
        self.batcher = AdmissionBatcher(line, self.loop)

    def send(self, *seconds: float) -> "list[asyncio.Task[tuple[object, float]]]":
        """Send so many calls in one tick; the result of each, and when it came."""
        return [asyncio.create_task(self._send(str(at), each)) for at, each in enumerate(seconds)]

    async def _send(self, call_id: str, seconds: float) -> tuple[object, float]:
        try:
            reply: asyncio.Future[object] = self.loop.create_future()
            self.batcher.send(asked(call_id), self.loop.time() + seconds, reply)
            result = await reply
        except TimeoutError:
            return "no answer", self.loop.time()
        return result, self.loop.time()

    @property
    def timers(self) -> int:
        return sum(len(timers) for timers in shared_timers(self.loop).groups.values())


async def unanswered() -> list[tuple[object, float]]:
    bed = Bed()
    sent = bed.send(30.0, 10.0, 20.0, 10.0)
    await asyncio.sleep(1)
    assert (len(bed.line.built), bed.timers) == (1, 1)
    return list(await asyncio.gather(*sent))


def test_each_waits_until_its_own_time() -> None:
    """Of those that leave together, the one with the least time first; there is one timer for all of them."""
    found, _ = run_virtually(unanswered())

    assert found == [("no answer", each) for each in (30.0, 10.0, 20.0, 10.0)]


async def answered() -> tuple[list[tuple[object, float]], int]:
    bed = Bed()
    sent = bed.send(30.0, 10.0, 20.0)
    await asyncio.sleep(1)
    bed.line.replies[0].set_result(0)
    return list(await asyncio.gather(*sent)), bed.timers


def test_an_answer_leaves_no_timer() -> None:
    """All of them have it, and nothing waits any more."""
    assert run_virtually(answered()) == (([(0, 1.0)] * 3, 0), 1.0)


@pytest.mark.parametrize("is_answered", [True, False])
def test_those_that_are_sent_again_alone_wait_as_long_as_before(is_answered: bool) -> None:
    """A batch was refused after a while: what each call then waits for is its own answer, until its own time."""

    async def refused() -> tuple[list[tuple[object, float]], int]:
        bed = Bed()
        sent = bed.send(30.0, 10.0, 20.0)
        await asyncio.sleep(1)
        bed.line.replies[0].set_result(None)
        await asyncio.sleep(1)
        assert [command[0] for command in bed.line.built] == ["EVALSHA"] * 4
        for reply in bed.line.replies[1:] if is_answered else ():
            reply.set_result(7)
        return list(await asyncio.gather(*sent)), bed.timers

    (found, timers), _ = run_virtually(refused())

    assert timers == 0
    assert found == ([(7, 2.0)] * 3 if is_answered else [("no answer", each) for each in (30.0, 10.0, 20.0)])


async def answered_late() -> list[object]:
    """A caller that is told, and waits on, is told once."""
    bed, heard = Bed(), list[object]()
    call, ending = published("owls.count"), bed.loop.create_future()
    ours: Any = None  # of what is told after a time-out nothing is read

    def tell(outcome: object) -> bool:
        heard.append(type(outcome))
        return True

    bed.batcher.send(asked("0"), bed.loop.time() + 10, _Publishing(ours, ours, call, None, ending, tell))
    await asyncio.sleep(11)
    bed.line.replies[0].set_result(0)
    await asyncio.sleep(1)
    return heard


def test_an_answer_that_comes_too_late_is_not_told() -> None:
    """The call was found to be unconfirmed before."""
    assert run_virtually(answered_late())[0] == [PublishUnconfirmed]
