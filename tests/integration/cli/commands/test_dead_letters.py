"""`toolfleet dead-letters`, on a real Redis and a real module, without workers: letters of calls, of wake-ups and of webhooks."""

import functools
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from support.command import Run
from support.published_call import published
from support.workers.dead_news import RECEIVER, maker
from toolfleet_registry.contracts import Caller, ToolResult
from toolfleet_registry.contracts.calls import DeadAttempt
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.ledger.contents import dead_letter

Bury = Callable[..., None]
Make = Callable[..., None]
EVENT = f"7@{RECEIVER}"
PAY = {"to": "bob", "sum": 5, "pin": "1234-5678"}


@pytest.fixture
def dead(owls_run: Run) -> Run:
    """Runs `toolfleet dead-letters`, with a Redis and a module."""
    return functools.partial(owls_run, "dead-letters")


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("dead list", "dead-letters list"),
        ("wakes list", "wake-ups list"),
        ("tools errors --json", "tools list --errors --json"),
        ("tools versions owls.echo", "tools show --versions owls.echo"),
        ("agents versions production", "agents show --versions production"),
        ("tools unpin owls", "tools pin --undo owls"),
    ],
)
def test_former_names_are_the_same_commands(owls_run: Run, former: str, now: str) -> None:
    """Scripts that have them go on; the help does not name them."""
    assert owls_run(*former.split()) == owls_run(*now.split())
    group, command = former.split()[:2]
    shown = [
        line.split()[1]
        for line in owls_run(now.split(maxsplit=1)[0], "--help").out.splitlines()
        if line.startswith("│ ")
    ]
    groups = [line.split()[1] for line in owls_run("--help").out.splitlines() if line.startswith("│ ")]
    assert group not in groups or command not in shown


@pytest.fixture
def bury(redis_url: str) -> Iterator[Bury]:
    """Keeps a dead letter, as the ledger does."""
    with Redis.from_url(redis_url) as redis:

        def bury(call_id: str = "call-1", *, reason: str = "Nobody saw its end.", at: float = 0, **fields: Any) -> None:
            caller = Caller(user_id="ada", permission="user", allowed_modules="*")
            known: dict[str, Any] = {"call_id": call_id, "arguments": PAY, "caller": caller, "user_id": "ada"}
            call = published(fields.pop("tool_name", "owls.echo"), **{**known, **fields})
            result = ToolResult.failed("owls.echo", "outcome_unknown", reason, effect_state="unknown")
            attempts = (
                DeadAttempt(attempt=1, outcome="not sent", ms=12),
                DeadAttempt(attempt=2, outcome="never closed"),
            )
            died_at = time.time() - 60 + at
            redis.hset(Keys().dead, call_id, dead_letter(call, result, attempts=attempts, died_at=died_at))
            redis.zadd(Keys().dead_order, {call_id: died_at * 1000})

        yield bury


@pytest.fixture
def make(redis_url: str) -> Make:
    """News that are dead."""
    return functools.partial(maker(redis_url), dead=True)


def test_the_list_is_a_line_a_letter(dead: Run, bury: Bury) -> None:
    """The latest first: id, kind, tool and user, age, attempts, code and reason."""
    bury("call-1", reason="Card [redacted]\nbroke [/b].")
    bury("call-2", at=1)
    ended = dead("list")
    lines = ended.out.splitlines()
    part = dead("list", "--limit", "1", "--offset", "1")

    assert (ended.code, len(lines)) == (0, 3)
    assert lines[1].startswith("call-2")
    assert part.out.splitlines()[1].split() == lines[2].split()
    assert dead("list", "--limit", "1").err == "There may be more: --offset 1 shows those before.\n"
    assert " ".join(lines[2].split()) == (
        "call-1 call owls.echo for ada 1 min 2 outcome_unknown: Card [redacted] broke [/b]."
    )


def test_the_list_has_a_form_for_programs(dead: Run, bury: Bury, redis_url: str) -> None:
    """One object a letter; what cannot be read says so."""
    bury()
    with Redis.from_url(redis_url) as redis:
        redis.hset(Keys().dead, "call-0", "no json")
        redis.zadd(Keys().dead_order, {"call-0": 1})
    found, unreadable = json.loads(dead("list", "--json").out)

    assert (found["kind"], found["id"], found["attempts"], found["replayable"]) == ("call", "call-1", 2, True)
    assert (found["body"]["arguments"], found["body"]["caller"]["user_id"]) == (PAY, "ada")
    assert (unreadable["id"], unreadable["died_at"], unreadable["body"]) == ("call-0", 0.001, None)
    assert not unreadable["replayable"]
    assert "cannot be read" in unreadable["error"]
    assert "cannot be read" in dead("list").out
    assert "cannot be read" in dead("show", "call-0").out
    assert dead("replay", "call-0").code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [(["list"], "There are no dead letters.\n"), (["list", "--offset", "1"], "There are no more dead letters.\n")],
)
def test_an_empty_list_says_so(dead: Run, words: list[str], said: str) -> None:
    ended = dead(*words)
    assert (ended.code, ended.out, ended.err) == (0, "", said)


