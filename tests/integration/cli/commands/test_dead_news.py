"""`toolfleet dead` of wake-ups and webhooks, on a real Redis."""

import functools
import json
import time
from collections.abc import Callable

import pytest
from redis import Redis

from support.command import Run
from support.published_call import published
from support.workers.dead_news import RECEIVER, maker
from toolfleet_registry.contracts import Caller, ToolResult
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.ledger.dead_letters import dead_letter

Make = Callable[..., None]
EVENT = f"7@{RECEIVER}"


@pytest.fixture
def dead(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> Run:
    """Runs `toolfleet dead`, with a Redis."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    return functools.partial(run, "dead")


@pytest.fixture
def make(redis_url: str) -> Make:
    """News that are dead."""
    return functools.partial(maker(redis_url), dead=True)


def bury_call(redis_url: str, call_id: str, *, ago: float = 0) -> None:
    """As the ledger does."""
    call = published("owls.echo", call_id=call_id, caller=Caller(user_id="ada"), user_id="ada")
    result = ToolResult.failed("owls.echo", "outcome_unknown", "Nobody saw its end.", effect_state="unknown")
    at = time.time() - ago
    with Redis.from_url(redis_url) as redis:
        redis.hset(Keys().dead, call_id, dead_letter(call, result, died_at=at))
        redis.zadd(Keys().dead_order, {call_id: at * 1000})


def ids(dead: Run, *words: str) -> list[str]:
    """What is listed."""
    return [one["id"] for one in json.loads(dead("list", "--json", *words).out)]


def test_letters_of_all_kinds_are_one_list(dead: Run, make: Make, redis_url: str) -> None:
    """The latest first, whatever died; or those of one kind."""
    bury_call(redis_url, "call-1", ago=10)
    make("job-1", at=time.time() - 30)
    make(EVENT, kind="registry", at=time.time() - 20)
    lines = [line.split() for line in dead("list").out.splitlines()]

    assert lines[0] == ["ID", "KIND", "SUBJECT", "DIED", "ATTEMPTS", "ERROR"]
    assert [line[:2] for line in lines[1:]] == [["call-1", "call"], [EVENT, "webhook"], ["job-1", "wakeup"]]
    assert lines[2][2:4] == ["registry.disabled", "git.push"]
    assert lines[3][2] == "talk-1"
    assert "ConnectError: refused" in dead("list").out
    assert ids(dead, "--limit", "2", "--offset", "1") == [EVENT, "job-1"]
    found = {kind: ids(dead, "--kind", kind) for kind in ("call", "wakeup", "webhook")}
    assert found == {"call": ["call-1"], "wakeup": ["job-1"], "webhook": [EVENT]}


def test_one_is_shown_whole(dead: Run, make: Make) -> None:
    """What is told, to whom, and what went wrong."""
    make("job-1")
    make(EVENT, kind="registry")
    shown = dead("show", "job-1").out

    assert shown.startswith("talk-1\n\nConnectError: refused\n\nwakeup: job-1\nattempts: 3\ndied: ")
    assert "The owls are counted." in shown
    assert json.loads(dead("show", "job-1", "--json").out)["body"]["user_id"] == "ada"
    assert '"type": "registry.disabled"' in dead("show", EVENT).out


def test_an_id_of_two_letters_needs_a_kind(dead: Run, make: Make, redis_url: str) -> None:
    """A wake-up that is a call has the id of the call that it makes."""
    make("job-1.then.0", kind="call")
    bury_call(redis_url, "job-1.then.0")
    for command in ("show", "replay", "drop"):
        ended = dead(command, "job-1.then.0")
        assert (ended.code, ended.out) == (1, "")
        assert "say --kind" in ended.err
    assert "owls.echo" in dead("show", "job-1.then.0", "--kind", "call").out

    assert dead("drop", "job-1.then.0", "--kind", "wakeup").code == 0
    (left,) = json.loads(dead("list", "--json").out)
    assert left["kind"] == "call"
