"""A module's breaker in Redis, by a clock that the test sets: closed, open, half-open, and held against a model of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from support.schemas.examples import examples
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.scripts import DEFERENCE_MS, FILES, FRESH_MS, GLANCE_MS, TOKENS, YOUNG_MS, script

FUNCTIONS = FILES.functions("breaker")
NOW = "local now = clock[1] * 1000 + math.floor(clock[2] / 1000)"
KEY = Keys().breaker("owls")
THRESHOLD, LONGEST, PROBE_MS = 3, 4_000, 3_000
BEARABLE = 2_500
FIRST, SECOND = 1000, 1500
ONE, TWO = "host:1", "host:2"


class Breaker:
    """The functions and scripts, with the time that a test sets."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis
        seconds, micros = redis.time()  # keys expire by its clock
        self.now = seconds * 1000 + micros // 1000

    def call(self, function: str, *arguments: Any) -> Any:
        shown = [_lua(argument) for argument in (self.now, *arguments)]
        return self.redis.eval(f"{FUNCTIONS} return {{{function}({', '.join(['KEYS[1]', *shown])})}}", 1, KEY)

    def run(self, name: str, **named: Any) -> Any:
        ran = script(f"breaker/{name}")
        text = ran.text.replace(NOW, f"local now = {self.now}")
        return self.redis.eval(text, *ran.parameters(breaker=KEY, **named))

    def rest(self) -> int:
        return int(self.call("breaker_rest")[0])

    def passes(self, *, can_reach: bool = True) -> tuple[int, bool]:
        answer = self.call("breaker_pass", can_reach)
        return int(answer[0]), bool(answer[1])

    def note(self, *, failed: bool, took: int = 0) -> None:
        self.call("breaker_note", int(failed), THRESHOLD, LONGEST, took)

    def fail(self, times: int = THRESHOLD) -> None:
        for _ in range(times):
            self.note(failed=True)

    def unreached(self, worker: str, *live: str, why: str = "") -> int:
        return int(self.run("unreached", worker=worker, longest_ms=LONGEST, why=why, live=live or [worker]))

    def reached(self, worker: str) -> None:
        self.run("reached", worker=worker)

    def ask(self, worker: str, *, has_others: bool = False) -> tuple[str, int]:
        answer = self.run("ask", worker=worker, probe_ms=PROBE_MS, has_others="01"[has_others])
        return answer[0], int(answer[1])

    def probed(self, worker: str, verdict: str) -> int:
        return int(self.run("probed", worker=worker, verdict=verdict, longest_ms=LONGEST, bearable_ms=BEARABLE))

    def come_back(self) -> None:
        """Wait for the end of the pause, look, and find the module there."""
        self.now += self.rest()
        assert self.ask(ONE) == ("probe", 0)
        self.probed(ONE, "well")


