"""An attempt that others have overtaken, or whose end has passed, runs nothing: with every store, by whatever clock."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from support.waiting import wait_until
from toolfleet.sdk import Module, ModuleBusy, ModuleClient, Replies
from toolfleet_modules.calls.idempotency import LEASE_SECONDS
from toolfleet_modules.sdk.execute import Senders
from toolfleet_registry.contracts.attempts import ALLOWANCE_SECONDS
from toolfleet_registry.system import fleet_clock

MakeReplies = Callable[[], Replies]
HOUR = 3600.0


def make_module(seen: list[str], replies: Replies | None = None, **settings: Any) -> Module:
    """Tools that note their names; `busy` is turned away."""
    module = Module("owls", replies=replies, **settings)
    busy = list[bool]()

    def offer(effect: Any) -> None:
        async def tool(turn_away: bool = False) -> str:  # noqa: FBT002 - a tool's argument
            if turn_away and not busy:
                busy.append(True)
                raise ModuleBusy(1)
            seen.append(str(effect))
            return str(effect)

        module.add(tool, name=str(effect), effect=effect)

    for effect in ("read", "idempotent", "once"):
        offer(effect)
    return module


async def send(client: ModuleClient, tool: str, attempt: int | None, begin_by: str = "", **arguments: Any) -> Any:
    """The reply to a request for the call `c`."""
    headers = {"Idempotency-Key": "c", "Toolfleet-Begin-By": begin_by}
    if attempt is not None:
        headers["Toolfleet-Attempt"] = str(attempt)
    body = {"tool_name": f"owls.{tool}", "arguments": arguments}
    response = await client.http.post("/execute", json=body, headers=headers)
    return response.json() if response.is_success else response.status_code


def was_overtaken(reply: Any) -> bool:
    """In words that every worker takes for an attempt that did nothing."""
    return (reply["success"], reply["effect_state"], "later attempt" in reply["error"]) == (False, "none", True)


def was_not_begun(reply: Any) -> bool:
    return (reply["success"], reply["effect_state"], "in time" in reply["error"]) == (False, "none", True)


@pytest.mark.parametrize("effect", ["idempotent", "once"])
@pytest.mark.parametrize("ending", ["done", "turned away", "not begun"])
async def test_an_attempt_older_than_one_that_was_seen_is_refused(
    make_replies: MakeReplies, effect: str, ending: str
) -> None:
    """In any process that shares the store, and after a restart: also where the later one came to nothing."""
    seen = list[str]()
    one, other = make_module(seen, make_replies()), make_module(seen, make_replies())
    async with one.client() as here, other.client() as there:
        late = told(HOUR, 2 * HOUR) if ending == "not begun" else ""
        await send(here, effect, 2, late, turn_away=ending == "turned away")
        assert was_overtaken(await send(there, effect, 1))
        assert was_overtaken(await send(here, effect, 1))
        async with make_module(seen, make_replies()).client() as later:
            assert was_overtaken(await send(later, effect, 1))
    assert seen == ([effect] if ending == "done" else [])


async def test_a_later_attempt_begins_what_an_earlier_one_did_not(make_replies: MakeReplies) -> None:
    """And one that was turned away may come again; the reply is then everybody's."""
    seen = list[str]()
    async with make_module(seen, make_replies()).client() as client:
        assert await send(client, "once", 1, turn_away=True) == httpx.codes.SERVICE_UNAVAILABLE
        assert (await send(client, "once", 2, turn_away=True))["success"]
        assert (await send(client, "once", 2, turn_away=True))["success"]
        assert (await send(client, "once", None, turn_away=True))["success"]
    assert seen == ["once"]


async def test_an_older_read_is_refused_by_the_process_that_saw_the_later_one(make_replies: MakeReplies) -> None:
    """No store is asked for that: a read does no harm, however late it is."""
    seen = list[str]()
    async with make_module(seen, make_replies()).client() as client:
        assert was_not_begun(await send(client, "read", 2, told(HOUR, 2 * HOUR)))
        assert was_overtaken(await send(client, "read", 1))
    assert seen == []


@pytest.mark.parametrize("attempt", [None, 1, 2])
async def test_who_says_nothing_is_let_in(make_replies: MakeReplies, attempt: int | None) -> None:
    """Workers of before send no attempt and no end, and others may send nonsense."""
    seen = list[str]()
    async with make_module(seen, make_replies()).client() as client:
        assert (await send(client, "once", attempt, "tomorrow"))["success"]
        assert (await send(client, "once", None))["success"]
    assert seen == ["once"]


async def test_a_call_that_is_open_for_later_attempts_may_be_given_up(make_durable: MakeReplies) -> None:
    """A reconciliation says `none` once the store knows that, and then no attempt begins it."""
    seen = list[str]()
    young, old = make_module(seen, make_durable()), make_module(seen, make_durable(), longest_call_seconds=1e-9)
    async with young.client() as here, old.client() as there:
        assert await send(here, "once", 2, turn_away=True) == httpx.codes.SERVICE_UNAVAILABLE
        assert (await here.reconcile("c"))["state"] == "unknown"
        assert (await there.reconcile("c"))["state"] == "none"
        assert await send(here, "once", 2) == httpx.codes.CONFLICT
    assert seen == []


