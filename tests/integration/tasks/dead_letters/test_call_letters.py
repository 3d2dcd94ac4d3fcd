"""Dead letters of calls: how they are kept, read, dropped and replayed, on a real Redis."""

import asyncio
import json
import socket
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from support.published_call import published
from toolfleet_registry.contracts import Audit, Caller, ToolResult
from toolfleet_registry.contracts.calls import DeadLetter
from toolfleet_registry.errors import FleetUnavailable, NoSuchDeadLetter
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.client.dead_letters import Replay, replay_of, run_replay
from toolfleet_tasks.dead_letters import store
from toolfleet_tasks.dead_letters.letters import DeadLetters, UnreadableLetter, parse_attempts
from toolfleet_tasks.ledger.contents import dead_letter
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.scripts import FILES

UNKNOWN = ToolResult.failed("owls.pay", "outcome_unknown", "Nobody saw its end.", effect_state="unknown")
DONE = ToolResult.ok("owls.pay", "paid")


@pytest.fixture(params=["", "acme:"])
def key_prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def keys(key_prefix: str) -> Keys:
    return Keys(key_prefix)


@pytest.fixture
def letters(redis: Redis, keys: Keys) -> DeadLetters:
    return DeadLetters(redis, keys)


def letter(call_id: str = "call-1", **fields: Any) -> DeadLetter:
    call = published("owls.pay", **{"call_id": call_id, "caller": Caller(user_id="ada"), **fields})
    return json_text.load(DeadLetter, dead_letter(call, UNKNOWN, died_at=time.time()))


BURY = FILES.functions("dead_letters")


async def bury(
    redis: Redis, keys: Keys, call_id: str, *, at: int = 1, kept: int = 100, log: str = "", **more: Any
) -> None:
    """As the ledger does."""
    value = more.get("value", json_text.dump(letter(call_id, **more.get("fields", {}))))
    text = f"{BURY}\nbury(KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5])\nreturn 1"
    assert await redis.eval(text, 2, keys.dead, keys.dead_order, call_id, at, value, kept, log) == 1


def read(text: str) -> DeadLetter:
    assert text.isascii()
    assert "\n" not in text
    return json_text.load(DeadLetter, text)


@pytest.mark.parametrize(
    ("log", "attempts"),
    [
        ("", []),
        ("1 not_sent 12;2 never_closed 0;", [(1, "not sent", 12), (2, "never closed", None)]),
        ("1 turned_away 12.5;2 unknown;", [(1, "turned away", 12.5), (2, "unknown", None)]),
        ("nonsense;; 1;2 failed 3;9", [(2, "failed", 3)]),
    ],
)
def test_the_ledgers_log_is_read(log: str, attempts: list[tuple[int, str, float | None]]) -> None:
    """What cannot be read in it is left out."""
    assert [(one.attempt, one.outcome, one.ms) for one in parse_attempts(log)] == attempts


async def test_letters_are_listed_latest_first(redis: Redis, keys: Keys, letters: DeadLetters) -> None:
    """By when they died; a part of them can be asked for."""
    assert await letters.list() == []
    for n in (3, 1, 2):
        await bury(redis, keys, f"call-{n}", at=n)

    assert [found.call_id for found in await letters.list()] == ["call-3", "call-2", "call-1"]
    assert [found.call_id for found in await letters.list(limit=1, offset=1)] == ["call-2"]
    assert await letters.list(offset=3) == []
    assert await letters.count() == 3
    assert isinstance(await letters.show("call-2"), DeadLetter)


@pytest.mark.parametrize(("limit", "offset"), [(0, 0), (1001, 0), (1, -1)])
async def test_a_list_has_bounds(letters: DeadLetters, limit: int, offset: int) -> None:
    """Asking for none, or for more than memory should hold, is a programming error."""
    with pytest.raises(ValueError, match="limit must be from 1 to 1000"):
        await letters.list(limit, offset)


