"""Which of a module's processes gets a call, and for how long one that could not be reached is left alone."""

from collections import Counter
from dataclasses import replace

import pytest

from toolfleet_registry.directory.entries import Replica
from toolfleet_registry.system import machine_clock
from toolfleet_workers.executors.address_book import Replicas, id_in, is_shared

A, B, C = (Replica(id_, f"http://127.0.0.1:{port}") for port, id_ in enumerate("abc", start=1))


class Time:
    """What the machine's clock shows."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(machine_clock, "monotonic", time)
    return time


def of(*replicas: Replica) -> Replicas:
    made = Replicas()
    made.serve(replicas)
    return made


def chosen(replicas: Replicas, times: int = 200) -> Counter[str]:
    """How often which was chosen."""
    found = [replicas.choose() for _ in range(times)]
    return Counter(state.replica.id for state in found if state is not None)


def test_each_process_gets_calls() -> None:
    """Of those that have as many in flight, chance decides."""
    assert chosen(of(A, B, C)).keys() == {"a", "b", "c"}


def test_of_two_the_one_with_fewer_calls_gets_the_next() -> None:
    """So the busiest of all never does."""
    replicas = of(A, B, C)
    replicas.states["b"].in_flight = 9

    assert chosen(replicas).keys() == {"a", "c"}


def test_there_may_be_none() -> None:
    """All have gone."""
    assert of().choose() is None


def test_what_could_not_be_reached_is_left_alone_and_longer_each_time(clock: Time) -> None:
    """A second at first, half a minute at last."""
    replicas = of(A, B)
    pauses = list[float]()
    for _ in range(7):
        replicas.states["a"].missed()
        pauses.append(replicas.states["a"].ejected_until - clock.now)
        assert chosen(replicas).keys() == {"b"}
        clock.now = replicas.states["a"].ejected_until

    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_calls_that_fail_together_are_one_failure(clock: Time) -> None:
    """A process that dies has many calls, and is back a second later."""
    replicas = of(A, B)
    for _ in range(100):
        replicas.states["a"].missed()

    assert (replicas.states["a"].pause, replicas.states["a"].failures) == (1, 100)


def test_after_its_time_one_call_tries_it_for_all(clock: Time) -> None:
    """The others wait for what comes of that; if nothing does, the next one tries."""
    replicas = of(A, B)
    replicas.states["a"].missed()
    clock.now += 1
    assert chosen(replicas)["a"] == 1
    clock.now += 2
    assert chosen(replicas)["a"] == 1


def test_an_answer_ends_all_that(clock: Time) -> None:
    """It is as good as any, and its next failure is a first one."""
    replicas = of(A, B)
    for _ in range(3):
        replicas.states["a"].missed()
        clock.now += 60
    replicas.states["a"].reached()
    assert chosen(replicas)["a"] > 1

    replicas.states["a"].missed()
    assert replicas.states["a"].pause == 1


def test_where_all_are_left_alone_the_first_to_come_back_is_tried(clock: Time) -> None:
    """The call would fail otherwise."""
    replicas = of(A, B)
    replicas.states["a"].missed()
    clock.now += 0.5
    replicas.states["b"].missed()

    assert chosen(replicas).keys() == {"a"}


def test_what_is_known_of_one_that_stays_stays() -> None:
    """Those that have gone are forgotten; one at the same address is another one."""
    replicas = of(A, B)
    replicas.states["a"].in_flight, replicas.states["b"].in_flight = 3, 4
    replicas.serve([A, replace(B, id="b2")])

    assert replicas.counts() == {"a": (3, 0, 0.0), "b2": (0, 0, 0.0)}


def test_an_id_that_no_header_can_carry_is_nobody_s() -> None:
    """It would end the request's head, or the ledger's note."""
    assert of(replace(A, id="a\r\nHost: b"), replace(B, id="b c"), replace(C, id="")).states == {}


def test_counts_say_for_how_long_one_is_left_alone(clock: Time) -> None:
    """In seconds from now."""
    replicas = of(A, B)
    replicas.states["a"].missed()
    clock.now += 0.25

    assert replicas.counts() == {"a": (0, 1, 0.8), "b": (0, 0, 0.0)}


def test_a_note_says_whether_others_know() -> None:
    """By it a worker sees it that has never met this process."""
    own, shared = of(A).states["a"], of(replace(A, has_shared_store=True)).states["a"]

    assert [(id_in(state.note), is_shared(state.note)) for state in (own, shared)] == [("a", False), ("a", True)]
