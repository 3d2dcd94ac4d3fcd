"""An attempt at one of a module's processes: which it goes to, what the ledger is told before, and when it goes on to the next."""

import pytest

from support.published_call import published
from support.workers.finite_lease import FiniteLease
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Health, LeaseOver, Outcome
from toolfleet_registry.directory.entries import Replica
from toolfleet_workers.executors.address_book import Replicas, ReplicaState
from toolfleet_workers.executors.http_executor import send_to_one
from toolfleet_workers.runner import unsuccessful

TOOL = published().tool_name
DONE = Attempt(Outcome.SUCCESS, ToolResult.ok(TOOL, "hu"))


def unsent(unreached: Health) -> Attempt:
    attempt = unsuccessful(published(), Outcome.NOT_SENT, "module_unreachable", "Connection refused")
    return Attempt(attempt.outcome, attempt.result, unreached=unreached)


class Processes:
    """Three of them, of which `dead` cannot be reached. `told` is what the ledger heard, and who was sent to, in their order."""

    def __init__(self, *dead: str, unreached: Health = Health.AWAY) -> None:
        self.replicas = Replicas()
        self.replicas.serve([Replica(id_, "http://127.0.0.1:1") for id_ in "abc"])
        self.dead, self.unreached = dead, unreached
        self.told = list[str]()
        self.others = list[int]()

    async def send(self, state: ReplicaState, others: int) -> Attempt:
        assert state.in_flight == 1
        self.told.append(f"send {state.replica.id}")
        self.others.append(others)
        return unsent(self.unreached) if state.replica.id in self.dead else DONE

    async def run(self, lease: FiniteLease) -> Attempt | None:
        processes = self

        class Told(FiniteLease):
            async def move(self, replica: str) -> None:
                processes.told.append(f"move {replica}")
                await super().move(replica)

        attempt = await send_to_one(self.replicas, Told(9, replica=lease.replica), self.send)
        assert not any(state.in_flight for state in self.replicas.states.values())
        return attempt


async def test_it_goes_where_the_lease_says() -> None:
    """That is noted already."""
    processes = Processes()
    assert await processes.run(FiniteLease(9, replica="b")) is DONE
    assert processes.told == ["send b"]


async def test_the_next_one_is_noted_before_it_is_sent_to() -> None:
    """Nothing was sent to the first, which is left alone."""
    processes = Processes("b")
    assert await processes.run(FiniteLease(9, replica="b")) is DONE

    other = processes.told[-1].removeprefix("send ")
    assert processes.told == ["send b", f"move {other}", f"send {other}"]
    assert (processes.replicas.states["b"].failures, processes.replicas.states[other].failures) == (1, 0)


async def test_each_is_tried_once() -> None:
    """Then the attempt ends as one at a module that is away."""
    processes = Processes("a", "b", "c")
    attempt = await processes.run(FiniteLease(9, replica="b"))

    assert attempt is not None
    assert attempt.unreached is Health.AWAY
    assert sorted(one for one in processes.told if one.startswith("send")) == ["send a", "send b", "send c"]
    assert processes.others == [2, 1, 0]


async def test_a_worker_that_can_connect_to_nothing_does_not_go_on() -> None:
    """That is its own trouble, and nobody is left alone for it."""
    processes = Processes("b", unreached=Health.UNKNOWN)
    attempt = await processes.run(FiniteLease(9, replica="b"))

    assert attempt is not None
    assert processes.told == ["send b"]
    assert processes.replicas.states["b"].failures == 0


@pytest.mark.parametrize("note", ["", "gone"])
async def test_without_a_process_that_is_there_one_is_chosen_and_noted(note: str) -> None:
    """The lease names none, or one that has gone meanwhile."""
    processes = Processes()
    assert await processes.run(FiniteLease(9, replica=note)) is DONE
    assert [one[:-2] for one in processes.told] == ["move", "send"]


async def test_without_any_process_there_is_no_attempt() -> None:
    """All have gone."""
    processes = Processes()
    processes.replicas.serve([])
    assert await processes.run(FiniteLease(9, replica="a")) is None


async def test_who_has_lost_the_call_sends_nothing_to_the_next() -> None:
    """Others have it by now, and know it at the first one."""
    processes = Processes("b")

    class Lost(FiniteLease):
        async def move(self, replica: str) -> None:
            raise LeaseOver

    with pytest.raises(LeaseOver):
        await send_to_one(processes.replicas, Lost(9, replica="b"), processes.send)
    assert processes.told == ["send b"]
