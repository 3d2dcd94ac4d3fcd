"""A process of the agents' core, which news of jobs' ends wake: `python -m chaos.processes.core PORT FOLDER`, settings from the environment.

It acts on each by `toolfleet.webhooks`, half of them in SQLite and half in Redis, always in the transaction that marks them.
Several share a port and what they remember. It is slow at times, and fails at times, before it acts and after; at SIGUSR1 it
ends at its next act, before anybody is told of it.
"""

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Any

import uvicorn
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from chaos.plan import CORE_SECRET, LEASE_SECONDS
from chaos.records.acts import INSERT, LIST, Act, Mark, act_on, database_of, is_in_sql, marks_of
from toolfleet.webhooks import Delivery, RedisSeen, SQLSeen, WakeBusy, WakeLost, WakeReceiver, WakeRefused
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_tasks.webhooks import receiver

READY = "core ready"
CRASHED = 70
_REDIS_SECONDS = 3
_SLOW_CHANCE, _FAIL_CHANCE = 0.02, 0.03
_SLOW_SECONDS = LEASE_SECONDS * 1.4  # longer than a worker waits, and than its claim lasts if it were not renewed
_MOST_SECONDS = 0.15  # of an act's two halves, otherwise

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Broken(Exception):
    """What any code may raise."""


class Core:
    """An ASGI app. `folder` is where its table is, and its marks."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        url = f"sqlite:///{database_of(folder)}"
        self._engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": 2})
        self._redis = Redis.from_url(redis_url, socket_timeout=_REDIS_SECONDS, socket_connect_timeout=_REDIS_SECONDS)
        self._by_sql = WakeReceiver(CORE_SECRET, SQLSeen(url))
        self._by_redis = WakeReceiver(CORE_SECRET, RedisSeen(redis_url))
        self._marks = os.open(marks_of(folder), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._crashes_next = False

    def crash_next(self) -> None:
        """End at the next act."""
        self._crashes_next = True

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, more = await self._answer(scope["path"], headers, body)
        await send({"type": "http.response.start", "status": status, "headers": more})
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
        wake_id = headers.get("webhook-id", "")
        self._mark("received", wake_id)
        try:
            await self._act(path, headers, body, in_sql=is_in_sql(wake_id))
        except WakeRefused:
            return 401, []
        except WakeBusy as exc:
            return 409, [(b"retry-after", str(exc.retry_after_seconds).encode())]
        except (WakeLost, FleetUnavailable, RedisError, SQLAlchemyError, Broken):
            return 503, []
        self._mark("answered", wake_id)
        return 202, []

    async def _act(self, path: str, headers: dict[str, str], body: bytes, *, in_sql: bool) -> None:
        taking = self._by_sql if in_sql else self._by_redis
        async with taking.receive(headers, body, kind="notify" if path.endswith("/notify") else "continue") as delivery:
            if delivery.wake is None:
                return
            act = act_on(delivery.wake, path)
            await pause()
            await (self._act_in_sql(act, delivery) if in_sql else self._act_in_redis(act, delivery))
            self._mark("acted", act.wake_id)
            if self._crashes_next:
                os._exit(CRASHED)
            await pause()

    async def _act_in_sql(self, act: Act, delivery: Delivery) -> None:
        def transact() -> None:
            with self._engine.begin() as connection:
                connection.execute(text(INSERT), {"act": act.text()})
                delivery.done_in(connection)

        await asyncio.to_thread(transact)

    async def _act_in_redis(self, act: Act, delivery: Delivery) -> None:
        async with self._redis.pipeline() as pipe:
            await delivery.done_in(pipe)
            pipe.rpush(LIST, act.text())
            await pipe.execute()

    def _mark(self, mark: Mark, wake_id: str) -> None:
        line = {"mark": mark, "wake_id": wake_id, "at": time.time(), "pid": os.getpid()}
        os.write(self._marks, (json.dumps(line) + "\n").encode())


async def pause() -> None:
    """Be at it for a while, at times a long one. Raises `Broken` at times."""
    if random.random() < _FAIL_CHANCE:
        raise Broken
    is_slow = random.random() < _SLOW_CHANCE
    await asyncio.sleep(_SLOW_SECONDS if is_slow else random.uniform(0, _MOST_SECONDS))


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        print(READY, flush=True)  # noqa: T201 - for who started us


async def _serve(port: int, folder: Path) -> None:
    receiver.LEASE_SECONDS = float(LEASE_SECONDS)  # what the dead have left is soon free
    core = Core(os.environ["TOOLFLEET_REDIS_URL"], folder)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, core.crash_next)
    with closing(socket.socket()) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        own.bind(("127.0.0.1", port))
        config = uvicorn.Config(
            core, lifespan="off", access_log=False, timeout_graceful_shutdown=LEASE_SECONDS, interface="asgi3"
        )
        await _Server(config).serve(sockets=[own])


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2])))
