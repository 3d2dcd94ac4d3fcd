"""`toolfleet modules`: which there are, how they are doing, and how they come and go; on a real Redis, without workers."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from support.command import Run
from support.module_server import ModuleServer, serve
from support.owls import echo, make_module
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.entries import ModuleEntry, static_entries
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings

KEYS = Keys()


@pytest.fixture
def owls(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleServer]:
    """A module that no setting names."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    with serve(make_module()) as module:
        yield module


def listed(run: Run, command: str = "list") -> dict[str, dict[str, Any]]:
    return {module["module"]: module for module in json.loads(run("modules", command, "--json").out)}


def test_a_module_is_added_listed_and_removed(run: Run, owls: ModuleServer) -> None:
    """With its lane and its limit; a second time changes nothing, and another address is refused."""
    added = run("modules", "add", "owls", owls.url, "--slow", "--timeout", "7.5")
    found = listed(run)["owls"]
    again, elsewhere = (
        run("modules", "add", "owls", owls.url, "--slow", "--timeout", "7.5"),
        run("modules", "add", "owls", "http://127.0.0.1:1"),
    )
    removed = run("modules", "remove", "owls", "--drain", "0")

    assert (added.code, added.out) == (0, f"Module owls is in the slow lane, at {owls.url}.\n")
    assert (found["state"], found["lane"], found["workers"], found["origin"]) == ("ok", "slow", 0, "added")
    assert again.code == 0
    assert elsewhere.code == 1
    assert f"is at {owls.url} already" in elsewhere.err
    assert (removed.code, listed(run)) == (0, {})
    assert run("modules", "remove", "owls").err == "There is no module 'owls' in the fleet's directory.\n"


def test_a_module_of_the_settings_here_is_added_to_a_fleet_that_does_not_have_it(
    run: Run, owls: ModuleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is what the workers and beat of the fleet have, and not what this process reads."""
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": owls.url}))
    added = run("modules", "add", "owls", owls.url)

    assert (added.code, added.out) == (0, f"Module owls is in the fast lane, at {owls.url}.\n")


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["owls", "ftp://owls.test"], 2, "url: a module needs an http:// or https:// URL with a host."),
        (["o/wls", "http://owls.test"], 2, "module: a module's name may have letters"),
        (["owls", "http://owls.test", "--timeout", "0"], 2, "timeout_seconds: Input should be greater than 0."),
        (["owls", "http://[fe80::1]:80"], 1, "is a link-local or metadata one"),
    ],
)
def test_what_cannot_be_added_is_a_sentence(
    run: Run, owls: ModuleServer, words: list[str], code: int, reason: str
) -> None:
    ended = run("modules", "add", *words)

    assert ended.code == code
    assert reason in ended.err
    assert listed(run) == {}


def test_an_address_that_answers_is_not_unreachable(run: Run, owls: ModuleServer) -> None:
    run("modules", "add", "nests", f"{owls.url}/nowhere")
    found = listed(run, "refresh")["nests"]

    assert (found["state"], found["error"]) == ("answers 404", "answered with status 404")


@pytest.mark.parametrize(
    ("fields", "state", "said"),
    [
        ({"failures": 3}, "failing", "3 calls in a row without an answer"),
        (
            {"failures": 0, "open_until": 60_000, "pause": 60_000},
            "away",
            "no worker can connect to it; left alone for ",
        ),
        (
            {"failures": 0, "open_until": -1, "half_at": -1, "let_in_at": -1, "tokens": 4},
            "recovering",
            "it answers; calls are let in a few at a time",
        ),
    ],
)
def test_the_list_and_the_status_know_what_calls_have_seen(
    run: Run, owls: ModuleServer, redis_url: str, fields: dict[str, int], state: str, said: str
) -> None:
    """Whatever a module offers: it may fail, be left alone, or be coming back."""
    run("modules", "add", "owls", owls.url)
    run("modules", "refresh")
    with Redis.from_url(redis_url) as redis:
        now = int(redis.time()[0]) * 1000
        shown = {name: value + now * name.endswith(("_at", "until")) for name, value in fields.items()}
        redis.hset(KEYS.breaker("owls"), mapping=dict[Any, Any](shown))
        redis.expire(KEYS.breaker("owls"), 60)

    assert listed(run)["owls"]["state"] == state
    assert f"owls {state} {said}" in " ".join(run("status").out.split())
    assert state != "failing" or "3 calls in a row" in " ".join(run("modules", "list").out.split())


async def test_a_conflict_of_two_processes_is_noted(run: Run, owls: ModuleServer, redis: AsyncRedis) -> None:
    """With the address in effect, that of the older; and no more once one of them has left."""
    entries = [
        next(iter(static_entries(Settings(module_services={"owls": url})).values()))
        for url in (owls.url, "http://other.test")
    ]
    directory = ModuleDirectory(redis, Settings())
    for entry in entries:
        await directory.feed([entry])
    shown = (await asyncio.to_thread(run, "modules", "list")).out
    found = (await asyncio.to_thread(listed, run))["owls"]
    await directory.leave(entries[1:])
    after = (await asyncio.to_thread(listed, run))["owls"]

    assert "processes have 2 different settings for it" in " ".join(shown.split())
    assert (found["url"], found["conflicts"], after["conflicts"]) == (owls.url, 2, 0)


def test_an_entry_that_does_not_count_is_reported(
    run: Run, owls: ModuleServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the fleet signs, an unsigned one is no module; removing it takes it away."""
    monkeypatch.setenv("TOOLFLEET_SIGNING_KEY", "a secret of more than thirty-two characters")
    with Redis.from_url(redis_url) as redis:
        redis.hset(KEYS.modules, "larks", ModuleEntry(module="larks", url="http://larks.test").text())
    ended = run("modules", "list", "--json")
    removed = run("modules", "remove", "larks")

    assert json.loads(ended.out) == []
    assert "Module 'larks' is ignored: Its entry is not signed" in ended.err
    assert removed.code == 0
    assert "ignored" not in run("modules", "list").err


RETRYING = """\
[agents.production]
[[agents.production.middleware]]
name = "tool_retry"
max_retries = 3
{more}
"""
NEVER = "1 of the 2 tools in the tool_retry of agent 'production' declare no effect, and are never repeated"


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("more", ["", "undeclared = true"])
def test_tools_that_are_never_repeated_are_counted(
    run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch, elsewhere: Path, more: str
) -> None:
    """`modules list`, `agents put`, `why` and `doctor` say which retries never act, and which line would change that."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    (elsewhere / "toolfleet.toml").write_text(RETRYING.format(more=more))
    module = ModuleServer("owls")
    module.add("count", echo, effect="read")
    module.add("feed", echo)
    with serve(module):
        run("modules", "add", "owls", module.url)
        said = {
            "modules": run("modules", "list").err,
            "put": run("agents", "put", "production").err,
            "why": run("why", "owls.feed", "--agent", "production").out,
            "doctor": run("doctor").out,
        }
        listed_as = listed(run)["owls"]["undeclared"]

    assert "1 tools of owls declare no effect" in said["modules"].replace("\n", " ")
    assert listed_as == 1
    words = {what: " ".join(text.split()) for what, text in said.items()}
    assert (NEVER in words["put"], NEVER in words["doctor"], "never repeated" in words["why"]) == ((not more,) * 3)
    assert not run("why", "owls.count", "--agent", "production").out.count("never repeated")
