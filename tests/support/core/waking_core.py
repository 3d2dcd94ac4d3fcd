"""An agent's core in a process of its own, which may be killed at any moment: its acts are counted where it makes them.

Each act is a row in the table `acts`, or a hit in the hash `module_manifest:acts`, in the transaction that marks its wake-up.
"""

import asyncio
import random
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

from aiohttp import web
from redis.asyncio import Redis
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from support.processes import next_line, python_program
from support.workers.wakes import SECRET
from toolfleet.webhooks import Delivery, RedisSeen, SQLSeen, WakeBusy, WakeLost, WakeReceiver, WakeRefused
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_tasks.webhooks import receiver as receiver_file

ACTS = "module_manifest:acts"
_PROGRAM = "from support.core.waking_core import main; main()"
_LONGEST_STEP = 0.03  # seconds: acts take long enough to be killed in


@contextmanager
def waking_core(port: int, store_url: str) -> "Generator[Popen[str]]":
    """The core, listening on that port; killed at the end."""
    with python_program(_PROGRAM, port, store_url, env={"PYTHONPATH": str(Path(__file__).parents[2])}) as core:
        assert next_line(core) == "listening", "the core did not start; its error is on stderr"
        yield core


def main() -> None:
    """Serve until killed. Arguments: port, and where acts and wake-ups are remembered."""
    receiver_file.LEASE_SECONDS = 1.0  # what the dead have left is soon free
    port, url = int(sys.argv[1]), sys.argv[2]
    asyncio.run(_serve(port, url))


async def _serve(port: int, url: str) -> None:
    redis = Redis.from_url(url) if url.startswith("redis") else None
    engine = None if redis is not None else create_engine(url, poolclass=NullPool)
    receiver = WakeReceiver(SECRET, RedisSeen(url) if redis is not None else SQLSeen(url))
    turns = asyncio.Semaphore(3)

    async def wake(request: web.Request) -> web.Response:
        body = await request.read()
        try:
            async with turns, receiver.receive(request.headers, body) as delivery:
                if not delivery.is_repeat:
                    await _pause()
                    await (_act_in_sql(engine, delivery) if engine is not None else _act_in_redis(redis, delivery))
                    await _pause()
        except WakeRefused:
            return web.Response(status=401)
        except WakeBusy as exc:
            return web.Response(status=409, headers={"Retry-After": str(exc.retry_after_seconds)})
        except (WakeLost, FleetUnavailable, OperationalError) as exc:
            return web.Response(status=503, text=type(exc).__name__)
        await _pause()
        return web.Response(status=202)

    app = web.Application()
    app.router.add_post("/{path}", wake)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def _act_in_sql(engine: Engine, delivery: Delivery) -> None:
    def act() -> None:
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO acts VALUES (:wake_id)"), {"wake_id": delivery.wake_id})
            delivery.done_in(connection)

    await asyncio.to_thread(act)


async def _act_in_redis(redis: "Redis | None", delivery: Delivery) -> None:
    assert redis is not None
    async with redis.pipeline() as pipe:
        await delivery.done_in(pipe)
        pipe.hincrby(ACTS, delivery.wake_id, 1)
        pipe.expire(ACTS, 600)
        await pipe.execute()


async def _pause() -> None:
    await asyncio.sleep(random.uniform(0, _LONGEST_STEP))


def counted_acts(store_url: str) -> Callable[[], dict[str, int]]:
    """Prepares the store; what it returns counts the acts of each wake-up."""
    engine = create_engine(store_url, poolclass=NullPool)
    with engine.begin() as connection:
        with suppress(OperationalError):
            connection.execute(text("DROP TABLE IF EXISTS acts"))
        connection.execute(text("CREATE TABLE acts (wake_id TEXT)"))

    def count() -> dict[str, int]:
        with engine.begin() as connection:
            rows = connection.execute(text("SELECT wake_id, count(*) FROM acts GROUP BY wake_id"))
            return {wake_id: int(number) for wake_id, number in rows}

    return count
