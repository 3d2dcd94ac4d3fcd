"""`toolfleet audit`, on a real Redis."""

import functools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from redis import Redis

from support.command import Run
from support.servers.redis_faults import faulty_redis
from support.up import COMMAND
from support.waiting import wait_until_sync
from toolfleet_registry.redis.keys import Keys

Write = Callable[..., None]
KEY = Keys().audit


@pytest.fixture
def tail(redis_run: Run) -> Run:
    """Runs `toolfleet audit tail`."""
    return functools.partial(redis_run, "audit", "tail")


@pytest.fixture
def write(redis_url: str) -> Iterator[Write]:
    with Redis.from_url(redis_url) as redis:

        def write(number: int, **fields: object) -> None:
            line = {
                "call_id": f"call-{number}",
                "tool": "owls.echo",
                "ts": 1_760_000_000,
                "user_id": "ada",
                "outcome": "success",
                "attempts": 1,
                "duration_ms": 12.5,
                "decisions": {"published": "yes", "permission": "allowed"},
            }
            redis.xadd(KEY, {"line": json.dumps({**line, **fields})})

        yield write


def test_a_call_is_a_line(tail: Run, write: Write) -> None:
    """When, how it ended, which tool, who; then what was not as usual."""
    write(1)
    write(
        2, outcome="failed", error_code="busy", attempts=2, user_id="eve [b]\n\x1b[2J", decisions={"limits": "denied"}
    )
    ended = tail()

    assert (ended.code, ended.err) == (0, "")
    assert [line.partition("  ")[2] for line in ended.out.splitlines()] == [
        "success  owls.echo  ada  12.5 ms  call-1",
        "failed (busy)  owls.echo  eve [b] [2J  12.5 ms  attempts 2  limits=denied  call-2",
    ]


def test_the_last_ones_of_those_that_are_wanted(tail: Run, write: Write) -> None:
    for number in range(5):
        write(number, user_id="ada" if number % 2 else "bob")
    ended = tail("-n", "2", "--user", "bob", "--tool", "owls", "--outcome", "success", "--json")

    assert [json.loads(line)["call_id"] for line in ended.out.splitlines()] == ["call-2", "call-4"]


def test_rare_lines_are_found_however_far_back(tail: Run, write: Write, redis_url: str) -> None:
    """One answer looks at 10,000 lines: it is asked until the audit's first one."""
    write(0, user_id="eve")
    with Redis.from_url(redis_url) as redis, redis.pipeline(transaction=False) as pipe:
        for _ in range(10_001):
            pipe.xadd(KEY, {"line": '{"user_id": "ada"}'})
        pipe.execute()
    found, latest = tail("--user", "eve", "--json"), tail("-n", "2000", "--json")

    assert [json.loads(line)["call_id"] for line in found.out.splitlines()] == ["call-0"]
    assert len(latest.out.splitlines()) == 2_000


def test_a_misspelt_outcome_is_an_error(tail: Run) -> None:
    """That names those that there are: "no such lines" would look as if all were well."""
    ended = tail("--outcome", "nonsense")
    said = " ".join(ended.err.replace("│", " ").split())

    assert (ended.code, ended.out) == (2, "")
    there = "there is no 'nonsense'; there are the outcomes success, failed, refused, unknown and the error codes"
    assert (there in said, "rate_limited" in said) == (True, True)
    assert tail("--outcome", "rate_limited").code == 0


def test_an_empty_audit_is_said_on_stderr(tail: Run) -> None:
    ended = tail("--user", "nobody")

    assert (ended.code, ended.out, ended.err) == (0, "", "There are no such lines.\n")


@contextmanager
def following(
    redis_url: str | None, *words: str, cwd: Path | None = None
) -> Generator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    """Run `toolfleet audit tail -f` in a process of its own: with what it prints, and what it says.

    Without a URL it reads the `toolfleet.toml` in its folder.
    """
    command, named = (
        [*COMMAND, "audit", "tail", "-f", *words],
        {} if redis_url is None else {"TOOLFLEET_REDIS_URL": redis_url},
    )
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, **named}, cwd=cwd, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process, process.stdout, process.stderr
        finally:
            process.kill()


