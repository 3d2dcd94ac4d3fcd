"""A call id stands for one call, however often it comes: with every store, and when the store is away."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.waiting import wait_until, wait_until_answered
from toolfleet.sdk import Context, MemoryReplies, Module, ModuleBusy, ModuleClient, Record, Replies, ToolError

MakeReplies = Callable[[], Replies]


@dataclass
class Runs:
    """How often each tool has run, and what the next runs do: return, raise or wait."""

    seen: list[str] = field(default_factory=list)
    script: list[Any] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, effect: str) -> int:
        self.seen.append(effect)
        step = self.script.pop(0) if self.script else None
        if step == "wait":
            await self.go.wait()
        elif isinstance(step, Exception):
            raise step
        return len(self.seen)


def make_module(runs: Runs, replies: Replies, **settings: Any) -> Module:
    module = Module("owls", replies=replies, **settings)

    def offer(effect: Any) -> None:
        async def tool(n: int = 0, context: Context | None = None) -> int:
            return await runs.run(str(effect))

        del tool.__annotations__["context"]
        tool.__annotations__["context"] = Context
        module.add(tool, name=str(effect).lower(), effect=effect)

    for effect in ("read", "idempotent", "once", None):
        offer(effect)
    return module


EFFECTS = ("read", "idempotent", "once", "none")


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_repeat_brings_the_first_reply(make_replies: MakeReplies, effect: str) -> None:
    """Also from another process, and after a restart; another request under the same id is refused."""
    runs = Runs()
    one, other = make_module(runs, make_replies()), make_module(runs, make_replies())
    async with one.client() as here, other.client() as there:
        first = await here.send(effect, {}, call_id="c")
        assert first == await here.send(effect, {}, call_id="c")
        assert first == await there.send(effect, {}, call_id="c")
        assert (await there.send(effect, {"n": 1}, call_id="c")).status == 422
        assert (await there.send(effect, {}, call_id="c", user_id="eve")).status == 422
        assert (await there.reconcile("c"))["result"] == 1
    async with make_module(runs, make_replies()).client() as later:
        assert first == await later.send(effect, {}, call_id="c")
    assert len(runs.seen) == 1


async def test_a_repeat_joins_the_call_that_runs(make_replies: MakeReplies, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and in another process: all get the same reply, and who leaves first stops nothing."""
    monkeypatch.setattr("toolfleet_modules.calls.idempotency._POLL_SECONDS", (0.01, 0.05))
    runs = Runs(script=["wait"])
    one, other = make_module(runs, make_replies()), make_module(runs, make_replies())
    async with one.client() as here, other.client() as there:
        first = asyncio.create_task(here.send("once", {}, call_id="c"))
        await wait_until(lambda: runs.seen, "it runs")
        others = [asyncio.create_task(each.send("once", {}, call_id="c")) for each in (here, here, there)]
        assert [(await each.reconcile("c"))["state"] for each in (here, there)] == ["running", "running"]
        assert (await here.send("once", {"n": 1}, call_id="c")).status == 422
        late = await there.send("once", {}, call_id="c", seconds=0.1)
        assert (late.status, late.effect_state) == (200, "unknown")  # never "none": it does run
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        runs.go.set()
        assert [result.result for result in await asyncio.gather(*others)] == [1, 1, 1]
    assert len(runs.seen) == 1


