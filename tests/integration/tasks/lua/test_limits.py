"""What Redis knows of a user's limits, at any time of any day: the functions get it handed in."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from support.schemas.examples import examples
from toolfleet_tasks.scripts import FILES

LIMITS = FILES.functions("limits") + " "
DAY = 86_400_000
NOON = 20_000 * DAY + DAY // 2
KEY = "toolfleet:limit:00000000000000000000000000000000"
HELD = "toolfleet:held:"

_TERM = "local term = {most = ARGV[1], window = 86400000, cooldown = ARGV[2], kept = 0} "
_REST = LIMITS + _TERM + "limit_forget(KEYS[1], ARGV[3] + 0) return {limit_rest(KEYS[1], term, ARGV[3] + 0)}"
_REST_OF = LIMITS + _TERM + "return {limit_rest_of(KEYS[1], ARGV[4], term, ARGV[3] + 0)}"
_TAKE = LIMITS + _TERM + "return limit_take(KEYS[1], ARGV[4], term, ARGV[3] + 0, tonumber(ARGV[5]))"
_RETURN = LIMITS + "return limits_return(KEYS[1], ARGV[1])"


class Limit:
    """One limit in Redis."""

    def __init__(self, redis: Any, *, daily: int = 0, cooldown: int = 0) -> None:
        self.redis = redis
        self.daily, self.cooldown = daily, cooldown

    def rest(self, now: int) -> tuple[int, bool]:
        rest, is_daily = self.redis.eval(_REST, 1, KEY, self.daily, self.cooldown, now)
        return rest, bool(is_daily)

    def rest_of(self, name: str, now: int, *, daily: int | None = None) -> int:
        rest, _ = self.redis.eval(_REST_OF, 1, KEY, self.daily if daily is None else daily, self.cooldown, now, name)
        return int(rest)

    def take(self, name: str, now: int, *, until: int | None = None) -> None:
        self.redis.eval(_TAKE, 1, KEY, self.daily, self.cooldown, now, name, "" if until is None else until)
        self.redis.set(HELD + name, KEY, ex=60)

    def give_back(self, name: str) -> None:
        self.redis.eval(_RETURN, 1, HELD + name, name)


@pytest.fixture
def store(redis_url: str) -> Any:
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        yield redis


def test_a_daily_limit_is_reached_until_midnight(store: Any) -> None:
    """UTC, to the millisecond; then all of it is free again."""
    limit = Limit(store, daily=2)
    for name in "ab":
        assert limit.rest(NOON) == (0, False)
        limit.take(name, NOON)

    assert limit.rest(NOON) == (DAY // 2, True)
    assert limit.rest(NOON + DAY // 2 - 1) == (1, True)
    assert limit.rest(NOON + DAY // 2) == (0, False)


def test_a_cooldown_begins_with_the_latest_call(store: Any) -> None:
    """Also over midnight."""
    limit = Limit(store, daily=5, cooldown=1000)
    late = NOON + DAY // 2 - 300
    limit.take("a", late)

    assert limit.rest(late + 300) == (700, False)
    assert limit.rest(late + 1000) == (0, False)


def test_a_clock_that_is_set_back_prolongs_no_cooldown(store: Any) -> None:
    """It begins anew, once; and what counted on this day still does."""
    limit = Limit(store, daily=2, cooldown=1000)
    limit.take("a", NOON)
    limit.take("b", NOON + 1000)
    back = NOON - 600_000
    limit.daily = 0
    assert limit.rest(back) == (1000, False)
    assert limit.rest(back + 1000) == (0, False)
    limit.daily = 2

    assert limit.rest(back + 1000) == (NOON + DAY // 2 - back - 1000, True)


def test_the_later_of_two_reasons_is_told(store: Any) -> None:
    """A call that comes then gets in."""
    limit = Limit(store, daily=1, cooldown=DAY)
    limit.take("a", NOON)

    assert limit.rest(NOON) == (DAY, False)
    limit.cooldown = 1000
    assert limit.rest(NOON) == (DAY // 2, True)


def test_a_call_counts_once(store: Any) -> None:
    """However often it is sent, and from its first time on."""
    limit = Limit(store, daily=2, cooldown=10)
    for later in range(5):
        limit.take("a", NOON + later)

    assert limit.rest(NOON + 10) == (0, False)
    assert store.zcard(KEY) == 1


def test_what_is_given_back_is_as_if_it_had_never_been(store: Any) -> None:
    """The cooldown of the call before it holds again; giving back twice changes nothing more."""
    limit = Limit(store, daily=2, cooldown=1000)
    limit.take("a", NOON)
    limit.take("b", NOON + 1000)
    assert limit.rest(NOON + 1100) == (DAY // 2 - 1100, True)
    for _ in range(2):
        limit.give_back("b")
        assert limit.rest(NOON + 900) == (100, False)
        assert limit.rest(NOON + 1100) == (0, False)


def test_a_call_that_nobody_begins_counts_until_its_deadline(store: Any) -> None:
    """Its agent has died before it was published; one that was begun counts for good."""
    limit = Limit(store, daily=2)
    for name in "ab":
        limit.take(name, NOON, until=NOON + 500)
    limit.take("b", NOON + 100)

    assert limit.rest(NOON + 499)[1]
    assert limit.rest(NOON + 500) == (0, False)
    assert store.zrange(KEY, 0, -1) == ["b"]


def test_whoever_was_let_in_under_other_terms_is_found(store: Any) -> None:
    """The third of three is one too many where two may be; those before it are not."""
    limit = Limit(store, daily=3)
    for number, name in enumerate("abc"):
        limit.take(name, NOON + number)

    assert [limit.rest_of(name, NOON + 9, daily=2) > 0 for name in "abc"] == [False, False, True]
    limit.give_back("a")
    assert limit.rest_of("c", NOON + 9, daily=2) == 0
    limit.cooldown = 5
    assert limit.rest_of("c", NOON + 9) > 0


def test_keys_live_for_their_day(store: Any) -> None:
    """Or for their cooldown, or for as long as a call waits; and no longer than a minute beyond."""
    Limit(store, daily=1).take("a", NOON)
    assert DAY // 2 < store.pttl(KEY) <= DAY // 2 + 60_000
    Limit(store, cooldown=2 * DAY).take("b", NOON, until=NOON + 3000)
    assert 2 * DAY < store.pttl(KEY) <= 2 * DAY + 60_000
    assert 3000 < store.pttl(KEY + ":unbegun") <= 63_000


def test_what_no_limit_needs_is_forgotten(store: Any) -> None:
    """Calls of days before, with the next call."""
    limit = Limit(store, daily=1, cooldown=DAY)
    limit.take("a", NOON - 2 * DAY)
    limit.take("b", NOON - DAY + 1)
    limit.take("c", NOON)

    assert store.zrange(KEY, 0, -1) == ["b", "c"]


def test_a_longer_cooldown_of_another_way_in_survives(store: Any) -> None:
    """A call without it comes the next day, and is given back: the cooldown holds as before."""
    tag, direct = Limit(store, cooldown=3 * DAY), Limit(store, daily=1)
    tag.take("a", NOON)
    direct.take("b", NOON + DAY)
    direct.give_back("b")

    assert tag.rest(NOON + DAY) == (2 * DAY, False)
    assert direct.rest(NOON + DAY) == (0, False)


class Model:
    """The same in Python, with everything remembered."""

    def __init__(self, daily: int, cooldown: int) -> None:
        self.daily, self.cooldown = daily, cooldown
        self.taken: dict[str, tuple[int, int | None]] = {}

    def rest(self, now: int) -> int:
        self.taken = {name: (at, until) for name, (at, until) in self.taken.items() if until is None or until > now}
        times, rest = [at for at, _ in self.taken.values()], 0
        if self.daily and sum(at // DAY == now // DAY for at in times) >= self.daily:
            rest = DAY - now % DAY
        if self.cooldown and times:
            rest = max(rest, max(times) + self.cooldown - now)
        return rest

    def take(self, name: str, now: int, until: int | None) -> None:
        at, _ = self.taken.get(name, (now, None))
        self.taken[name] = at, until


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["call", "call", "begin", "again", "give_back"]),
        st.integers(0, 7),
        st.one_of(st.integers(0, 3000), st.integers(0, DAY)),
    ),
    max_size=40,
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(daily=st.integers(0, 3), cooldown=st.sampled_from([0, 1, 1000, DAY, 3 * DAY]), steps=STEPS)
def test_redis_and_a_plain_model_agree(store: Any, daily: int, cooldown: int, steps: list[Any]) -> None:
    """Whatever is let in, begun, sent again, given back and forgotten, at whatever time of whatever day."""
    store.flushall()
    limit, model, now, names = Limit(store, daily=daily, cooldown=cooldown), Model(daily, cooldown), NOON, 0
    for what, which, later in steps:
        now += later
        rest = model.rest(now)
        assert limit.rest(now)[0] == rest
        known = sorted(model.taken)
        if what == "call" and rest <= 0:
            names += 1
            limit.take(f"{names:03}", now, until=now + 2000)
            model.take(f"{names:03}", now, now + 2000)
        elif known and what != "call":
            name = known[which % len(known)]
            until = model.taken[name][1] if what == "again" else None
            if what == "give_back":
                limit.give_back(name)
                del model.taken[name]
            elif (until is not None or what == "begin") and store.zscore(KEY, name) is not None:
                assert limit.rest_of(name, now) <= 0 or (now - model.taken[name][0] >= DAY)
                limit.take(name, now, until=until)
                model.take(name, now, until)
            if what == "give_back":
                continue
        assert limit.rest(now)[0] == model.rest(now)
