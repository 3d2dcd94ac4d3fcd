"""Modules behind a token: workers bear it with every request, agents need none, and it is found nowhere."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis

from support.command import Ended, run
from support.fleet import TestBed, program
from support.module_server import ModuleServer, Request, serve
from support.owls import make_module
from support.servers.redis_snapshot import take
from support.waiting import wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_cli.local.environment import beat_command
from toolfleet_registry.settings import Settings

TOKEN = "t0p-s3cret-t0ken"
WRONG = "wr0ng-s3cret-t0ken"
ECHO = ToolCall(tool_name="owls.echo", arguments={"text": "hu"})
ALLOWED = f"Bearer {TOKEN}"


async def quote(_: Request) -> dict[str, object]:
    return {"success": False, "error": f"You are {ALLOWED}, and cannot.", "result": [TOKEN], "effect_state": "none"}


@pytest.fixture
def owls() -> Iterator[ModuleServer]:
    """A module that answers nobody else, and says in an error who asks."""
    with serve(make_module()) as module:
        module.add("quote", quote)
        module.token = TOKEN
        yield module


@pytest.fixture
def bed(redis_url: str, owls: ModuleServer, tmp_path: Path) -> TestBed:
    logs = tmp_path / "logs"
    logs.mkdir()
    more = {"log_level": "DEBUG", "log_format": "json"}
    return TestBed(redis_url, (owls,), logs, more)


def bearing(token: str) -> dict[str, Any]:
    """A worker's setting."""
    return {
        "module_headers": {
            "owls": {"Authorization": SecretStr(f"Bearer {token}")},
            "crows": {"X-Key": SecretStr(TOKEN)},
        }
    }


def agent_of(bed: TestBed) -> Settings:
    """An agent's settings: it knows where Redis is."""
    return bed.settings.model_copy(update={"module_services": {}})


async def command(bed: TestBed, *words: str) -> Ended:
    """One that knows where Redis is."""
    return await asyncio.to_thread(run, *words, env={"TOOLFLEET_REDIS_URL": bed.redis_url})


def logs_of(bed: TestBed) -> str:
    return "\n".join(path.read_text(errors="replace") for path in bed.folder.iterdir())


@pytest.mark.timeout(180)
async def test_each_request_bears_the_token_and_nobody_else_sees_it(
    bed: TestBed, owls: ModuleServer, owner: Caller
) -> None:
    """The manifest's, a call's, the question after a call that was lost, and the look at a module that was away.

    It is in no log, nothing that lies in Redis, no result and no output of a command.
    """
    owls.memory = lambda _: {"state": "done", "success": True, "result": "awake"}
    with bed.worker(**bearing(TOKEN)) as worker, program(bed, beat_command(), "beat", ready="maxinterval ->"):
        async with ToolFleet(settings=agent_of(bed)) as fleet:
            assert (await fleet.modules.refresh())["owls"].ok
            called = await fleet.call(ECHO, owner, timeout=30)
            lost = await fleet.call(ToolCall(tool_name="owls.garble"), owner, timeout=30)
            quoted = await fleet.call(ToolCall(tool_name="owls.quote"), owner, timeout=30)
            with Redis.from_url(bed.redis_url) as redis:
                redis.hset(bed.settings.keys.breaker("owls"), mapping={"failures": 20, "open_until": 1})
                redis.expire(bed.settings.keys.breaker("owls"), 60)
            assert (await fleet.call(ECHO, owner, timeout=30)).success
        told = [await command(bed, *words) for words in (["modules", "list"], ["status"], ["audit", "tail"])]
        await wait_until(lambda: "module_of_headers_unknown" in worker.said(), "the worker warns")

    assert (called.success, lost.result) == (True, "awake")
    assert quoted.error == "You are [hidden], and cannot."
    assert {path for path, _ in owls.visits} == {"/manifest", "/execute", "/reconcile", "/health"}
    assert {told for _, told in owls.visits} == {ALLOWED}
    shown = [take(bed.redis_url), logs_of(bed), quoted.model_dump_json(), *(each.out + each.err for each in told)]
    assert [text for text in shown if TOKEN in text] == []
    assert '"crows"' in worker.said()


async def test_a_wrong_token_is_one_clear_error(bed: TestBed, owls: ModuleServer, owner: Caller) -> None:
    """It says which setting to correct, and does not show what was wrong."""
    owls.token = None
    with bed.worker(**bearing(WRONG)) as worker:
        async with ToolFleet(settings=agent_of(bed)) as fleet:
            await fleet.modules.refresh()
            owls.token = TOKEN
            result = await fleet.call(ECHO, owner, timeout=30)
        told = await command(bed, "modules", "refresh", "--json")

    advice = "it does not accept what TOOLFLEET_MODULE_HEADERS has for it: correct that where the workers run, and restart them"
    assert result.error == (
        f"Module returned status 401: You have said [hidden], and that is wrong. (for the operator: {advice})"
    )
    assert (result.error_code, result.effect_state) == ("module_error", "none")
    (status,) = json.loads(told.out)
    assert status["error"] == f"answered with status 401; {advice}"
    assert WRONG not in take(bed.redis_url) + worker.said() + told.out + told.err


async def test_a_module_that_is_added_gets_its_token(bed: TestBed, owls: ModuleServer, owner: Caller) -> None:
    """Workers have it before the module is there."""
    with bed.worker(module_services={}, **bearing(TOKEN)):
        added = await command(bed, "modules", "add", "owls", owls.url)
        assert added.code == 0, added.err
        async with ToolFleet(settings=agent_of(bed)) as fleet:
            assert (await fleet.modules.refresh())["owls"].ok
            assert (await fleet.call(ECHO, owner, timeout=30)).success
    assert {told for _, told in owls.visits} == {ALLOWED}