@pytest.mark.parametrize(
    ("ending", "again"),
    [
        (ToolError("no"), {"read", "idempotent"}),
        (ValueError("bug"), {"read", "idempotent"}),
        (ToolError("no", effect_state="done"), {"read", "idempotent"}),
        (ToolError("not yet", effect_state="none"), {*EFFECTS}),
        (ToolError("no line", retryable=True), {"read", "idempotent", "none"}),
        (ToolError("no line", effect_state="done", retryable=True), {"read", "idempotent", "none"}),
        (ModuleBusy(1), {*EFFECTS}),
    ],
    ids=["refused", "bug", "done", "none", "retryable", "done, retryable", "busy"],
)
@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_failure_is_run_again_where_that_does_nothing_twice(
    make_replies: MakeReplies, effect: str, ending: Exception, again: set[str]
) -> None:
    """Because the effect allows it, or the tool, or because surely nothing has happened; else the failure is the answer."""
    runs = Runs(script=[ending])
    async with make_module(runs, make_replies()).client() as client:
        first = await client.send(effect, {}, call_id="c")
        second = await client.send(effect, {}, call_id="c")
    assert not first.success
    assert first.retryable == (getattr(ending, "retryable", False) and effect != "once")
    if effect in again:
        assert second.result == 2
    else:
        assert second == first
        assert len(runs.seen) == 1


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_module_may_have_its_undeclared_tools_run_again(effect: str) -> None:
    """It says so in its manifest, which else has no word of it; what a tool declares counts all the same."""
    runs = Runs(script=[ToolError("no")])
    async with make_module(runs, MemoryReplies(), retries_undeclared=True).client() as client:
        assert (await client.http.get("/manifest")).json()["retries_undeclared"] is True
        await client.send(effect, {}, call_id="c")
        await client.send(effect, {}, call_id="c")
    async with make_module(runs, MemoryReplies()).client() as client:
        assert "retries_undeclared" not in (await client.http.get("/manifest")).json()
    assert len(runs.seen) == (1 if effect == "once" else 2)


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_call_that_was_stopped_is_run_again_only_if_that_is_harmless(
    make_replies: MakeReplies, effect: str
) -> None:
    """Nobody knows how far it came, and a reconciliation says so."""
    runs = Runs(script=["wait"])
    async with make_module(runs, make_replies()).client() as client:
        assert (await client.send(effect, {}, call_id="c", seconds=0.1)).effect_state == "unknown"
        await wait_until_answered(lambda: is_unknown(client), "how far it came is unknown")
        second = await client.send(effect, {}, call_id="c")
    if effect in {"read", "idempotent"}:
        assert second.result == 2
    else:
        assert "how far it came is unknown; it was not run again" in str(second.error)
        assert second.effect_state == "unknown"
        assert len(runs.seen) == 1


async def is_unknown(client: ModuleClient) -> bool:
    return bool((await client.reconcile("c"))["state"] == "unknown")


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_call_of_a_process_that_died_is_run_again_only_if_that_is_harmless(
    make_durable: MakeReplies, effect: str
) -> None:
    """Its record says that it runs, and its lease is over."""
    runs = Runs()
    store = make_durable()
    async with make_module(runs, make_durable()).client() as client:
        await client.send(effect, {}, call_id="c")
        record = await store.get("c")
        assert record is not None
        dead = Record("running", "dead", record.fingerprint, time.time() - 1)
        assert await store.swap("c", record.token, dead)
        assert (await client.reconcile("c"))["state"] == "unknown"
        second = await client.send(effect, {}, call_id="c")
    assert second.success == (effect in {"read", "idempotent"})
    assert second.effect_state == (None if second.success else "unknown")


async def test_a_call_that_was_said_to_be_never_begun_never_begins(make_durable: MakeReplies) -> None:
    """`none` is a promise: the request that comes later is refused for good, also in another process."""
    runs = Runs()
    one = make_module(runs, make_durable(), longest_call_seconds=1e-9)
    other = make_module(runs, make_durable())
    async with one.client() as here, other.client() as there:
        assert await here.reconcile("c") == {"call_id": "c", "state": "none"}
        assert await there.reconcile("c") == {"call_id": "c", "state": "none"}
        refused = await there.send("read", {}, call_id="c")
        assert (refused.status, runs.seen) == (409, [])


async def test_a_young_memory_promises_nothing(make_replies: MakeReplies) -> None:
    """A call may be older than it; and a process's memory never knows."""
    async with make_module(Runs(), make_replies()).client() as client:
        assert await client.reconcile("c") == {"call_id": "c", "state": "unknown"}
        assert (await client.send("once", {}, call_id="c")).success


class Away(MemoryReplies):
    """A store that answers with an error, or not at all, from the n-th question on."""

    def __init__(self, *, after: int, how: Callable[[], Any]) -> None:
        super().__init__()
        self.left, self.how = after, how

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        self.left -= 1
        if self.left < 0:
            await self.how()
        return await super().swap(name, seen, record)


async def fail() -> None:
    raise OSError("gone")


@pytest.mark.parametrize("effect", EFFECTS)
async def test_without_its_store_a_module_begins_what_may_be_repeated(effect: str) -> None:
    """The others are turned away, so that nothing is done twice; the fleet comes back."""
    runs = Runs()
    async with make_module(runs, Away(after=0, how=fail)).client() as client:
        result = await client.send(effect, {}, call_id="c")
        assert (await client.reconcile("c"))["state"] == "unknown"
    assert result.status == (200 if effect in {"read", "idempotent"} else 503)
    assert len(runs.seen) == (1 if result.success else 0)