def _lua(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else str(value)


@pytest.fixture
def redis(redis_url: str) -> Iterator[Any]:
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        yield redis


@pytest.fixture
def breaker(redis: Any) -> Breaker:
    return Breaker(redis)


def test_failures_in_a_row_open_it(breaker: Breaker) -> None:
    """One fewer does not; the last one does, and everybody is told for how long."""
    breaker.fail(THRESHOLD - 1)
    assert (breaker.rest(), breaker.passes()) == (0, (0, False))
    breaker.fail(1)
    breaker.now += 1

    assert (breaker.rest(), breaker.passes()) == (FIRST - 1, (FIRST - 1, False))


def test_a_success_between_starts_the_count_anew(breaker: Breaker) -> None:
    """Only failures in a row count, and a closed breaker is no key."""
    for _ in range(3):
        breaker.fail(THRESHOLD - 1)
        breaker.note(failed=False)

    assert breaker.rest() == 0
    assert not breaker.redis.exists(KEY)


SET_BACK = 600_000
"""Redis's own clock, by so many ms."""


def test_a_clock_that_is_set_back_keeps_no_module_away(breaker: Breaker) -> None:
    """Whether it was open, or half-open with nobody let in: it is looked at, or let in, at once; and it opens again as ever."""
    breaker.fail()
    breaker.now -= SET_BACK
    assert breaker.rest() <= GLANCE_MS
    assert breaker.ask(ONE, has_others=True) == ("probe", 0)
    breaker.probed(ONE, "well")
    for _ in range(TOKENS):
        assert breaker.passes() == (0, False)
    breaker.now -= SET_BACK

    assert breaker.passes() == (0, False)
    breaker.note(failed=True)
    assert 0 < breaker.rest() <= LONGEST


def test_who_died_looking_holds_nobody_up_when_the_clock_is_set_back(breaker: Breaker) -> None:
    """Another one looks."""
    breaker.fail()
    breaker.now += breaker.rest()
    assert breaker.ask(ONE) == ("probe", 0)
    breaker.now -= SET_BACK

    assert breaker.ask(TWO) == ("probe", 0)


def test_who_looked_in_vain_looks_again_though_the_clock_is_set_back(breaker: Breaker) -> None:
    """It lets no others go first by a time that is far ahead."""
    breaker.fail()
    breaker.now += breaker.rest()
    assert breaker.ask(ONE) == ("probe", 0)
    breaker.probed(ONE, "away")
    breaker.now -= SET_BACK

    assert breaker.ask(ONE, has_others=True) == ("probe", 0)


def test_one_workers_trouble_does_not_open_it(breaker: Breaker) -> None:
    """However often it fails; when the other one fails as well, it opens at once."""
    assert [breaker.unreached(ONE, ONE, TWO) for _ in range(2 * THRESHOLD)] == [0] * 2 * THRESHOLD
    assert breaker.passes() == (0, False)

    assert breaker.unreached(TWO, TWO, ONE) == FIRST
    assert breaker.passes() == (FIRST, False)


def test_what_a_worker_could_not_do_long_ago_does_not_count(breaker: Breaker) -> None:
    """Nor does it after any call's success, nor when it has said that it can again."""
    breaker.unreached(ONE, ONE, TWO)
    breaker.now += FRESH_MS + 1
    assert breaker.unreached(TWO, TWO, ONE) == 0
    breaker.note(failed=False)
    assert breaker.unreached(ONE, TWO, ONE) == 0
    breaker.reached(ONE)

    assert not breaker.redis.exists(KEY)
    assert breaker.unreached(TWO, TWO, ONE) == 0


def quiet(breaker: Breaker) -> None:
    """Let so much time pass without a call that the breaker is for looks to close."""
    breaker.now += YOUNG_MS + FIRST


def test_without_calls_looks_close_it(breaker: Breaker) -> None:
    """Once nobody has been let in for a while, and one worker at a time looks; a call that was let in meanwhile is for itself to say."""
    breaker.fail()
    breaker.come_back()
    assert breaker.ask(ONE)[0] == "half", "it is too soon"
    quiet(breaker)
    assert breaker.ask(ONE) == ("probe", 0)
    assert breaker.ask(TWO)[0] == "half"
    breaker.passes()
    breaker.probed(ONE, "well")
    assert breaker.redis.exists(KEY), "a call is there"
    quiet(breaker)
    assert breaker.ask(TWO) == ("probe", 0)
    breaker.probed(TWO, "well")

    assert not breaker.redis.exists(KEY)


@pytest.mark.parametrize(("verdict", "opens"), [("away", True), ("unready", False), ("none", False)])
def test_without_calls_a_look_opens_it_only_for_a_module_that_is_away(
    breaker: Breaker, verdict: str, opens: bool
) -> None:
    """One that says it is not ready is tried all the same, by calls."""
    breaker.fail()
    breaker.come_back()
    quiet(breaker)
    assert breaker.ask(ONE) == ("probe", 0)
    breaker.probed(ONE, verdict)

    assert (breaker.rest() > 0) is opens
    assert breaker.redis.exists(KEY)


@pytest.mark.parametrize(
    ("open_it", "why"),
    [
        (lambda breaker: breaker.fail(), "failed"),
        (lambda breaker: breaker.unreached(ONE), "away"),
        (lambda breaker: breaker.unreached(ONE, why="refused"), "refused"),
        (lambda breaker: (breaker.fail(1), breaker.unreached(ONE, why="silent")), "silent"),
        (lambda breaker: (breaker.fail(), breaker.ask(ONE), breaker.probed(ONE, "away")), "failed"),
    ],
)
def test_it_says_why_it_is_open(breaker: Breaker, open_it: Any, why: str) -> None:
    """As the worker has noted that could not connect; `failed` only if calls have failed."""
    open_it(breaker)

    assert breaker.redis.eval(f"{FUNCTIONS} return breaker_why(KEYS[1])", 1, KEY) == why


def test_nobodys_call_is_the_probe(breaker: Breaker) -> None:
    """When the pause is over a call still waits, for a moment, until somebody has looked."""
    breaker.fail()
    breaker.now += FIRST + 60_000

    assert [breaker.passes() for _ in range(3)] == [(GLANCE_MS, True)] * 3
    assert breaker.rest() == 0


def test_one_worker_looks_at_a_time(breaker: Breaker) -> None:
    """The others hear how long it has for that; the same one may ask again; one that died is replaced."""
    breaker.fail()
    assert breaker.ask(ONE) == ("open", FIRST)
    breaker.now += FIRST
    assert [breaker.ask(worker) for worker in (ONE, TWO, ONE)] == [("probe", 0), ("open", GLANCE_MS), ("probe", 0)]
    breaker.now += PROBE_MS

    assert breaker.ask(TWO) == ("probe", 0)
    assert breaker.probed(ONE, "well") == 0, "it is too late"
    assert breaker.ask(TWO) == ("probe", 0)


def test_pauses_grow(breaker: Breaker) -> None:
    """Each time that the module is looked for in vain, up to the longest."""
    breaker.fail()
    pauses = []
    for _ in range(6):
        breaker.now += breaker.ask(ONE)[1]
        assert breaker.ask(ONE) == ("probe", 0)
        pauses.append(breaker.probed(ONE, "away"))

    assert pauses == [1500, 2250, 3375, 4000, 4000, 4000]


def test_whoever_has_looked_in_vain_lets_others_go_first(breaker: Breaker) -> None:
    """It may be its own trouble. Where there are none, or they do not come, it looks itself."""
    breaker.fail()
    breaker.now += FIRST
    breaker.ask(ONE, has_others=True)
    breaker.probed(ONE, "away")
    breaker.now += SECOND

    assert breaker.ask(ONE, has_others=True) == ("open", DEFERENCE_MS)
    assert breaker.ask(TWO, has_others=True) == ("probe", 0)
    assert breaker.probed(TWO, "none") == 0
    breaker.now += DEFERENCE_MS
    assert breaker.ask(ONE, has_others=True) == ("probe", 0)


def test_a_module_that_says_for_long_that_it_is_not_ready_is_tried(breaker: Breaker) -> None:
    """Whoever hears it; with another word in between, or a clock that is set back, it has as long once more."""
    breaker.fail()

    def pause_after(*words: tuple[str, str]) -> int:
        pause = 0
        for worker, word in words:
            breaker.now += breaker.rest()
            assert breaker.ask(worker) == ("probe", 0)
            pause = breaker.probed(worker, word)
        return pause

    assert pause_after((ONE, "unready"), (TWO, "unready"), (TWO, "none"), (TWO, "away")) > 0
    assert pause_after((ONE, "unready"), (TWO, "unready")) == 0
    assert breaker.passes() == (0, False)
    breaker.note(failed=True)
    breaker.now -= SET_BACK
    assert pause_after((ONE, "unready")) > 0


def test_calls_are_let_in_gradually(breaker: Breaker) -> None:
    """So many at once; each that is answered makes room for two; with as many as had failed it is closed."""
    breaker.fail()
    breaker.come_back()
    assert [breaker.passes()[0] for _ in range(TOKENS + 1)] == [0] * TOKENS + [GLANCE_MS]
    breaker.note(failed=False)
    assert [breaker.passes()[0] for _ in range(3)] == [0, 0, GLANCE_MS]
    for _ in range(THRESHOLD - 1):
        breaker.note(failed=False)

    assert not breaker.redis.exists(KEY)


def test_a_call_that_says_nothing_makes_room_for_one(breaker: Breaker) -> None:
    """One that was refused in its worker, say."""
    breaker.fail()
    breaker.come_back()
    for _ in range(TOKENS):
        breaker.passes()
    breaker.redis.eval(f"{FUNCTIONS} return breaker_spare(KEYS[1])", 1, KEY)

    assert [breaker.passes()[0] for _ in range(2)] == [0, GLANCE_MS]


def test_a_call_whose_end_is_never_heard_closes_nothing_for_ever(breaker: Breaker) -> None:
    """One more is let in after each pause; until then calls are told how long, once the module is back for a while."""
    breaker.fail()
    breaker.come_back()
    for _ in range(TOKENS):
        breaker.passes()
    breaker.now += FIRST
    assert [breaker.passes() for _ in range(2)] == [(0, False), (GLANCE_MS, True)]
    breaker.now += YOUNG_MS
    assert [breaker.passes() for _ in range(2)] == [(0, False), (FIRST, False)]

    assert breaker.rest() == FIRST


def test_a_failure_of_a_call_that_was_let_in_opens_it_for_longer(breaker: Breaker) -> None:
    """And from then on one call at a time is let in first."""
    breaker.fail()
    breaker.come_back()
    breaker.passes()
    breaker.note(failed=True)
    assert breaker.rest() == SECOND
    breaker.come_back()

    assert [breaker.passes()[0] for _ in range(2)] == [0, GLANCE_MS]


def test_failures_of_calls_that_began_before_say_nothing_new(breaker: Breaker) -> None:
    """Neither while it is open, nor when the module is back."""
    breaker.fail()
    breaker.now += 500
    breaker.fail(10)
    assert breaker.rest() == FIRST - 500
    breaker.come_back()
    breaker.now += 100
    breaker.note(failed=True, took=30_000)

    assert breaker.passes() == (0, False)


def test_a_worker_that_cannot_connect_begins_nothing(breaker: Breaker) -> None:
    """What has come back, others find; for a breaker that is open it hears how long."""
    assert breaker.passes(can_reach=False) == (GLANCE_MS, True)
    breaker.fail()
    assert breaker.passes(can_reach=False) == (FIRST, False)
    breaker.come_back()

    assert breaker.passes(can_reach=False) == (GLANCE_MS, True)


def test_an_older_workers_breaker_is_understood(breaker: Breaker) -> None:
    """It knows `failures`, `open_until` and its probe only; it may open a half-open breaker, too."""
    breaker.redis.hset(KEY, mapping={"failures": 20, "open_until": breaker.now + 500})
    breaker.redis.expire(KEY, 60)
    assert breaker.passes() == (500, False)
    breaker.come_back()
    assert breaker.passes() == (0, False)
    breaker.redis.hset(KEY, "open_until", breaker.now + 700)

    assert (breaker.rest(), breaker.passes()) == (700, (700, False))


def test_it_expires(breaker: Breaker) -> None:
    """In each of its states."""
    for step in (lambda: breaker.fail(1), lambda: breaker.unreached(ONE, TWO), breaker.fail, breaker.come_back):
        step()
        assert 0 < breaker.redis.pttl(KEY) <= 600_000 + LONGEST


@dataclass
class Model:
    """The breaker as it is meant."""

    failures: int = 0
    state: str = "closed"
    until: int = 0
    pause: int = 0
    half_at: int = 0
    let_in_at: int = 0
    tokens: int = 0
    passed: int = 0
    prober: str = ""
    prober_until: int = 0
    failed_by: str = ""
    relapsed: bool = False
    unready_since: int = 0
    marks: dict[str, int] = field(default_factory=dict)

    def open(self, now: int) -> int:
        self.pause = min(self.pause * 3 // 2 or FIRST, LONGEST)
        self.state, self.until, self.prober = "open", now + self.pause, ""
        return self.pause

    def is_due(self, now: int) -> bool:
        return self.state == "open" and self.until <= now


class BreakerMachine(RuleBasedStateMachine):
    """Workers fail, succeed, look and die in any order, as time goes by."""

    redis: Any

    workers = st.sampled_from([ONE, TWO])

    @initialize()
    def begin(self) -> None:
        self.redis.delete(KEY)
        self.breaker, self.model = Breaker(self.redis), Model()

    @rule(ms=st.sampled_from([1, 100, 500, 1000, 1500, 4000, FRESH_MS]))
    def time_passes(self, ms: int) -> None:
        self.breaker.now += ms

    @rule()
    def succeed(self) -> None:
        self.breaker.note(failed=False)
        model = self.model
        if model.state == "half":
            model.passed, model.tokens = model.passed + 1, model.tokens + 2
        if model.state != "half" or model.passed >= THRESHOLD:
            self.model = Model()

    @rule(took=st.sampled_from([0, 200, 2000]))
    def fail(self, took: int) -> None:
        self.breaker.note(failed=True, took=took)
        model, now = self.model, self.breaker.now
        if model.state == "half" and now - took < model.half_at:
            return
        model.failures += 1
        if model.state == "half" or (model.state == "closed" and model.failures >= THRESHOLD):
            model.relapsed = model.relapsed or model.state == "half"
            model.open(now)

    @rule(can_reach=st.booleans())
    def begin_call(self, can_reach: bool) -> None:
        model, now = self.model, self.breaker.now
        rest, is_soon = self.breaker.passes(can_reach=can_reach)
        if model.state == "open":
            assert (rest, is_soon) == ((GLANCE_MS, True) if model.is_due(now) else (model.until - now, False))
        elif not can_reach:
            assert (rest, is_soon) == (GLANCE_MS, True)
        elif model.state == "half" and model.tokens == 0 and now < model.let_in_at + model.pause:
            assert rest > 0
            assert is_soon == (now < model.half_at + YOUNG_MS)
        else:
            assert (rest, is_soon) == (0, False)
            model.tokens, model.let_in_at = max(model.tokens - 1, 0), now

    @rule(worker=workers, is_alone=st.booleans())
    def cannot_connect(self, worker: str, is_alone: bool) -> None:
        model, now, live = self.model, self.breaker.now, [worker] if is_alone else [ONE, TWO]
        ms = self.breaker.unreached(worker, *live)
        model.marks[worker] = now
        if model.state == "open":
            assert ms > 0
        elif all(name in model.marks and now - model.marks[name] <= FRESH_MS for name in live):
            assert ms == model.open(now)
        else:
            assert ms == 0

    @rule(worker=workers)
    def can_connect(self, worker: str) -> None:
        self.breaker.reached(worker)
        self.model.marks.pop(worker, None)

    @rule(worker=workers, has_others=st.booleans())
    def ask(self, worker: str, has_others: bool) -> None:
        model, now = self.model, self.breaker.now
        what, ms = self.breaker.ask(worker, has_others=has_others)
        lets_others = has_others and model.failed_by == worker and now < model.until + DEFERENCE_MS
        if not model.is_due(now):
            assert what == model.state
        elif model.prober not in {"", worker} and now < model.prober_until:
            assert (what, ms) == ("open", min(model.prober_until - now, GLANCE_MS))
        elif lets_others:
            assert (what, ms) == ("open", model.until + DEFERENCE_MS - now)
        else:
            assert what == "probe"
            model.prober, model.prober_until = worker, now + PROBE_MS

    @precondition(lambda self: self.model.prober)
    @rule(worker=workers, verdict=st.sampled_from(["well", "away", "none", "unready"]))
    def tell(self, worker: str, verdict: str) -> None:
        model, now = self.model, self.breaker.now
        ms = self.breaker.probed(worker, verdict)
        if worker != model.prober:
            assert ms == 0
            return
        model.prober, model.failed_by = "", worker
        if verdict == "unready":
            model.unready_since = model.unready_since or now
            verdict = "well" if now - model.unready_since >= BEARABLE else "away"
        elif verdict != "none":
            model.unready_since = 0
        if verdict == "away":
            model.marks[worker] = now
            assert ms == model.open(now)
        elif verdict == "well":
            model.state, model.half_at, model.let_in_at, model.passed = "half", now, now, 0
            model.tokens = 1 if model.relapsed else TOKENS
            model.marks, model.failed_by = {}, ""

    @invariant()
    def agents_are_told_the_same(self) -> None:
        """And looking changes nothing; whatever there is expires."""
        before = self.redis.hgetall(KEY)
        rest, now = self.breaker.rest(), self.breaker.now
        if self.model.state == "closed":
            assert rest == 0
        if self.model.state == "open" and not self.model.is_due(now):
            assert rest == self.model.until - now
        assert self.redis.hgetall(KEY) == before
        assert self.redis.pttl(KEY) != -1


def test_it_is_as_it_is_meant(redis: Any) -> None:
    """Whatever happens in whatever order."""
    machine = type("Machine", (BreakerMachine,), {"redis": redis})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(40),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
