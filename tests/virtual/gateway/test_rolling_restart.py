"""All gateways are restarted one after the other, under load, behind a balancer that goes by `/readyz`."""

import asyncio
import contextlib
import itertools
import signal
import uuid
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field

import httpx

from bed.fleet import Bed, Gateway, until
from support.module_server import ModuleServer

_CALLERS, _FOLLOWERS = 8, 4
_LOOK_SECONDS = 0.1


@dataclass
class _Balancer:
    """The gateways that were ready when they were asked last, in turn. `errors`: what clients were answered, or not, beside a result."""

    ready: dict[str, httpx.AsyncClient] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    calls: int = 0
    streams: int = 0
    _turn: "itertools.count[int]" = field(default_factory=itertools.count)

    def pick(self) -> httpx.AsyncClient:
        clients = list(self.ready.values())
        return clients[next(self._turn) % len(clients)]

    async def watch(self, gateway: Gateway, client: httpx.AsyncClient) -> None:
        """Go by what it says of itself, until it is gone."""
        with contextlib.suppress(httpx.TransportError):
            while (await client.get("/readyz")).status_code == 200:
                self.ready[gateway.url] = client
                await asyncio.sleep(_LOOK_SECONDS)
        self.ready.pop(gateway.url, None)

    async def call(self, is_over: asyncio.Event) -> None:
        """One call after the other, and where one was answered with its place, look there."""
        while not is_over.is_set():
            headers = {"Idempotency-Key": str(uuid.uuid4())}
            body = {"tool_name": "owls.nap_once", "arguments": {"seconds": 1}}
            with self._noting():
                answer = await self.pick().post("/calls", json=body, headers=headers)
                place = answer.headers.get("location")
                while place and answer.is_success and answer.json()["state"] != "done":
                    answer = await self.pick().get(place, headers={"Prefer": "wait=20"})
                if answer.status_code != 200 or "awake" not in answer.text:
                    self.errors.append(f"{answer.status_code}: {answer.text}")
                self.calls += 1

    async def follow(self, is_over: asyncio.Event) -> None:
        """One stream after the other, each taken up again where its gateway has ended."""
        while not is_over.is_set():
            with self._noting():
                body = {"tool_name": "owls.nap", "arguments": {"seconds": 1}}
                begun = await self.pick().post("/calls", json=body, headers={"Prefer": "respond-async"})
                events = f"{begun.headers['location']}/events"
                while "event: end" not in (text := (await self.pick().get(events)).text):
                    if "event: closing" not in text:
                        self.errors.append(f"a stream that ends without a word: {text}")
                self.streams += 1

    @contextlib.contextmanager
    def _noting(self) -> Generator[None]:
        try:
            yield
        except (httpx.HTTPError, KeyError, ZeroDivisionError) as exc:
            self.errors.append(repr(exc))


async def test_a_rolling_restart_costs_no_client_an_error(bed: Bed, owls: ModuleServer) -> None:
    """Every request is answered, with a result or where the call is, and every stream ends with its call's end, or says that it closes."""
    await bed.serve(owls)
    await bed.worker()
    balancer, is_over = _Balancer(), asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        old, new = [[await bed.gateway(leave_seconds=1.5) for _ in range(2)] for _ in range(2)]
        for gateway in old:
            await stack.enter_async_context(_behind(balancer, gateway))
        works = [balancer.call] * _CALLERS + [balancer.follow] * _FOLLOWERS
        working = [asyncio.create_task(work(is_over)) for work in works]
        for gateway, successor in zip(old, new, strict=True):
            await _goes_on(balancer)
            gateway.site.send_signal(signal.SIGTERM)
            await until(lambda: all(task.done() for task in gateway.site.tasks), "it has ended")  # noqa: B023 - awaited
            await stack.enter_async_context(_behind(balancer, successor))
        await _goes_on(balancer)
        is_over.set()
        await asyncio.gather(*working)

    assert balancer.errors == []


@contextlib.asynccontextmanager
async def _behind(balancer: _Balancer, gateway: Gateway) -> AsyncGenerator[None]:
    """Have the balancer know a gateway."""
    async with gateway.client() as client:
        watching = asyncio.create_task(balancer.watch(gateway, client))
        await until(lambda: gateway.url in balancer.ready, "it is ready")
        try:
            yield
        finally:
            watching.cancel()


async def _goes_on(balancer: _Balancer) -> None:
    calls, streams = balancer.calls + _CALLERS, balancer.streams + 1
    await until(lambda: balancer.calls > calls and balancer.streams > streams, "clients go on")