async def test_only_so_many_letters_are_kept(redis: Redis, keys: Keys, letters: DeadLetters) -> None:
    """The oldest go; after a lower limit by and by, and one that dies again counts once."""
    for n in range(5):
        await bury(redis, keys, f"call-{n}", at=n, kept=3)
    await bury(redis, keys, "call-4", at=4, kept=3)
    assert [found.call_id for found in await letters.list()] == ["call-4", "call-3", "call-2"]

    await bury(redis, keys, "call-5", at=5, kept=1)
    assert [found.call_id for found in await letters.list()] == ["call-5"]
    assert await redis.hlen(keys.dead) == 1


async def test_what_the_ledger_knows_of_attempts_counts_more(redis: Redis, keys: Keys, letters: DeadLetters) -> None:
    """Whoever ends a call from outside does not know them; Redis does."""
    await bury(redis, keys, "call-1", log="1 not_sent 12;2 never_closed 0;")
    found = await letters.show("call-1")

    assert isinstance(found, DeadLetter)
    assert [one.outcome for one in found.attempts] == ["not sent", "never closed"]


@pytest.mark.parametrize("broken", ["dead", "dead_order"])
async def test_a_letter_that_cannot_be_kept_hinders_nothing(
    redis: Redis, keys: Keys, letters: DeadLetters, broken: str
) -> None:
    """The script that ends its call goes on, and leaves no half of it."""
    key = getattr(keys, broken)
    await redis.set(key, "of another type")
    await bury(redis, keys, "call-1")

    assert await redis.exists(keys.dead, keys.dead_order) == 1
    with pytest.raises(FleetUnavailable, match="WRONGTYPE"):
        await letters.show("call-1") if broken == "dead" else await letters.count()
    await redis.delete(key)


@pytest.mark.parametrize("decodes", [True, False])
async def test_what_cannot_be_read_is_listed_as_such(redis_url: str, keys: Keys, decodes: bool) -> None:
    """It hides no other letter, and can be dropped."""
    async with Redis.from_url(redis_url, decode_responses=decodes) as redis:
        letters = DeadLetters(redis, keys)
        values = [
            "no json",
            "[]",
            "{}",
            json.dumps({"call_id": "bad-3"}),
            b"\xff\xfe",
            json_text.dump(letter("call-2")),
            "[" * 9999,
        ]
        for n, value in enumerate(values):
            await bury(redis, keys, f"bad-{n}", at=n, value=value)
        await bury(redis, keys, "call-1", at=99)
        first, *others = await letters.list()

        assert first.call_id == "call-1"
        assert [type(found) for found in others] == [UnreadableLetter] * len(values)
        assert all("\n" not in found.reason for found in [await letters.show("bad-2"), *others])
        assert len(await letters.drop([found.call_id for found in others])) == len(values)
        assert await letters.count() == 1


async def test_letters_are_dropped_by_id(redis: Redis, keys: Keys, letters: DeadLetters) -> None:
    """Those that were there are named; nothing of them is left."""
    for n in range(4):
        await bury(redis, keys, f"call-{n}")
    await letters.take("call-1", seconds=9)

    assert await letters.drop(["call-1", "call-9", "call-2", "call-1"]) == ("call-1", "call-2")
    assert await letters.drop([]) == ()
    assert sorted(await redis.hkeys(keys.dead)) == ["call-0", "call-3"]
    assert await letters.drop_all() == 2
    assert await letters.drop_all() == 0
    assert await redis.exists(keys.dead, keys.dead_order) == 0


@pytest.mark.parametrize("call_id", ["call-2", "", "call-1/replay"])
async def test_a_letter_that_is_not_there_is_named(
    redis: Redis, keys: Keys, letters: DeadLetters, call_id: str
) -> None:
    """Whatever was to be done with it."""
    await bury(redis, keys, "call-1")
    await letters.take("call-1", seconds=9)
    for work in (letters.show(call_id), letters.take(call_id, seconds=1)):
        with pytest.raises(NoSuchDeadLetter, match=repr(call_id)):
            await work


