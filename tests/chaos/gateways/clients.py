"""Calls tools over REST, MCP and adapters as a client must that may lose any answer: it repeats itself with its key at the other gateway."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import httpx

from chaos.gateways.mcp_ways import Send, call_as_task, call_over_mcp
from chaos.plan import MODULES
from toolfleet_registry.contracts import ToolResult

if TYPE_CHECKING:
    from chaos.gateways.agents import Agents  # with all frameworks

Door = Literal["rest", "mcp", "agents"]
WAYS: dict[Door, tuple[str, ...]] = {
    "rest": ("waits", "twice at once", "goes away", "follows", "follows", "polls"),
    "mcp": ("over MCP", "over MCP", "over MCP, goes away", "over MCP, as a task"),
    "agents": (
        "by Pydantic AI",
        "by LangChain",
        "by the OpenAI Agents SDK",
        "by Claude's agent SDK",
        "by an adapter, deferred",
        "by an adapter, as a job",
    ),
}
"""How clients call through each door."""

TIMEOUT_SECONDS, GIVE_UP_SECONDS = 40.0, 90.0
_OK, _ACCEPTED = 200, 202
_COME_AGAIN = frozenset({429, 503})
_PAUSE_SECONDS = 0.5
_GONE = (httpx.TransportError, OSError)
_BEHAVIOURS = {"ok": 80, "fails": 6, "fails_clean": 3, "error": 4, "hangs_up": 5, "busy": 2}


@dataclass
class Intention:
    """One thing that a client wants done once, under one key, and every result that it was told of it, as it was told.

    `trouble`: what should not have been answered, or that nothing was. `lost` counts requests without an answer, `refused` those
    that were to come again, `resumed` streams that were.
    """

    ref: str
    tool: str
    way: str
    arguments: dict[str, Any]
    told: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    lost: int = 0
    refused: int = 0
    resumed: int = 0
    seconds: float = 0

    @property
    def is_over_mcp(self) -> bool:
        return self.way.startswith("over MCP")

    @property
    def headers(self) -> dict[str, str]:
        return {"Idempotency-Key": f"key of {self.ref}"}

    @property
    def body(self) -> dict[str, Any]:
        return {"tool_name": self.tool, "arguments": self.arguments, "timeout_seconds": TIMEOUT_SECONDS}


def intentions(count: int, doors: Sequence[Door], dice: random.Random) -> list[Intention]:
    """So many `once` calls, each in a way of its own."""
    ways = [way for door in doors for way in WAYS[door]]
    made: list[Intention] = []
    for number in range(count):
        (first,) = dice.choices(list(_BEHAVIOURS), list(_BEHAVIOURS.values()))
        ref = f"rest-{number}-{dice.getrandbits(32):08x}"
        waits = {name: dice.choice((0, 0, 20, 200, 800)) for name in ("before_ms", "after_ms")}
        arguments = {"ref": ref, "first": first, "then": "ok", **waits}
        made.append(Intention(ref, f"{dice.choice(MODULES)}.once", dice.choice(ways), arguments))
    return made


class Client:
    """Has intentions done, at whichever gateway answers, or by agents. `streams`: what ends a stream that it has open."""

    def __init__(
        self,
        streams: set[Callable[[], object]],
        gateways: Sequence[httpx.AsyncClient],
        dice: random.Random,
        agents: "Agents | None" = None,
    ) -> None:
        self._streams = streams
        self._gateways = gateways
        self._agents = agents
        self._dice = dice
        self._turn = 0

    async def have_done(self, wanted: Intention) -> None:
        """Return when the client knows what has become of it, and has asked again at each gateway, or by each agent."""
        began_at = time.monotonic()
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self._ways.get(wanted.way, Client._by_agent)(self, wanted)
            wanted.seconds = time.monotonic() - began_at
            for number in range(len(self._gateways)):
                async with asyncio.timeout(GIVE_UP_SECONDS):
                    await self._repeat(wanted, number)
        except TimeoutError:
            wanted.trouble.append(f"no answer in {GIVE_UP_SECONDS:.0f} s")
        except Exception as exc:  # noqa: BLE001 - one that fails must not end the run
            wanted.trouble.append(repr(exc))

    async def _repeat(self, wanted: Intention, number: int) -> None:
        if wanted.way in WAYS["agents"]:
            await self._by_agent(wanted, number)
        elif wanted.is_over_mcp:
            await self._until_told_over_mcp(wanted, self._gateways[number])
        else:
            await self._until_told(wanted, self._gateways[number])

    async def _by_agent(self, wanted: Intention, number: int = 0) -> None:
        assert self._agents is not None
        told = await self._agents.told(number, wanted.way, wanted.ref, wanted.tool, wanted.arguments)
        wanted.told.append(told)

    async def _wait(self, wanted: Intention) -> None:
        await self._until_told(wanted, self._next())

    async def _twice(self, wanted: Intention) -> None:
        await asyncio.gather(*(self._until_told(wanted, gateway) for gateway in self._gateways))

    async def _go_away(self, wanted: Intention) -> None:
        asking = asyncio.ensure_future(self._post(wanted, self._next(), "wait=10"))
        await asyncio.wait([asking], timeout=self._dice.choice((0.005, 0.02, 0.1, 0.5)))
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await self._until_told(wanted, self._next())

    async def _follow(self, wanted: Intention) -> None:
        location = await self._begun(wanted)
        last, headers = "", dict[str, str]()
        while location is not None:
            found = await self._stream(wanted, f"{location}/events", headers)
            if found == "end":
                return
            last = found or last
            headers = {"Last-Event-ID": last} if last else {}
            wanted.resumed += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _poll(self, wanted: Intention) -> None:
        location = await self._begun(wanted)
        while location is not None:
            answer = await self._send(wanted, self._next(), "GET", location, {"Prefer": "wait=2"})
            if answer is not None and answer.json()["state"] == "done":
                wanted.told.append(ToolResult.model_validate(answer.json()["result"]).model_dump_json())
                return
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _over_mcp(self, wanted: Intention) -> None:
        await self._until_told_over_mcp(wanted, self._next())

    async def _leave_mcp(self, wanted: Intention) -> None:
        asking = asyncio.ensure_future(self._until_told_over_mcp(wanted, self._next()))
        await asyncio.wait([asking], timeout=self._dice.choice((0.02, 0.1, 0.5, 1)))
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await self._until_told_over_mcp(wanted, self._next())

    async def _as_task(self, wanted: Intention) -> None:
        send = self._mcp_sender(wanted, None)
        wanted.told.append(await call_as_task(send, wanted.ref, wanted.tool, wanted.arguments))

    async def _until_told_over_mcp(self, wanted: Intention, gateway: httpx.AsyncClient) -> None:
        while True:
            told = await call_over_mcp(self._mcp_sender(wanted, gateway), wanted.ref, wanted.tool, wanted.arguments)
            if told is not None:
                wanted.told.append(told)
                return
            await asyncio.sleep(_PAUSE_SECONDS)
            gateway = self._next()

    def _mcp_sender(self, wanted: Intention, gateway: httpx.AsyncClient | None) -> Send:
        async def send(path: str, headers: dict[str, str], body: Any) -> str | None:
            answer = await self._send(wanted, gateway or self._next(), "POST", path, headers, body)
            return None if answer is None else answer.text

        return send

    async def _begun(self, wanted: Intention) -> str | None:
        """Where the call is; `None` if its result has come instead."""
        while True:
            answer = await self._post(wanted, self._next(), "respond-async")
            if answer is not None:
                return answer.headers["location"] if answer.status_code == _ACCEPTED else None
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _until_told(self, wanted: Intention, gateway: httpx.AsyncClient) -> None:
        """Repeat until this gateway, or the others while it is away, tells the result."""
        while True:
            answer = await self._post(wanted, gateway, f"wait={self._dice.choice((1, 5, 10))}")
            if answer is not None and answer.status_code == _OK:
                return
            await asyncio.sleep(_PAUSE_SECONDS)
            gateway = self._next()

    async def _post(self, wanted: Intention, gateway: httpx.AsyncClient, prefer: str) -> httpx.Response | None:
        answer = await self._send(wanted, gateway, "POST", "/calls", {**wanted.headers, "Prefer": prefer}, wanted.body)
        if answer is not None and answer.status_code == _OK:
            wanted.told.append(answer.text)
        return answer

    async def _send(
        self,
        wanted: Intention,
        gateway: httpx.AsyncClient,
        method: str,
        path: str,
        headers: dict[str, str],
        body: Any = None,
    ) -> httpx.Response | None:
        """An answer that is one; `None` if the client is to come again."""
        try:
            answer = await gateway.request(method, path, headers=headers, json=body)
        except _GONE:
            wanted.lost += 1
            return None
        if answer.status_code in {_OK, _ACCEPTED}:
            return answer
        _judge(wanted, answer.status_code, answer.text)
        return None

    async def _stream(self, wanted: Intention, path: str, headers: dict[str, str]) -> str | None:
        """Follow until the end, or until the stream is cut: the last event's id."""
        last: str | None = None
        with contextlib.suppress(*_GONE):
            async with self._next().stream("GET", path, headers=headers) as answer:
                if answer.status_code != _OK:
                    _judge(wanted, answer.status_code, (await answer.aread()).decode())
                    return None
                with self._can_be_cut():
                    fields = dict[str, str]()
                    async for line in answer.aiter_lines():
                        name, _, value = line.partition(": ")
                        fields[name] = value
                        if not line:  # the event is whole: one that is cut has not come, and its id does not count
                            if fields.get("event") == "end":
                                wanted.told.append(fields["data"])
                                return "end"
                            last, fields = fields.get("id", last), {}
        return last

    @contextlib.contextmanager
    def _can_be_cut(self) -> Any:
        """End what the block does as if its connection had ended, when a fault says so."""
        task, was_cut = asyncio.current_task(), False
        assert task is not None

        def cut() -> None:
            nonlocal was_cut
            was_cut = True
            task.cancel()

        self._streams.add(cut)
        try:
            yield
        except asyncio.CancelledError:
            if not was_cut or task.uncancel():
                raise
            raise httpx.ReadError("cut") from None
        finally:
            self._streams.discard(cut)

    def _next(self) -> httpx.AsyncClient:
        """The gateways in turn: what one was asked is repeated at the other."""
        self._turn += 1
        return self._gateways[self._turn % len(self._gateways)]

    _ways: ClassVar = {
        "waits": _wait,
        "twice at once": _twice,
        "goes away": _go_away,
        "follows": _follow,
        "polls": _poll,
        "over MCP": _over_mcp,
        "over MCP, goes away": _leave_mcp,
        "over MCP, as a task": _as_task,
    }


def _judge(wanted: Intention, status: int, text: str) -> None:
    """A refusal must ask the client to come again; any other is trouble."""
    if status in _COME_AGAIN and "retry_after_seconds" in json.loads(text):
        wanted.refused += 1
    else:
        wanted.trouble.append(f"{status}: {text[:500]}")