def test_show_has_the_whole_letter(dead: Run, bury: Bury) -> None:
    """Who asked for what, the attempts, and the arguments without the sensitive ones."""
    bury(sensitive=("/pin",), effect="once", replay_of="call-0", idempotency_key="k-1")
    shown = dead("show", "call-1").out

    assert shown.startswith(
        "owls.echo\n\noutcome_unknown: Nobody saw its end.\n\ncall: call-1\nuser: ada\npermission: user\n"
    )
    for text in (
        *("effect: once\n", "replay of: call-0\n", "idempotency key: k-1\n"),
        "attempt 1: not sent after 12 ms\nattempt 2: never closed\n",
        *('"sum": 5', '"pin": "[redacted]"', "must be given for a replay"),
    ):
        assert text in shown
    assert "1234-5678" not in shown
    assert json.loads(dead("show", "call-1", "--json").out)["body"]["is_redacted"] is True


def test_a_letter_cannot_move_the_cursor(dead: Run, bury: Bury) -> None:
    """Control characters of a module, a model or an agent do not reach the terminal."""
    bury(reason="a\x1b[2Jb\x9bc", arguments={"a\x1b[2J": "\x9b2J\x1b"}, user_id="u\x1b[2J", idempotency_key="k\x1b")
    for words in (["list"], ["show", "call-1"]):
        ended = dead(*words)
        assert "a[2Jbc" in ended.out
        assert not {"\x1b", "\x9b"} & set(ended.out)


@pytest.mark.parametrize("command", ["show", "replay", "drop"])
def test_a_letter_that_is_not_there_is_named(dead: Run, command: str) -> None:
    ended = dead(command, "call-9")

    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "There is no dead letter 'call-9': `toolfleet dead-letters list` shows those that are kept.\n"


def test_letters_are_dropped(dead: Run, bury: Bury) -> None:
    """Those that are named, or all; one that is not there does not keep the others."""
    for n in range(4):
        bury(f"call-{n}")
    assert (dead("drop", "call-0").code, dead("drop", "call-0").code) == (0, 1)
    ended = dead("drop", "call-1", "call-9")
    assert ended.code == 1
    assert ended.err.splitlines()[0] == "Dropped: 1."
    assert "'call-9'" in ended.err

    ended = dead("drop", "--all")
    assert (ended.code, ended.err) == (0, "Dropped: 2.\n")
    assert dead("list").out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["drop"], "name the letters to drop, or say --all."),
        (["drop", "call-1", "--all"], "name the letters to drop, or say --all."),
        (["drop", "call-1", "--kind", "owl"], "'owl' is not one of"),
        (["list", "--limit", "0"], "--limit"),
        (["replay", "call-1", "pin"], "'pin' is neither name=text nor name:=JSON."),
        (["replay", "call-1", "--args", "[1]"], "--args must be a JSON object."),
        (["replay"], "name the ID of the letter to replay."),
        (["replay", "--all"], "calls are replayed one by one."),
        (["replay", "--all", "--kind", "call"], "calls are replayed one by one."),
        (["replay", "call-1", "--all", "--kind", "wakeup"], "and no ID"),
    ],
)
def test_a_misused_command_is_a_usage_error(dead: Run, bury: Bury, words: list[str], message: str) -> None:
    """Exit code 2, and what is wrong; nothing is dropped."""
    bury()
    ended = dead(*words)

    assert ended.code == 2
    assert message in " ".join(ended.err.replace("│", " ").split())
    assert "call-1" in dead("list").out


def test_a_replay_without_what_was_not_kept_is_refused(dead: Run, bury: Bury) -> None:
    """The refusal names it, and the letter stays."""
    bury(sensitive=("/pin",))
    ended = dead("replay", "call-1", "sum=6")

    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[0] == (
        "invalid_arguments: Dead letter 'call-1' does not have these arguments as they were: 'pin'."
    )
    assert "call-1" in dead("list").out


@pytest.mark.parametrize(
    ("words", "stdin"),
    [(["pin=9"], ""), (["--args", '{"pin": "9"}'], ""), (["--args", "-"], '{"pin": "9"}')],
)
def test_a_replay_is_judged_and_published(
    dead: Run, bury: Bury, monkeypatch: pytest.MonkeyPatch, words: list[str], stdin: str
) -> None:
    """Nobody serves it here: it expires, and so the letter stays."""
    bury(sensitive=("/pin",))
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    ended = dead("replay", "call-1", *words, "--timeout", "0.5", "--json")

    assert ended.code == 1
    assert json.loads(ended.out)["error_code"] == "expired"
    assert "call-1" in dead("list").out


def ids(dead: Run, *words: str) -> list[str]:
    """What is listed."""
    return [one["id"] for one in json.loads(dead("list", "--json", *words).out)]


def test_letters_of_all_kinds_are_one_list(dead: Run, bury: Bury, make: Make) -> None:
    """The latest first, whatever died; or those of one kind."""
    bury("call-1", at=50)
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


def test_an_id_of_two_letters_needs_a_kind(dead: Run, bury: Bury, make: Make) -> None:
    """A wake-up that is a call has the id of the call that it makes."""
    make("job-1.then.0", kind="call")
    bury("job-1.then.0")
    for command in ("show", "replay", "drop"):
        ended = dead(command, "job-1.then.0")
        assert (ended.code, ended.out) == (1, "")
        assert "say --kind" in ended.err
    assert "owls.echo" in dead("show", "job-1.then.0", "--kind", "call").out

    assert dead("drop", "job-1.then.0", "--kind", "wakeup").code == 0
    (left,) = json.loads(dead("list", "--json").out)
    assert left["kind"] == "call"