async def test_a_redis_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`FleetUnavailable`, at the latest when patience ends; never a password."""
    monkeypatch.setattr(store, "_PATIENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"redis://:s3cret@127.0.0.1:{frozen.getsockname()[1]}"
        async with Redis.from_url(url, socket_timeout=None, socket_connect_timeout=None) as redis:
            letters = DeadLetters(redis)
            works = letters.list(), letters.show("a"), letters.drop(["a"]), letters.drop_all(), letters.count()
            for work in (*works, letters.take("a", seconds=1), letters.settle("a", replay_id=None, succeeded=True)):
                with pytest.raises(FleetUnavailable, match=r"127\.0\.0\.1:\d+ does not answer: ") as caught:
                    await work
                assert "s3cret" not in str(caught.value)


def test_a_replay_is_the_same_call_without_its_key() -> None:
    """Of the same user, in the same conversation; what is given replaces what was."""
    old = letter(
        arguments={"sum": 5, "to": "bob", "platform": "chat", "conversation_id": 7}, user_id="ada", idempotency_key="k"
    )
    again = replay_of(old, {"sum": 6})

    assert isinstance(again, Replay)
    call = again.call
    assert again.caller == old.caller
    assert call.arguments == {"sum": 6, "to": "bob", "platform": "chat", "conversation_id": 7}
    assert (call.tool_name, call.user_id, call.idempotency_key) == ("owls.pay", "ada", None)
    # A number was a text, for a module that has it taken for a number.
    assert again.conversation.model_dump(exclude_none=True) == {"platform": "chat", "conversation_id": "7"}


def test_a_replay_means_the_version_that_its_call_named() -> None:
    """As long as it may be; a letter without one is read by workers of earlier releases."""
    named = read(dead_letter(published("owls.pay", tool_version="1.2.0"), UNKNOWN, died_at=7.5))
    again = replay_of(named, {})

    assert isinstance(again, Replay)
    assert again.call.tool_version == "1.2.0"
    assert [json_text.version_of(one) for one in (named, letter())] == [2, 1]
    endless = read(dead_letter(published("owls.pay", tool_version="1" * 9_000), UNKNOWN, died_at=7.5))
    assert len(endless.tool_version or "") == 2_000


def test_a_replay_can_be_for_another_caller() -> None:
    """Whose user id wins over the old one, as with any call."""
    again = replay_of(letter(user_id="ada"), {}, Caller(user_id="root", permission="owner"))

    assert isinstance(again, Replay)
    assert (again.caller.user_id, again.call.user_id) == ("root", "ada")


def test_what_was_not_kept_must_be_given() -> None:
    """The refusal names it; with it, the call is whole."""
    arguments = {"to": "bob", "card": {"number": "4111"}, "pin": 1, "text": "x" * 70_000}
    old = letter(arguments=arguments, sensitive=("/pin", "/card/number"))
    refused = replay_of(old, {"pin": 1})

    assert isinstance(refused, ToolResult)
    assert (refused.error_code, refused.effect_state) == ("invalid_arguments", "none")
    assert refused.error == "Dead letter 'call-1' does not have these arguments as they were: 'card', 'text'."
    assert refused.hint
    whole = replay_of(old, {"card": {}, "pin": 2, "text": ""})
    assert isinstance(whole, Replay)
    assert whole.call.arguments == {"to": "bob", "card": {}, "pin": 2, "text": ""}


def test_a_text_that_only_looks_redacted_may_be_repeated() -> None:
    """Where nothing was left out, nothing is asked for."""
    assert isinstance(replay_of(letter(arguments={"a": "[redacted]"}), {}), Replay)


def test_of_too_many_arguments_all_must_be_given() -> None:
    """Without any it is refused; the place holder never reaches a module."""
    old = letter(arguments={f"name-{n}": n for n in range(10_000)})
    assert isinstance(replay_of(old, {}), ToolResult)
    whole = replay_of(old, {"a": 1})
    assert isinstance(whole, Replay)
    assert whole.call.arguments == {"a": 1}


def test_an_unreadable_letter_cannot_be_replayed() -> None:
    """The refusal says why."""
    refused = replay_of(UnreadableLetter("call-1", "It is broken."), {})
    assert isinstance(refused, ToolResult)
    assert refused.error == "Dead letter 'call-1' cannot be replayed: It is broken."


def ended(result: ToolResult, call_id: str = "call-2") -> ToolResult:
    return result.model_copy(update={"audit": Audit(call_id=call_id, tool=result.tool_name, ts=1)})


@pytest.mark.parametrize(
    ("result", "left"),
    [
        # It worked.
        (DONE, []),
        # It is a dead letter itself, and that one is the last word.
        (UNKNOWN, ["call-2"]),
        # It failed, or was refused: the letter stays.
        (ToolResult.failed("owls.pay", "module_error", "no", effect_state="unknown"), ["call-1"]),
        (ToolResult.refused("owls.pay", "busy", "no"), ["call-1"]),
    ],
)
async def test_a_letter_stays_until_its_replay_stands_for_it(
    redis: Redis, keys: Keys, letters: DeadLetters, result: ToolResult, left: list[str]
) -> None:
    """One that succeeded, or that is a dead letter itself, takes its place; it can be replayed again otherwise."""
    await bury(redis, keys, "call-1")

    async def run() -> ToolResult:
        if result is UNKNOWN:
            await bury(redis, keys, "call-2")
        return ended(result)

    assert await run_replay(letters, "call-1", seconds=60, run=run) == ended(result)
    assert [found.call_id for found in await letters.list()] == left
    assert await redis.hkeys(keys.dead) == left


async def test_a_letter_is_replayed_once_at_a_time(redis: Redis, keys: Keys, letters: DeadLetters) -> None:
    """Of two people who replay it at once, one does; the other is told to wait."""
    await bury(redis, keys, "call-1")
    runs = 0

    async def run() -> ToolResult:
        nonlocal runs
        runs += 1
        assert await letters.count() == 1
        return ended(ToolResult.refused("owls.pay", "busy", "no") if runs > 1 else DONE)

    results = await asyncio.gather(
        *(run_replay(letters, "call-1", seconds=60, run=run) for _ in range(2)), return_exceptions=True
    )
    refused = [result for result in results if result != ended(DONE)]

    assert runs == 1
    assert len(refused) == 1
    assert isinstance(refused[0], ToolResult | NoSuchDeadLetter)  # the first may have ended already
    if isinstance(refused[0], ToolResult):
        assert (refused[0].error_code, refused[0].effect_state, refused[0].retryable) == ("busy", "none", True)
        assert 60 < (refused[0].retry_after_seconds or 0) <= 120


async def test_an_interrupted_replay_leaves_the_letter(redis: Redis, keys: Keys, letters: DeadLetters) -> None:
    """It can be replayed when that call has surely ended, and not before."""
    await bury(redis, keys, "call-1")
    running = asyncio.create_task(run_replay(letters, "call-1", seconds=60, run=asyncio.Event().wait))  # type: ignore[arg-type] # never returns
    while not await redis.hexists(keys.dead, "call-1/replay"):
        assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    _, rest = await letters.take("call-1", seconds=1)
    assert 0 < rest <= 120
    await redis.hset(keys.dead, "call-1/replay", "1")  # long ago
    assert (await letters.take("call-1", seconds=1))[1] == 0


async def test_a_result_is_not_lost_with_redis(redis: Redis, keys: Keys, letters: DeadLetters) -> None:
    """If the letter cannot be dropped, the replay's result comes all the same."""
    await bury(redis, keys, "call-1")

    async def run() -> ToolResult:
        await redis.delete(keys.dead)
        await redis.set(keys.dead, "of another type")
        return ended(UNKNOWN)

    assert await run_replay(letters, "call-1", seconds=60, run=run) == ended(UNKNOWN)
    await redis.delete(keys.dead)
