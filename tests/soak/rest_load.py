"""What clients do at gateways in a soak: calls, polls, cancels, listings, and streams that come and go; and how it ended."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, ClassVar, Self

import httpx

from soak.pace import steadily
from support.gateways.event_streams import EventReader

KINDS = {
    "call": 40,
    "keyed": 10,
    "polled": 10,
    "cancelled": 8,
    "followed": 10,
    "stream left": 6,
    "listed": 10,
    "feed": 6,
}
"""What is done, and how often of a hundred."""

FEED_SECONDS = 20.0  # the longest that a client listens to what happens to tools
_SECONDS = 60.0
_UNDER_WAY = frozenset({"queued", "running", "retrying", "unknown"})
_AT_ONCE = httpx.Limits(max_connections=None, max_keepalive_connections=20)


class RestLoad:
    """Clients of gateways, each with a key. `ends` counts how often which kind ended how. Enter it first."""

    name: ClassVar[str] = "gateway"
    kinds: ClassVar[Mapping[str, int]] = KINDS

    def __init__(self, urls: Sequence[str], keys: Sequence[str], seed: int) -> None:
        self._urls, self._keys = urls, keys
        self.dice = random.Random(seed)
        self._clients = list[httpx.AsyncClient]()
        self._tags = dict[httpx.AsyncClient, str]()
        self._open = AsyncExitStack()
        self.ends = Counter[tuple[str, str]]()

    async def __aenter__(self) -> Self:
        for url in self._urls:
            for key in self._keys:
                headers = {"authorization": f"Bearer {key}"}
                client = httpx.AsyncClient(
                    base_url=url, headers=headers, timeout=_SECONDS, limits=_AT_ONCE, trust_env=False
                )
                self._clients.append(await self._open.enter_async_context(client))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def run(self, rate: float, seconds: float) -> None:
        """Do things for so long, and return when the last one has ended."""
        await steadily(rate, seconds, self._do)

    async def _do(self, number: int) -> None:
        kind = self.dice.choices(list(self.kinds), list(self.kinds.values()))[0]
        at = self.dice.randrange(len(self._clients))
        try:
            end = await self.done(kind, self._clients[at], number)
        except (httpx.HTTPError, AssertionError, TimeoutError) as exc:
            end = f"{type(exc).__name__}: {exc}"[:100]
        self.ends[f"{self.name}: {kind}", end] += 1

    async def done(self, kind: str, client: httpx.AsyncClient, number: int) -> str:
        """Do one thing. Returns how it ended."""
        if kind == "listed":
            return await self._listed(client)
        if kind == "feed":
            return await heard(client.stream("GET", "/events"), self.dice.uniform(0.1, FEED_SECONDS))
        if kind in {"call", "keyed"}:
            headers = {"idempotency-key": f"rest-{number // 2}"} if kind == "keyed" else {}
            return _end_of(await client.post("/calls", json=_ECHO, headers=headers))
        return await _met(kind, client, await _begun(client, 5 if kind == "cancelled" else 0.3))

    async def _listed(self, client: httpx.AsyncClient) -> str:
        headers = {"if-none-match": self._tags[client]} if client in self._tags else {}
        answer = await client.get("/tools", headers=headers)
        if "etag" in answer.headers:
            self._tags[client] = answer.headers["etag"]
        return str(answer.status_code)


_TIMEOUT_SECONDS = 30  # what is known of a call is kept for 90 s more
_ECHO = {"tool_name": "owls.echo", "arguments": {"text": "hu"}, "timeout_seconds": _TIMEOUT_SECONDS}


async def _begun(client: httpx.AsyncClient, seconds: float) -> str:
    """Where a call is that naps."""
    body = {"tool_name": "owls.nap", "arguments": {"seconds": seconds}, "timeout_seconds": _TIMEOUT_SECONDS}
    answer = await client.post("/calls", json=body, headers={"prefer": "respond-async"})
    assert answer.status_code == httpx.codes.ACCEPTED, answer.text
    return str(answer.headers["location"])


async def _met(kind: str, client: httpx.AsyncClient, call: str) -> str:
    """What becomes of a call that has begun."""
    match kind:
        case "polled":
            while (answer := await client.get(call, headers={"prefer": "wait=1"})).json().get("state") in _UNDER_WAY:
                pass
            return _end_of(answer)
        case "cancelled":
            return _end_of(await client.delete(call))
        case "followed":
            return await _followed(client, call)
        case _:
            return await heard(client.stream("GET", f"{call}/events"), 0.05)


async def _followed(client: httpx.AsyncClient, call: str) -> str:
    async with client.stream("GET", f"{call}/events") as answer:
        return "ok" if (await EventReader(answer).next()).kind == "end" else "no end"


async def heard(stream: AbstractAsyncContextManager[httpx.Response], seconds: float) -> str:
    """A stream that its client leaves after so long: its status."""
    async with stream as answer:
        try:
            async with asyncio.timeout(seconds):
                async for _ in answer.aiter_bytes():
                    pass
        except TimeoutError:
            pass
    return str(answer.status_code)


def _end_of(answer: httpx.Response) -> str:
    said: dict[str, Any] = answer.json()
    result = said.get("result") if "state" in said else said
    code = (result or said).get("error_code")
    return str(code) if code else "ok" if answer.is_success and result else str(said.get("state", answer.status_code))
