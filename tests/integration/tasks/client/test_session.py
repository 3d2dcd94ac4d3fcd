"""What an agent costs: one connection, and no broker library. What many users share has one connection more."""

import asyncio
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.session import Session


async def connections(redis: Redis) -> set[str]:
    """Their ids: what earlier tests have left may close meanwhile."""
    return {client["id"] for client in await redis.client_list()}


async def test_an_idle_agent_has_one_connection(redis: Redis, redis_url: str) -> None:
    """Everything goes over it; leaving gives it back."""
    before = await connections(redis)
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        session = fleet._sessions.here()
        assert session is not None
        await session._connection.connected()
        await fleet.modules.refresh()
        during = await connections(redis) - before
        while len(during) > 1:  # it hears in the background, at its start, what there is
            during = await connections(redis) - before
    while await connections(redis) - before:
        pass

    assert len(during) == 1


async def test_what_many_users_share_asks_over_a_connection_of_its_own(redis: Redis, redis_url: str) -> None:
    """Redis cuts a subscriber that has much to read: over that one there are calls and subscriptions only."""
    before = await connections(redis)
    async with ToolFleet(settings=Settings(redis_url=redis_url), is_shared=True) as fleet:
        session = await fleet._sessions.opened()
        await asyncio.gather(session._connection.connected(), session._commands.connected())
        await wait_until_answered(functools.partial(are_open, redis, before, 2), "there are two")
        async with redis.monitor() as monitor:
            await fleet.approvals.list()
            await fleet.approvals.count()
            await fleet.jobs.list(Caller(user_id="ada", permission="owner", allowed_modules="*"))
            sent = await said(monitor, redis)
        subscribers = [each["addr"] for each in await redis.client_list() if each["sub"] != "0"]

    assert len(subscribers) == 1
    asked = [address for address, command in sent if command.split()[0].upper() in {"EVALSHA", "ZCARD", "ZREVRANGE"}]
    assert len(asked) >= 3
    assert set(asked) & set(subscribers) == set()


async def test_a_call_costs_what_many_users_share_no_more_than_an_agent(
    redis: Redis, redis_url: str, owls: ModuleServer, owner: Caller
) -> None:
    """The same command, over one connection: the reply channel is subscribed to already."""
    settings = Settings(redis_url=redis_url, module_services={"owls": owls.url})
    costs = list[tuple[list[str], int]]()
    for is_shared in (False, False, True):  # the first one has Redis learn the script
        async with ToolFleet(settings=settings, is_shared=is_shared) as fleet:
            await fleet.modules.refresh()
            async with redis.monitor() as monitor:
                call = ToolCall(tool_name="owls.echo", arguments={"text": "hoo"})
                handle = await fleet.submit(call, owner, waits_for_worker=True)
                sent = [each for each in await said(monitor, redis) if handle.id in each[1]]
            await handle.cancel()
        costs.append(([command.split()[0].upper() for _, command in sent], len({address for address, _ in sent})))

    assert costs[1] == costs[2] == (["EVALSHA"], 1)


async def are_open(redis: Redis, before: set[str], count: int) -> bool:
    return len(await connections(redis) - before) == count


async def said(monitor: Any, redis: Redis) -> list[tuple[str, str]]:
    """What came by now, with the address of whoever has sent it; not what scripts have done."""
    await redis.echo("by now")
    found = list[tuple[str, str]]()
    while "by now" not in (each := await monitor.next_command())["command"]:
        if each["client_type"] == "tcp":
            found.append((f"{each['client_address']}:{each['client_port']}", each["command"]))
    return found


def test_a_fast_agent_needs_neither_celery_nor_kombu(redis_url: str, tmp_path: Path) -> None:
    """They take a while to import, and a fleet that is used through Redis alone never does; nor what draws, or asks modules."""
    code = f"""
import asyncio, sys
from toolfleet import ToolFleet, Settings

async def main():
    async with ToolFleet(settings=Settings(redis_url={redis_url!r})):
        print(sorted({{"celery", "kombu", "billiard", "structlog", "rich", "httpx", "h11"}} & set(sys.modules)))

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_SECONDS,
        check=False,
    )

    assert (ended.stdout, ended.stderr) == ("[]\n", "")


@pytest.mark.parametrize("place", ["reload", "close_idle"])
async def test_no_error_ends_the_news(redis: Redis, redis_url: str, monkeypatch: Any, place: str) -> None:
    """Whatever goes wrong with one message, the next one is heard: tools do not grow old for ever."""
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        session = fleet._sessions.here()
        assert session is not None
        holder = session._catalog if place == "reload" else session._updates
        asked = 0

        def fail() -> None:
            nonlocal asked
            asked += 1
            raise ValueError("a defect")

        monkeypatch.setattr(holder, place, fail)
        await redis.publish(session._keys.manifests_changed, "x")
        await wait_until(lambda: asked, "the first message was heard")
        before = asked
        await redis.publish(session._keys.manifests_changed, "x")
        await wait_until(lambda: asked > before, "the next message was heard")
        monkeypatch.undo()


async def test_closing_twice_does_no_harm(redis_url: str) -> None:
    """As after an opening that failed half-way."""
    session = Session(Settings(redis_url=redis_url))
    await session.open()
    await session.aclose()
    await session.aclose()
