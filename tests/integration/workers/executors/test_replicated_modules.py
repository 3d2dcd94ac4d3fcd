"""A module at several addresses: which of its processes a call meets, and whose word counts on what became of it."""

import contextlib
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from support.modules.http_executor import client_of
from support.modules.raw_module import Behaviour, Peer, RawModule, answering, http, raw_module, reply
from support.published_call import published
from support.workers.finite_lease import FiniteLease
from toolfleet_registry.contracts.attempts import Attempt, Health, Outcome, StatusMissing, StillAtWork
from toolfleet_registry.directory.entries import Replica
from toolfleet_workers.executors import address_book
from toolfleet_workers.executors.http_client import HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor

SECONDS = 10
CALL = published()
DONE = http(reply(result="hu"))
ELSEWHERE = http(b'{"detail": "Another process serves here by now."}', "409 Conflict", "Toolfleet-Replica: z")


@contextlib.contextmanager
def refusing() -> Generator[str]:
    """A port that nobody listens at, and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextlib.contextmanager
def silent() -> Generator[str]:
    """A machine that is off: connections to it get no answer."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(8):
            guest = stack.enter_context(socket.socket())
            guest.setblocking(False)
            guest.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


class Served:
    """An executor and the processes of `research`: `seen` is what came to each, by its id."""

    def __init__(self, executor: HttpExecutor) -> None:
        self.executor = executor
        self.modules = dict[str, RawModule]()
        self.replicas = dict[str, Replica]()

    def serve(self, *gone: str) -> None:
        replicas = tuple(each for id_, each in self.replicas.items() if id_ not in gone)
        services = {"research": replicas[0].url} if replicas else {"research": "http://127.0.0.1:1"}
        self.executor.serve(services, replicas={"research": replicas})

    async def execute(self, lease: FiniteLease, seconds: float = SECONDS) -> Attempt:
        return await self.executor.execute(CALL, seconds=seconds, lease=lease)

    async def asked(self, replica: str, *, is_scattered: bool = False) -> Attempt | None:
        lease = FiniteLease(99, replica=replica, is_scattered=is_scattered)
        return await self.executor.reconcile(CALL, seconds=SECONDS, lease=lease)

    def lines(self) -> dict[str, list[str]]:
        return {id_: [one.line for one in module.requests] for id_, module in self.modules.items() if module.requests}


@asynccontextmanager
async def served(processes: Mapping[str, Behaviour | str], *, shares: bool = False) -> AsyncGenerator[Served]:
    """Each process behaves so, or is at that address."""
    async with AsyncExitStack() as stack:
        made = Served(HttpExecutor({}, client=HttpClient(), max_reply_bytes=2**20))
        stack.push_async_callback(made.executor.aclose)
        for id_, process in processes.items():
            url = process
            if not isinstance(process, str):
                made.modules[id_] = module = await stack.enter_async_context(raw_module(process))
                url = module.url
            made.replicas[id_] = Replica(id_, str(url), has_shared_store=shares)
        made.serve()
        yield made


def said(state: str, **fields: Any) -> Behaviour:
    return answering(http(json.dumps({"call_id": "call-1", "state": state, **fields}).encode()))


async def test_a_call_goes_to_the_process_that_its_lease_names() -> None:
    """And says which one is meant."""
    async with served({"a": answering(DONE), "b": answering(DONE), "c": answering(DONE)}) as here:
        for _ in range(5):
            assert (await here.execute(FiniteLease(9, replica="b"))).result.success

        assert here.lines().keys() == {"b"}
        assert {one.headers["toolfleet-replica"] for one in here.modules["b"].requests} == {"b"}


async def test_what_a_call_would_go_to_is_said_before() -> None:
    """A module with one address has nothing to be noted."""
    async with served({"a": answering(DONE), "b": answering(DONE)}, shares=True) as here:
        assert {here.executor.replica_for(CALL) for _ in range(50)} == {"a shared", "b shared"}
        assert here.executor.replica_for(published("owls.count")) == ""


@pytest.mark.parametrize("off", [refusing, silent])
async def test_what_cannot_be_connected_to_is_passed_over_within_the_attempt(off: Any) -> None:
    """Nothing was sent there. The ledger knows the other one before that is sent anything."""
    with off() as url:
        async with served({"a": url, "b": answering(DONE)}) as here:
            lease = FiniteLease(9, replica="a")
            attempt = await here.execute(lease, seconds=2)

            assert (attempt.outcome, lease.replica) == (Outcome.SUCCESS, "b")
            assert here.executor.counts()["research"]["a"][1] == 1
            assert {here.executor.replica_for(CALL) for _ in range(50)} == {"b"}


