"""Which queue may have another slot."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.schemas.examples import examples
from toolfleet_tasks.fairness import FairSlots

OWLS, CATS, DOGS = "tools.owls", "tools.cats", "tools.dogs"


def filled(slots: int, **held: int) -> FairSlots:
    fair = FairSlots(slots)
    for queue, count in held.items():
        for _ in range(count):
            fair.take(f"tools.{queue}")
    return fair


def test_a_queue_alone_may_take_all_slots() -> None:
    """And not one more."""
    assert filled(8, owls=7).capacity_of(OWLS) == 1
    assert filled(8, owls=8).capacity_of(OWLS) == 0


@pytest.mark.parametrize(("slots", "beyond"), [(8, 2), (1000, 250), (7, 1), (4, 1), (3, 0), (1, 0)])
def test_another_one_begins_beyond_full_slots(slots: int, beyond: int) -> None:
    """At once, and in all up to a quarter more."""
    fair = filled(slots, owls=slots)
    began = 0
    while fair.capacity_of(CATS) > 0:
        fair.take(CATS)
        began += 1

    assert began == beyond


def test_beyond_full_slots_nobody_reaches_more_than_half() -> None:
    """Who holds half of them is itself a large one."""
    fair = filled(8, owls=5, cats=3)
    assert (fair.capacity_of(OWLS), fair.capacity_of(CATS), fair.capacity_of(DOGS)) == (0, 1, 2)


@pytest.mark.parametrize(
    "held", [{"owls": 8}, {"owls": 5, "cats": 3}, {"owls": 8, "cats": 2}, {"owls": 4, "cats": 4}, {"cats": 1}]
)
def test_thousands_of_queues_are_told_apart_by_those_that_hold_something(held: dict[str, int]) -> None:
    """Those that may begin calls are those that have room of their own, and the number is none too large for any of them."""
    fair = filled(8, **held)
    queues = [OWLS, CATS, DOGS, *(f"tools.{number}" for number in range(9))]
    open_queues, room = fair.capacities_of(queues)

    assert list(open_queues) == [queue for queue in queues if fair.capacity_of(queue) > 0]
    assert room == min((fair.capacity_of(queue) for queue in open_queues), default=room)


def test_the_large_one_gets_no_slot_until_it_is_below_half() -> None:
    """Also when slots are free, as long as another one has calls."""
    fair = filled(8, owls=8, cats=1)
    for _ in range(4):
        fair.give_back("", OWLS)
        assert (fair.capacity_of(OWLS), fair.open) == (0, 0)
    fair.give_back("", OWLS)

    assert fair.capacity_of(OWLS) == fair.open == 4


def test_alone_again_the_large_one_may_take_all() -> None:
    """When the last call of the others has ended."""
    fair = filled(8, owls=8, cats=2)
    fair.give_back("", OWLS)
    fair.give_back("", CATS)
    assert fair.capacity_of(OWLS) == 0
    fair.give_back("", CATS)

    assert fair.capacity_of(OWLS) == 1


def test_a_put_off_call_has_no_slot_before_it_begins() -> None:
    """Until there is one for it, it waits; one that is given up before has none to give back."""
    fair = filled(8, owls=8)
    for tag in ("1", "2"):
        fair.defer(tag)
    assert not fair.begin("1", OWLS)
    assert fair.begin("another", OWLS), "it was never put off"
    fair.give_back("", OWLS)
    assert fair.begin("1", OWLS)
    fair.give_back("2", OWLS)

    assert fair.open == 0


def test_it_says_when_others_may_begin_beyond_the_slots() -> None:
    """A queue that is small again, and the first room after none was left."""
    fair = filled(8, owls=8, cats=2)
    assert fair.give_back("", OWLS), "there was no room at all before"
    assert not fair.give_back("", OWLS)
    fair = filled(8, owls=4, cats=4, dogs=1)
    assert fair.give_back("", CATS), "below half"
    assert not filled(8, owls=4, cats=3).give_back("", OWLS), "that is no news while slots are free"


def test_more_slots_and_fewer() -> None:
    """What is held stays; who is large is counted anew."""
    fair = filled(8, owls=8, cats=1)
    fair.resize(20)
    assert fair.open == 11
    fair.resize(4)
    assert (fair.capacity_of(OWLS), fair.capacity_of(CATS)) == (-5, -4)


class Worker(RuleBasedStateMachine):
    """Any order of begins and ends, as the rule allows them, against what was promised."""

    @initialize(slots=st.integers(1, 20))
    def start(self, slots: int) -> None:
        self.fair, self.slots = FairSlots(slots), slots
        self.held = {OWLS: 0, CATS: 0, DOGS: 0}
        self.frozen = set[str]()  # had half of the slots or more when another went beyond

    @property
    def total(self) -> int:
        return sum(self.held.values())

    @rule(queue=st.sampled_from([OWLS, CATS, DOGS]), count=st.integers(1, 8))
    def begin(self, queue: str, count: int) -> None:
        for _ in range(min(count, self.fair.capacity_of(queue))):
            assert queue not in self.frozen
            self.fair.take(queue)
            self.held[queue] += 1
            if self.total > self.slots:
                self.frozen |= {name for name, held in self.held.items() if 2 * held >= self.slots}

    @precondition(lambda self: self.total)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        queue = data.draw(st.sampled_from(sorted(name for name, held in self.held.items() if held)))
        self.fair.give_back("", queue)
        self.held[queue] -= 1
        if 2 * self.held[queue] < self.slots:
            self.frozen.discard(queue)
        if sum(map(bool, self.held.values())) <= 1:
            self.frozen.clear()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "fair"):
            return
        most = self.slots + self.slots // 4
        assert self.total <= most
        for queue, held in self.held.items():
            if 2 * held < self.slots and self.total < most:
                assert self.fair.capacity_of(queue) > 0, "a small one begins at once"
            if held == self.total < self.slots:
                assert self.fair.capacity_of(queue) == self.slots - held, "alone, all slots are its own"


TestWorker = Worker.TestCase
TestWorker.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