async def test_a_store_that_goes_away_in_the_middle_costs_no_reply() -> None:
    """The effect has happened, and whoever waits is told; a repeat is not run."""
    runs = Runs()
    store = Away(after=1, how=fail)
    async with make_module(runs, store).client() as client:
        assert (await client.send("once", {}, call_id="c")).result == 1
        store.left = 1_000
        repeat = await client.send("once", {}, call_id="c", seconds=0.1)
        assert (repeat.success, repeat.effect_state, len(runs.seen)) == (False, "unknown", 1)


class LostAnswer(MemoryReplies):
    """A store that does what it was first asked to write, and does not say so."""

    answers = 0

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        done = await super().swap(name, seen, record)
        self.answers += 1
        if self.answers == 1:
            raise ConnectionError("the answer was lost")
        return done


async def test_a_call_that_was_begun_in_the_store_only_is_begun_by_its_repeat() -> None:
    """Its record says that it runs, and this process knows that it does not; another request is refused all the same."""
    runs = Runs()
    async with make_module(runs, LostAnswer()).client() as client:
        assert (await client.send("once", {}, call_id="c")).status == 503
        assert (await client.send("once", {"n": 1}, call_id="c")).status == 422
        assert (await client.send("once", {}, call_id="c", seconds=20)).result == 1
        assert (await client.send("once", {}, call_id="c")).result == 1
    assert len(runs.seen) == 1


async def test_a_store_that_hangs_holds_a_call_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question has its end."""
    monkeypatch.setattr("toolfleet_modules.sdk.app.STORE_SECONDS", 0.05)
    runs = Runs()
    async with make_module(runs, Away(after=0, how=asyncio.Event().wait)).client() as client:
        assert (await client.send("read", {}, call_id="c")).success
        assert (await client.send("once", {}, call_id="c")).status == 503


async def test_a_lease_is_renewed_while_its_call_runs(
    make_durable: MakeReplies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long call is not taken for a dead process's."""
    monkeypatch.setattr("toolfleet_modules.calls.idempotency.LEASE_SECONDS", 0.5)
    monkeypatch.setattr("toolfleet_modules.calls.idempotency.RENEW_SECONDS", 0.05)
    runs = Runs(script=["wait"])
    store = make_durable()
    async with make_module(runs, make_durable()).client() as client:
        call = asyncio.create_task(client.send("once", {}, call_id="c"))
        await wait_until(lambda: runs.seen, "it runs")
        first = await store.get("c")
        assert first is not None

        async def is_renewed() -> bool:
            now = await store.get("c")
            return now is not None and now.until >= first.until + 0.6

        await wait_until_answered(is_renewed, "the lease is renewed")
        assert (await client.reconcile("c"))["state"] == "running"
        runs.go.set()
        assert (await call).success


class Careless(MemoryReplies):
    """Answers although it was cancelled, as a library below an author's store may."""

    swaps = 0

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        self.swaps += 1
        if self.swaps == 2:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return await super().swap(name, seen, record)


async def test_a_call_ends_though_its_store_loses_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal that is cancelled is the last one, whatever becomes of it."""
    monkeypatch.setattr("toolfleet_modules.calls.idempotency.RENEW_SECONDS", 0.01)
    runs, replies = Runs(script=["wait"]), Careless()
    async with make_module(runs, replies).client() as client:
        call = asyncio.create_task(client.send("once", {}, call_id="c"))
        await wait_until(lambda: replies.swaps > 1, "the lease is being renewed")
        runs.go.set()
        assert (await call).success


async def test_a_flood_of_one_id_runs_once(make_replies: MakeReplies) -> None:
    """From two processes, two hundred at once."""
    runs = Runs()
    one, other = make_module(runs, make_replies()), make_module(runs, make_replies())
    async with one.client() as here, other.client() as there:
        results = await asyncio.gather(*((here, there)[n % 2].send("once", {}, call_id="c") for n in range(200)))
    assert {result.result for result in results} == {1}
    assert len(runs.seen) == 1


async def test_calls_without_an_id_are_calls_of_their_own(make_replies: MakeReplies) -> None:
    """Nobody can tell a repeat from a second wish."""
    runs = Runs()
    async with make_module(runs, make_replies()).client() as client:
        for _ in range(2):
            assert (await client.http.post("/execute", json={"tool_name": "owls.once"})).json()["success"]
        longest = await client.http.post(
            "/execute", json={"tool_name": "owls.once"}, headers={"Idempotency-Key": "x" * 257}
        )
        assert longest.status_code == 422
    assert len(runs.seen) == 2