async def test_where_none_can_be_connected_to_the_module_is_away() -> None:
    """As one with a single address."""
    with refusing() as a, refusing() as b:
        async with served({"a": a, "b": b}) as here:
            attempt = await here.execute(FiniteLease(9, replica="a"))

    assert (attempt.outcome, attempt.unreached) == (Outcome.NOT_SENT, Health.AWAY)
    assert attempt.result.error == "Tool execution error: Connection refused"


async def test_another_process_at_the_address_has_done_nothing() -> None:
    """It says that it was not meant, and the call goes on to one that was."""
    async with served({"a": answering(ELSEWHERE), "b": answering(DONE)}) as here:
        lease = FiniteLease(9, replica="a")
        attempt = await here.execute(lease)

        assert (attempt.outcome, lease.replica) == (Outcome.SUCCESS, "b")
        assert here.executor.counts()["research"]["a"][1] == 1


async def test_only_strangers_at_all_addresses_are_a_module_that_is_away() -> None:
    """The call was begun nowhere."""
    async with served({"a": answering(ELSEWHERE), "b": answering(ELSEWHERE)}) as here:
        attempt = await here.execute(FiniteLease(9, replica="a"))

    assert (attempt.outcome, attempt.result.effect_state) == (Outcome.NOT_SENT, "none")


async def test_a_conflict_of_a_tool_is_no_stranger_s() -> None:
    """Its own 409 says nothing of ids, and ends the call."""
    async with served({"a": answering(http(b"no", "409 Conflict")), "b": answering(DONE)}) as here:
        attempt = await here.execute(FiniteLease(9, replica="a"))

    assert attempt.outcome is Outcome.PERMANENT