async def test_two_attempts_that_meet_run_once_and_both_get_the_reply(make_replies: MakeReplies) -> None:
    """The earlier one had begun, or is begun on behalf of both."""
    seen = list[str]()
    async with make_module(seen, make_replies()).client() as client:
        replies = await asyncio.gather(*(send(client, "once", attempt) for attempt in (1, 2, 1, 2)))
        assert all(reply["success"] or was_overtaken(reply) for reply in replies)
        assert replies[1]["success"]
    assert seen == ["once"]


def told(begin_by: float, now: float, sender: str = "w") -> str:
    return f"{round(begin_by * 1000)};now={round(now * 1000)};sender={sender}"


@pytest.mark.parametrize("offset", [-1e9 + 10, -HOUR, 0, HOUR, 1e9])
def test_a_request_is_late_by_its_delay_whatever_the_clocks_show(offset: float) -> None:
    """The smallest difference that its sender's requests have had is that of the clocks."""
    senders, clock = Senders(), 1e9
    for number in range(3):
        sent_at = clock + number
        end = senders.end_of(told(sent_at + 2, sent_at), came_at=sent_at + offset + 0.01)
        assert end == pytest.approx(sent_at + offset + 0.01 + 2 + ALLOWANCE_SECONDS, abs=0.002)
    held = senders.end_of(told(clock + 5, clock + 3), came_at=clock + offset + 10)
    assert held == pytest.approx(clock + offset + 5 + 0.01 + ALLOWANCE_SECONDS, abs=0.002)


def test_each_sender_has_a_clock_of_its_own() -> None:
    """What one shows says nothing of another, and a first request is believed."""
    senders = Senders()
    assert senders.end_of(told(1_002, 1_000, "a"), came_at=5_000) == 5_003
    assert senders.end_of(told(9_002, 9_000, "b"), came_at=5_000) == 5_003


def test_clocks_may_drift() -> None:
    """A difference of long ago does not count: 500 ppm for a day refuse nothing."""
    senders, refused = Senders(), 0
    for sent_at in range(0, 86_400, 20):
        came_at = sent_at * 1.0005
        end = senders.end_of(told(sent_at + 0.001, sent_at), came_at=came_at)
        refused += end is not None and end < came_at
    assert refused == 0


@pytest.mark.parametrize(
    "field", [None, "", "1", "1;now=2", "1;now=x;sender=a", "-1;now=2;sender=a", "1;now=2;sender="]
)
def test_what_says_no_end_has_none(field: str | None) -> None:
    """Nor does it hurt."""
    assert Senders().end_of(field, came_at=1) is None


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_an_attempt_that_comes_after_its_end_is_not_begun(make_replies: MakeReplies, effect: str) -> None:
    """It waited where nobody looked; the next attempt begins the call."""
    seen = list[str]()
    async with make_module(seen, make_replies()).client() as client:
        now = fleet_clock.now()
        await client.http.post(
            "/execute", json={"tool_name": "owls.nothing"}, headers={"Toolfleet-Begin-By": told(now + 1, now)}
        )
        assert was_not_begun(await send(client, effect, 1, told(now - 20, now - 21)))
        assert seen == []
        assert (await send(client, effect, 2, told(now + 9, now)))["success"]
    assert seen == [effect]


@pytest.mark.parametrize(("seconds", "later"), [(LEASE_SECONDS / 4, LEASE_SECONDS / 2), (3600, 2 * LEASE_SECONDS)])
async def test_a_function_is_not_called_too_late(monkeypatch: pytest.MonkeyPatch, seconds: float, later: float) -> None:
    """It has waited for a thread, and its process stood still: its end has passed, or another process may have the call."""
    go, called = threading.Event(), list[int]()
    module = Module("owls", threads=1)

    @module.tool(effect="once")
    def slow(number: int) -> int:
        called.append(number)
        go.wait()
        return number

    async def ask(number: int, within: float) -> Any:
        now = fleet_clock.now()
        headers = {"Idempotency-Key": f"c{number}", "Toolfleet-Begin-By": told(now + within, now)}
        body = {"tool_name": "owls.slow", "arguments": {"number": number}}
        return (await client.http.post("/execute", json=body, headers=headers)).json()

    async with module.client() as client:
        clock = fleet_clock.suspend_aware
        first = asyncio.create_task(ask(1, 60))
        await wait_until(lambda: called, "the one thread is at work")
        second = asyncio.create_task(ask(2, seconds))
        await wait_until(lambda: module.app and len(client_works(module)) == 2, "the second waits for it")
        monkeypatch.setattr(fleet_clock, "suspend_aware", lambda: clock() + later)
        go.set()
        assert (await first)["success"]
        assert was_not_begun(await second)
    assert called == [1]


def client_works(module: Module) -> set[Any]:
    """The calls at work in a module's app."""
    (execute,) = (route.app for route in module.app.routes if getattr(route, "path", "") == "/execute")  # type: ignore[attr-defined] # starlette's
    return set(execute.now._all)
