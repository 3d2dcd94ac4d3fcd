"""What the shell completes: tools, modules, ids and processes, from a real Redis, quickly, and never with an error."""

import json
import os
import socket
import threading
from pathlib import Path

import pytest
from redis import Redis

from support.command import Run
from support.module_server import ModuleServer
from toolfleet_cli.commands import completion
from toolfleet_registry.config.run_file import ListedProcess, RunFile
from toolfleet_registry.redis.keys import Keys

KEYS = Keys()


@pytest.fixture
def complete(run: Run, monkeypatch: pytest.MonkeyPatch) -> "Complete":
    return Complete(run, monkeypatch)


class Complete:
    """What bash is told for a line that ends with what is to be completed."""

    def __init__(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run = run
        self._monkeypatch = monkeypatch

    def __call__(self, *words: str) -> list[str]:
        with self._monkeypatch.context() as patched:
            patched.setenv("_TOOLFLEET_COMPLETE", "complete_bash")
            patched.setenv("COMP_WORDS", " ".join(["toolfleet", *words]))
            patched.setenv("COMP_CWORD", str(len(words)))
            ended = self._run()
        assert ended.err == ""
        return ended.out.split()


@pytest.fixture
def fleet(run: Run, owls: ModuleServer, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Redis that knows what the module offers."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    monkeypatch.setenv("TOOLFLEET_MODULE_SERVICES", json.dumps({"owls": owls.url, "oxen": "http://127.0.0.1:1"}))
    run("modules", "refresh")
    return redis_url


def test_tools_and_modules_are_completed(complete: Complete, fleet: str) -> None:
    assert complete("call", "owls.na") == ["owls.nap", "owls.nap_once"]
    assert "owls.echo" in complete("call", "o")
    assert complete("tools", "show", "owls.ec") == ["owls.echo"]
    assert complete("tools", "pin", "o") == ["owls", "oxen"]
    assert complete("tools", "diff", "ow")[:2] == ["owls", "owls.admin_only"]
    assert complete("modules", "key", "ox") == ["oxen"]
    assert complete("call", "cows.") == []


def test_of_too_many_modules_the_names_come_first(
    complete: Complete, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their manifests are not all read for one key stroke."""
    monkeypatch.setattr(completion, "_MOST_MODULES", 1)
    assert complete("call", "o") == ["owls.", "oxen."]
    assert complete("call", "owls.ec") == ["owls.echo"]
    monkeypatch.setattr(completion, "_MOST_BYTES", 10)
    assert complete("call", "owls.ec") == []


def test_ids_are_completed(complete: Complete, fleet: str) -> None:
    with Redis.from_url(fleet) as redis:
        redis.zadd(KEYS.dead_order, {"call-1": 1, "other": 2})
        redis.zadd(KEYS.jobs_due, {"job-1": 1})
        redis.zadd(KEYS.jobs_ended, {"job-2": 1})
        redis.expire(KEYS.jobs_ended, 60)
        redis.zadd(KEYS.wakes_due, {"wake-1": 1})
        redis.zadd(KEYS.dead_wakes_order, {"wake-2": 1})
        redis.zadd(KEYS.dead_webhooks("-order"), {"7@0123456789abcdef": 1})

    assert complete("dead-letters", "show", "call-") == ["call-1"]
    assert complete("dead-letters", "drop", "") == ["7@0123456789abcdef", "call-1", "other", "wake-2"]
    assert complete("dead-letters", "replay", "wake") == ["wake-2"]
    assert complete("jobs", "cancel", "job") == ["job-1", "job-2"]
    assert complete("wake-ups", "show", "w") == ["wake-1"]


def test_processes_and_logs_are_completed(complete: Complete, elsewhere: Path) -> None:
    processes = {name: ListedProcess(pid=1, state="ready") for name in ("redis", "worker-fast", "worker-slow")}
    RunFile(pid=os.getpid(), settings={}, processes=processes).write(elsewhere)
    (elsewhere / ".toolfleet" / "logs").mkdir()
    (elsewhere / ".toolfleet" / "logs" / "beat.log").touch()

    assert complete("restart", "wor") == ["worker-fast", "worker-slow"]
    assert complete("logs", "b") == ["beat"]


@pytest.mark.parametrize("url", ["", "redis://127.0.0.1:1/0", "nonsense", "silent"])
def test_without_an_answer_there_is_nothing_and_no_error(
    complete: Complete, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """No fleet, one that is away, a wrong setting, and a Redis that is frozen: that takes a moment."""
    monkeypatch.setenv("TOOLFLEET_MISSPELT", "1")
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        monkeypatch.setenv("TOOLFLEET_REDIS_URL", url.replace("silent", f"redis://127.0.0.1:{frozen.getsockname()[1]}"))
        assert complete("call", "o") == []


def test_nobody_waits_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no time-out of a socket helps, as with a name that is not found."""
    monkeypatch.setattr(completion, "_SECONDS", 0)
    found = threading.Event()

    def words() -> list[str]:
        found.wait()
        return ["late"]

    assert completion._in_time(words, "") == []
    found.set()