async def test_what_was_sent_is_sent_nowhere_else() -> None:
    """The connection broke before the reply: the process may have done it."""

    async def dies(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    async with served({"a": dies, "b": answering(DONE)}) as here:
        lease = FiniteLease(9, replica="a")
        attempt = await here.execute(lease)

        assert (attempt.outcome, lease.replica) == (Outcome.UNKNOWN, "a")
        assert here.lines().keys() == {"a"}


async def test_the_next_one_gets_no_more_than_the_time_that_is_left() -> None:
    """The limit is that of the attempt, however many processes it meets."""
    with silent() as url:
        async with served({"a": url, "b": answering(DONE)}) as here:
            await here.execute(FiniteLease(9, replica="a"), seconds=2)

            (request,) = here.modules["b"].requests
            assert int(request.headers["toolfleet-time-left-ms"]) <= 1000


async def test_the_process_that_had_the_call_is_asked_for_it() -> None:
    """No other one, whatever that would say."""
    async with served({"a": said("none"), "b": said("done", success=True, result=1)}) as here:
        first, second = await here.asked("a"), await here.asked("b")

        assert first is not None
        assert second is not None
        assert (first.outcome, second.outcome) == (Outcome.NOT_SENT, Outcome.SUCCESS)
        assert here.lines() == {"a": ["POST /reconcile HTTP/1.1"], "b": ["POST /reconcile HTTP/1.1"]}


async def test_a_process_that_has_gone_leaves_no_word() -> None:
    """The others know nothing of the call, and do not say that it was not executed."""
    async with served({"a": said("none"), "b": said("none")}) as here:
        here.serve("a")

        assert await here.asked("a") is None
        assert here.lines() == {}


async def test_another_process_at_the_address_has_no_word_on_the_call() -> None:
    """The directory has not told the worker yet."""
    async with served({"a": answering(ELSEWHERE), "b": said("none")}) as here:
        assert await here.asked("a") is None
        assert here.lines().keys() == {"a"}


async def test_with_one_store_for_all_any_that_can_be_reached_is_asked() -> None:
    """The process that had the call has gone."""
    with refusing() as off:
        async with served({"a": said("none"), "b": off, "c": said("none")}, shares=True) as here:
            here.serve("a")
            attempt = await here.asked("a shared")

            assert attempt is not None
            assert (attempt.outcome, [*here.lines()]) == (Outcome.NOT_SENT, ["c"])


@pytest.mark.parametrize("note", ["a", ""])
async def test_a_process_that_shared_nothing_is_answered_for_by_nobody(note: str) -> None:
    """What the module has now is no store that it has written to."""
    async with served({"a": said("none"), "b": said("none")}, shares=True) as here:
        here.serve("a")
        assert await here.asked(note) is None


@pytest.mark.parametrize(
    ("word", "counts"),
    [
        (said("none"), False),
        (said("done", success=False, error="no", effect_state="none"), False),
        (said("done", success=True, result=1), True),
        (said("done", success=False, error="no", effect_state="done"), True),
    ],
)
async def test_of_a_scattered_call_only_that_something_was_done_is_believed(word: Behaviour, counts: bool) -> None:
    """An earlier attempt was at another process, which may have done it."""
    async with served({"a": word, "b": word}) as here:
        attempt = await here.asked("a", is_scattered=True)

    assert (attempt is not None) == counts


async def test_whoever_is_at_a_single_address_has_no_word_on_a_process_s_call() -> None:
    """The module has left its several addresses, or all of its processes have gone."""
    async with served({"a": said("none")}) as here:
        here.executor.serve({"research": here.replicas["a"].url})

        assert await here.asked("a") is None
        lease = FiniteLease(9, replica="a")
        await here.execute(lease)
        assert lease.replica == ""


@pytest.mark.parametrize(
    ("first", "second", "health"),
    [
        (answering(http(b"")), None, Health.WELL),
        (answering(http(b"", "503 X")), None, Health.NOT_READY),
        (answering(http(b"", "503 X")), answering(http(b"")), Health.WELL),
        (None, None, Health.AWAY),
    ],
)
async def test_one_process_that_answers_makes_the_module_well(
    first: Behaviour | None, second: Behaviour | None, health: Health
) -> None:
    """All are asked at once."""
    with refusing() as off:
        async with served({"a": first or off, "b": second or off}) as here:
            assert await here.executor.probe("research", seconds=SECONDS) is health


async def test_each_address_is_guarded() -> None:
    """Whatever they announce."""
    async with served({"a": answering(DONE), "b": answering(DONE)}) as here:
        here.executor.guard({"research": lambda _: False})
        attempt = await here.execute(FiniteLease(9, replica="a"))

        assert attempt.outcome is Outcome.NOT_SENT
        assert here.lines() == {}


async def test_calls_in_flight_go_on_where_a_process_has_left() -> None:
    """Its address is known no more, and its reply counts."""
    here: Served

    async def leaves(peer: Peer) -> None:
        await peer.request()
        here.serve("a")
        assert here.executor.counts() == {}, "it is one of one"
        await peer.send(DONE)

    async with served({"a": leaves, "b": answering(DONE)}) as here:
        assert (await here.execute(FiniteLease(9, replica="a"))).result.success


async def test_a_replica_at_an_https_address_can_be_reached() -> None:
    """The client is told to trust as for any module."""
    async with served({"a": "https://127.0.0.1:1", "b": "http://127.0.0.1:1"}) as here:
        assert isinstance(client_of(here.executor)._ssl, ssl.SSLContext)


async def test_how_far_an_accepted_call_is_knows_the_process_that_has_it() -> None:
    """Another one would say that it knows nothing of it, and so end the call."""
    async with served({"a": said("running"), "b": answering(http(b"", "404 X"))}) as here:
        statuses = here.executor.statuses
        assert isinstance(
            await statuses.status(CALL, "h", seconds=SECONDS, lease=FiniteLease(9, replica="a")), StillAtWork
        )
        here.serve("a")
        assert isinstance(
            await statuses.status(CALL, "h", seconds=SECONDS, lease=FiniteLease(9, replica="a")), StatusMissing
        )
        assert here.lines() == {"a": ["POST /status HTTP/1.1"]}


async def test_a_process_that_does_not_come_back_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once: Redis that has lost its data hears of it again. One that is back is asked; one of which others know never goes."""
    lease = FiniteLease(99, replica="a")
    async with served({"a": said("running"), "b": said("running")}) as here:
        asked = partial(here.executor.statuses.status, CALL, "h", seconds=SECONDS, lease=lease)
        here.serve("a")
        assert await asked() == StatusMissing(is_leaving=True)
        here.serve()
        assert isinstance(await asked(), StillAtWork)
        for gone in (["a"], ["a", "b"]):  # also where the module has no process at all
            here.serve(*gone)
            assert await asked() == StatusMissing(is_leaving=True)
            with monkeypatch.context() as patch:
                patch.setattr(address_book, "ABSENT_SECONDS", 0.0)
                assert await asked() == StatusMissing(is_gone=True)
                assert await asked(lease=FiniteLease(99, replica="a shared")) == StatusMissing()


async def test_another_process_at_its_address_says_that_it_is_gone() -> None:
    """It has been started anew there; others are asked where they know of the call, too, once the directory says so."""
    async with served({"a": answering(ELSEWHERE)}) as here:
        statuses, lease = here.executor.statuses, FiniteLease(99, replica="a")
        assert await statuses.status(CALL, "h", seconds=SECONDS, lease=lease) == StatusMissing(is_gone=True)
    async with served({"a": answering(ELSEWHERE)}, shares=True) as here:
        shared = FiniteLease(99, replica="a shared")
        found = await here.executor.statuses.status(CALL, "h", seconds=SECONDS, lease=shared)
        assert found == StatusMissing()
