"""A process that makes calls through one system's client: takes orders as JSON lines, answers each with JSON lines.

`python -m benchmarks.calling.producer PEER[:VARIANT]`, in the peer's environment. It says `ready`; then it does what it is told:
`{"do": "first"}` publishes a call, says so, and says when its result came; `{"do": "window"}` makes calls for a time;
`{"do": "open"}` makes them when they are due; `{"do": "publish"}` only publishes. The last three warm up, say so and wait for a
line before they begin to measure.
"""

import asyncio
import importlib
import json
import os
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.calling.clients import AsyncClient, BlockingClient
from benchmarks.calling.open_loop import Schedule, run_async, run_blocking
from benchmarks.calling.tally import Tally
from benchmarks.work import check, make_call

_WARM_PUBLISHES = 50
_SETTLE_SECONDS = 0.3  # the first call of an asynchronous client is surely published then


class AsyncProducer:
    """Makes calls from as many coroutines as calls shall be in flight."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._reader = ThreadPoolExecutor(1)

    async def run(self) -> None:
        """Follow orders until there are no more."""
        await self._client.open()
        _say(ready=True)
        while order := await self._order():
            await getattr(self, f"_{order['do']}")(order)

    async def _order(self) -> dict[str, Any] | None:
        line = await asyncio.get_running_loop().run_in_executor(self._reader, sys.stdin.readline)
        return json.loads(line) if line else None

    async def _first(self, order: dict[str, Any]) -> None:
        call = asyncio.ensure_future(self._client.call(make_call(0, order["tools"])))
        await asyncio.wait([call], timeout=_SETTLE_SECONDS)
        _say(published=True)
        check(await call)
        _say(at=time.monotonic())

    async def _window(self, order: dict[str, Any]) -> None:
        await self._warm_up(order)
        tally = Tally(order)
        tally.start()
        await asyncio.gather(*(self._lane(tally) for _ in range(tally.in_flight)))
        _say(**tally.report())

    async def _open(self, order: dict[str, Any]) -> None:
        await self._warm_up(order)
        schedule = Schedule(order)
        await run_async(self._client, schedule)
        _say(**schedule.report())

    async def _warm_up(self, order: dict[str, Any]) -> None:
        warm = (self._client.call(make_call(number, order["tools"])) for number in range(order["warm"]))
        for result in await asyncio.gather(*warm):
            check(result)
        _say(warm=True)
        await self._order()

    async def _lane(self, tally: Tally) -> None:
        for number in tally.numbers:
            began_at = time.perf_counter()
            check(await self._client.call(make_call(number, tally.tools, tally.user)))
            tally.took.append(time.perf_counter() - began_at)

    async def _publish(self, order: dict[str, Any]) -> None:
        for number in range(_WARM_PUBLISHES):
            await self._client.publish(make_call(number, order["tools"]))
        _say(warm=True)
        await self._order()
        tally = Tally(order)
        tally.start()
        await asyncio.gather(*(self._publishing(tally) for _ in range(tally.in_flight)))
        _say(**tally.report())

    async def _publishing(self, tally: Tally) -> None:
        for number in tally.numbers:
            began_at = time.perf_counter()
            await self._client.publish(make_call(number, tally.tools))
            tally.took.append(time.perf_counter() - began_at)


class BlockingProducer:
    """Publishes until enough calls are in flight, then waits for the oldest."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def run(self) -> None:
        """Follow orders until there are no more."""
        _say(ready=True)
        while line := sys.stdin.readline():
            order = json.loads(line)
            getattr(self, f"_{order['do']}")(order)

    def _first(self, order: dict[str, Any]) -> None:
        handle = self._client.publish(make_call(0, order["tools"]))
        _say(published=True)
        check(self._client.result(handle))
        _say(at=time.monotonic())

    def _window(self, order: dict[str, Any]) -> None:
        self._warm_up(order)
        tally = Tally(order)
        waiting: deque[tuple[float, Any]] = deque()
        tally.start()
        for number in tally.numbers:
            waiting.append((time.perf_counter(), self._client.publish(make_call(number, tally.tools))))
            if len(waiting) == tally.in_flight:
                self._finish_oldest(waiting, tally)
        while waiting:
            self._finish_oldest(waiting, tally)
        _say(**tally.report())

    def _open(self, order: dict[str, Any]) -> None:
        self._warm_up(order)
        schedule = Schedule(order)
        run_blocking(self._client, schedule)
        _say(**schedule.report())

    def _warm_up(self, order: dict[str, Any]) -> None:
        for handle in [self._client.publish(make_call(number, order["tools"])) for number in range(order["warm"])]:
            check(self._client.result(handle))
        _say(warm=True)
        sys.stdin.readline()

    def _finish_oldest(self, waiting: deque[tuple[float, Any]], tally: Tally) -> None:
        began_at, handle = waiting.popleft()
        check(self._client.result(handle))
        tally.took.append(time.perf_counter() - began_at)

    def _publish(self, order: dict[str, Any]) -> None:
        for number in range(_WARM_PUBLISHES):
            self._client.publish(make_call(number, order["tools"]))
        _say(warm=True)
        sys.stdin.readline()
        tally = Tally(order)
        tally.start()
        for number in tally.numbers:
            began_at = time.perf_counter()
            self._client.publish(make_call(number, tally.tools))
            tally.took.append(time.perf_counter() - began_at)
        _say(**tally.report())


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    """Connect and follow orders."""
    peer, _, variant = sys.argv[1].partition(":")
    client = importlib.import_module(f"benchmarks.peers.{peer}.client").connect(variant)
    if isinstance(client, AsyncClient):
        asyncio.run(AsyncProducer(client).run())
    else:
        BlockingProducer(client).run()
    os._exit(0)  # the libraries' own ends take their time, and nothing is measured any more


if __name__ == "__main__":
    main()
