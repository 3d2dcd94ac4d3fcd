"""A process that makes calls through one system's client: takes orders as JSON lines, answers each with JSON lines.

`python -m benchmarks.producer PEER[:VARIANT]`, in the peer's environment. It says `ready`; then it does what it is told:
`{"do": "first"}` publishes a call, says so, and says when its result came; `{"do": "window"}` makes calls for a time;
`{"do": "publish"}` only publishes. The last two warm up, say so and wait for a line before they begin to measure.
"""

import asyncio
import importlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.clients import AsyncClient, BlockingClient
from benchmarks.work import USER, check, make_call

_WARM_PUBLISHES = 50
_SETTLE_SECONDS = 0.3  # the first call of an asynchronous client is surely published then


class Tally:
    """How many calls there may still be, and how long each took."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.tools: list[str] = order["tools"]
        self.user: str = order.get("user", USER)
        self.in_flight: int = order["in_flight"]
        self._seconds: float = order["seconds"]
        self._most: int = order.get("most") or sys.maxsize
        self.took: list[float] = []

    def start(self) -> None:
        """Begin to measure."""
        self._cpu = time.process_time()
        self._started_at = time.perf_counter()
        self.numbers = self._numbers()

    def _numbers(self) -> Iterator[int]:
        """The calls to make: none any more when the time is up."""
        for number in range(self._most):
            if time.perf_counter() - self._started_at >= self._seconds:
                return
            yield number

    def report(self) -> dict[str, Any]:
        """What was measured; times in seconds and, of single calls, in milliseconds."""
        elapsed = time.perf_counter() - self._started_at
        took = sorted(self.took)
        quantiles = {f"p{q}_ms": _quantile(took, q / 100) * 1000 for q in (50, 95, 99)}
        return {"calls": len(took), "elapsed": elapsed, "producer_cpu": time.process_time() - self._cpu, **quantiles}


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


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
        warm = (self._client.call(make_call(number, order["tools"])) for number in range(order["warm"]))
        for result in await asyncio.gather(*warm):
            check(result)
        _say(warm=True)
        await self._order()
        tally = Tally(order)
        tally.start()
        await asyncio.gather(*(self._lane(tally) for _ in range(tally.in_flight)))
        _say(**tally.report())

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
        for handle in [self._client.publish(make_call(number, order["tools"])) for number in range(order["warm"])]:
            check(self._client.result(handle))
        _say(warm=True)
        sys.stdin.readline()
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