def test_following_prints_what_comes_until_nobody_reads_it(write: Write, redis_url: str) -> None:
    """Each line as it comes, into a pipe as well; a reader may stop, as `head` does, and nothing is said of that."""
    write(1)
    with following(redis_url, "--json") as (process, out, err):
        assert json.loads(out.readline())["call_id"] == "call-1"
        write(2)
        assert json.loads(out.readline())["call_id"] == "call-2"
        out.close()

        def has_ended() -> bool:
            write(2)
            return process.poll() is not None

        wait_until_sync(has_ended, "it has ended")
        assert (process.returncode, err.read()) == (0, "")


def test_whoever_follows_may_interrupt_it(write: Write, redis_url: str) -> None:
    """^C ends the process as it ends others, and is no error message."""
    write(1)
    with following(redis_url) as (process, out, _):
        assert "call-1" in out.readline()
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate()

    assert (process.returncode, rest, said) == (130, "", "")


def test_following_goes_on_over_a_restart(tmp_path: Path) -> None:
    """With its data or without, and when the file that named it is gone; whoever follows hears of both ends of the outage."""
    with faulty_redis(tmp_path) as redis:
        redis.look.xadd(KEY, {"line": '{"call_id": "call-1"}'})
        file = tmp_path / "toolfleet.toml"
        file.write_text(f'redis_url = "{redis.url}"\n')
        with following(None, "--json", cwd=tmp_path) as (_, out, err):
            assert json.loads(out.readline())["call_id"] == "call-1"
            file.unlink()
            with redis.restarted():
                away = err.readline()
            back = err.readline()
            redis.look.xadd(KEY, {"line": '{"call_id": "call-2"}'})
            assert json.loads(out.readline())["call_id"] == "call-2"
            redis.look.flushall()
            redis.look.xadd(KEY, {"line": '{"call_id": "call-3"}'}, id="5-1")  # its clock was set back meanwhile
            assert json.loads(out.readline())["call_id"] == "call-3"

    assert away.endswith("It is asked again.\n")
    assert back == "The fleet is back.\n"


@pytest.fixture
def keep(redis_url: str) -> Iterator[Write]:
    with Redis.from_url(redis_url) as redis:

        def keep(number: int, user: str, **contents: object) -> None:
            said = {"owner": Keys().stored(user), "arguments": '{"q": "hoo"}', "result": '"[b]\\u001b[2J"', "cut": []}
            redis.set(Keys().contents(f"call-{number}"), json.dumps(said | contents), ex=3600)
            redis.zadd(Keys().stored(user), {f"contents:call-{number} 600": 2e12})
            redis.set(f"{Keys().stored(user)}:bytes", 600, ex=3600)
            redis.expire(Keys().stored(user), 3600)

        yield keep


def test_a_call_is_shown_with_its_arguments_and_result(tail: Run, run: Run, write: Write, keep: Write) -> None:
    """Where they are kept; and what a terminal would obey is taken out."""
    write(1)
    write(2)
    keep(1, "ada", cut=["result"], error="I cannot.")
    shown, bare, none = (run("audit", "show", f"call-{number}") for number in (1, 2, 3))
    as_json = json.loads(run("audit", "show", "call-1", "--json").out)

    assert (shown.code, bare.code, none.code) == (0, 0, 1)
    assert shown.out.splitlines()[1:4] == ["arguments: {", '  "q": "hoo"', "}"]
    assert "result (the first 16 KiB): " in shown.out
    assert "error: I cannot." in shown.out
    assert "\x1b" not in shown.out
    assert "TOOLFLEET_CALL_CONTENTS" in bare.err
    assert none.err == "There is no call 'call-3', or it ended too long ago.\n"
    assert as_json["contents"]["arguments"] == {"q": "hoo"}


def test_what_is_kept_of_a_users_calls_is_removed(tail: Run, run: Run, write: Write, keep: Write) -> None:
    """The lines of the calls stay, and one more says who has removed it."""
    write(1)
    write(2, user_id="eve")
    keep(1, "ada")
    keep(2, "eve")
    first, again = (run("audit", "forget", "ada", "--as", "olga") for _ in range(2))
    left = [json.loads(run("audit", "show", f"call-{number}", "--json").out)["contents"] for number in (1, 2)]
    line = json.loads(tail("--changes", "--json", "-n", "2").out.splitlines()[0])

    assert (first.err, again.err) == ("Removed the contents of 1 calls.\n", "Removed the contents of 0 calls.\n")
    assert left[0] is None
    assert left[1]["arguments"] == {"q": "hoo"}
    assert (line["change"], line["tool"], line["user_id"], line["calls"]) == ("contents_forgotten", "ada", "olga", 1)
