"""An attempt on a lease that is over begins nothing, and each one brings its module what to refuse it by."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from support.local_tools.own_functions import OwnFunctions
from support.modules.http_executor import client_of, executor_for
from support.modules.raw_module import Peer, answering, http, raw_module, reply
from support.published_call import published
from support.waiting import PATIENCE_SECONDS
from support.workers.finite_lease import FiniteLease, over
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.system import fleet_clock
from toolfleet_workers.executors.local import LocalExecutor
from toolfleet_workers.executors.request import Sender
from toolfleet_workers.executors.scheduler import SchedulerExecutor

SECONDS = 10  # long enough that only a defect can use it up
BEGIN_BY = re.compile(r"(\d+);now=(\d+);sender=([0-9a-f]{32})")


def was_not_begun(attempt: Attempt) -> bool:
    """It was not sent, and counts neither for nor against its module."""
    result = attempt.result
    return (attempt.outcome, result.error_code, result.effect_state) == (Outcome.NOT_SENT, "internal", "none")


async def test_on_a_lease_that_is_over_nothing_is_sent() -> None:
    """Over a new connection or a kept one, which the next call does not find."""
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        assert was_not_begun(await executor.execute(published(), seconds=SECONDS, lease=over()))
        assert (await executor.execute(published(), seconds=SECONDS)).outcome is Outcome.SUCCESS
        assert was_not_begun(await executor.execute(published(), seconds=SECONDS, lease=over()))
        assert (await executor.execute(published(), seconds=SECONDS)).outcome is Outcome.SUCCESS

    assert [request.connection for request in module.requests] == [2, 3]


async def test_the_lease_is_asked_when_the_connection_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was stopped while it connected has a lease that was live before."""
    lease = FiniteLease(1_000)
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        connect = client_of(executor)._connect

        async def slow(*args: Any) -> Any:
            connection = await connect(*args)
            lease.looks = 0
            return connection

        monkeypatch.setattr(client_of(executor), "_connect", slow)
        assert was_not_begun(await executor.execute(published(), seconds=SECONDS, lease=lease))

    assert module.connections == 1
    assert module.requests == []


async def test_a_large_request_is_cut_off_when_its_lease_ends() -> None:
    """What the module has by then is no request, and whether it cares for that nobody knows."""
    call = published(arguments={"text": "x" * 2**25})
    lease = FiniteLease(1_000_000)
    received, is_over = 0, asyncio.Event()

    async def slow(peer: Peer) -> None:
        nonlocal received
        await peer.reader.readuntil(b"\r\n\r\n")
        lease.looks = 0
        try:
            while part := await peer.reader.read(2**20):
                received += len(part)
        finally:
            is_over.set()

    async with raw_module(slow) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(call, seconds=SECONDS, lease=lease)
        await asyncio.wait_for(is_over.wait(), PATIENCE_SECONDS)

    assert 0 < received < 2**25
    assert (attempt.outcome, attempt.result.effect_state) == (Outcome.UNKNOWN, "unknown")


async def test_on_a_lease_that_is_over_no_module_is_asked() -> None:
    """Others have the call, and see to its end."""
    async with raw_module(answering(http(b"{}"))) as module, executor_for(module.url) as executor:
        assert await executor.reconcile(published(), seconds=SECONDS, lease=over()) is None

    assert module.requests == []


async def test_an_attempt_says_which_it_is_and_until_when_it_may_begin() -> None:
    """By the fleet's clock, beside the present by the same clock, and whose that is."""
    lease = FiniteLease(1_000, attempt=2, seconds=9)
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        for _ in range(2):
            await executor.execute(published(), seconds=SECONDS, lease=lease)
        told = module.requests[0].headers
        by, now, sender = (BEGIN_BY.fullmatch(told["toolfleet-begin-by"]) or pytest.fail("no such field")).groups()

        assert told["toolfleet-attempt"] == "2"
        assert int(by) - int(now) in {8_999, 9_000, 9_001}
        assert 0 <= fleet_clock.now() * 1000 - int(now) < 60_000
        assert module.requests[1].headers["toolfleet-begin-by"].endswith(sender)


async def test_a_call_that_nobody_else_can_have_has_no_end() -> None:
    """One that was not claimed. Nor has a question, by which nothing is run."""
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        await executor.execute(published(), seconds=SECONDS)
        await executor.reconcile(published(), seconds=SECONDS, lease=FiniteLease(1_000))
        attempt, question = module.requests

    assert attempt.headers["toolfleet-attempt"] == "1"
    assert "toolfleet-begin-by" not in attempt.headers
    assert not {"toolfleet-attempt", "toolfleet-begin-by"} & question.headers.keys()


def test_a_clock_that_was_set_is_another_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a module would take the difference for a delay. A clock that is only slewed goes on."""
    sender, lease, ahead = Sender(), FiniteLease(1_000), 0.0
    steady = fleet_clock.suspend_aware
    monkeypatch.setattr(fleet_clock, "now", lambda: 1e9 + steady() + ahead)

    def name() -> bytes:
        return sender.fields(lease).rpartition(b"sender=")[2]

    first = name()
    ahead = 0.2
    assert name() == first
    ahead = -30
    second = name()
    assert second not in {first, b""}
    assert name() == second


async def test_a_local_function_is_not_called_on_a_lease_that_is_over() -> None:
    """Also where it was live as the call came, and others have blocked the loop since."""
    called = list[str]()

    async def note(query: str) -> str:
        called.append(query)
        return query

    executor = LocalExecutor(OwnFunctions(note), max_result_bytes=1_000)
    lease = FiniteLease(1)
    running = asyncio.create_task(executor.execute(published("local.note"), seconds=SECONDS, lease=lease))
    asyncio.get_running_loop().call_soon(lease.seconds_left)

    assert was_not_begun(await running)
    assert was_not_begun(await executor.execute(published("local.note"), seconds=SECONDS, lease=over()))
    assert called == []
    await executor.execute(published("local.note"), seconds=SECONDS, lease=FiniteLease(1))
    assert called == ["owls"]


async def test_a_call_whose_deadline_passes_before_it_is_sent_has_expired() -> None:
    """No worker stood still: its caller gave it so little time."""
    async with raw_module(answering(http(reply()))) as module, executor_for(module.url) as executor:
        attempt = await executor.execute(
            published(deadline_at=fleet_clock.now() - 0.001), seconds=SECONDS, lease=over()
        )

    assert (attempt.outcome, attempt.result.error_code) == (Outcome.NOT_SENT, "expired")
    assert attempt.result.effect_state == "none"
    assert module.requests == []


@pytest.mark.parametrize("tool", ["add_job", "cancel_job", "list_jobs"])
async def test_the_scheduler_does_nothing_on_a_lease_that_is_over(tool: str) -> None:
    """It does not even open the desk's drawers."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Any]:
        yield SimpleNamespace()

    executor = SchedulerExecutor(opened, longest_seconds=86_400)
    call = published(f"scheduler.{tool}", user_id="ada")

    assert was_not_begun(await executor.execute(call, seconds=SECONDS, lease=over()))
    assert await executor.reconcile(call, seconds=SECONDS, lease=over()) is None
