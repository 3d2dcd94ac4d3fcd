"""The least that a queue's client can do: a list for calls, a list for its own answers."""

import asyncio
import json
import uuid
from typing import Any

from benchmarks.peers.raw.lists import CALLS, Lists
from benchmarks.work import Call

_MOST = 500


class Client:
    """Each call in a command of its own, or all calls of one turn of the loop in one."""

    def __init__(self, *, many: bool) -> None:
        self._many = many
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = 0
        self._reply_to = f"raw:answers:{uuid.uuid4().hex}"
        self._outgoing: list[str] = []

    async def open(self) -> None:
        """Connect, and listen for answers."""
        self._lists = Lists()
        await self._lists.open()
        self._has_calls = asyncio.Event()
        self._background = [asyncio.create_task(self._receive()), asyncio.create_task(self._send())]

    async def call(self, call: Call) -> dict[str, Any]:
        """Publish a call and await its result."""
        self._numbers += 1
        number = self._numbers
        self._waiting[number] = asyncio.get_running_loop().create_future()
        message = self._message(number, call)
        if self._many:
            self._outgoing.append(message)
            self._has_calls.set()
        else:
            await self._lists.redis.lpush(CALLS, message)
        return await self._waiting[number]

    async def publish(self, call: Call) -> None:
        """Publish a call."""
        await self._lists.redis.lpush(CALLS, self._message(0, call))

    def _message(self, number: int, call: Call) -> str:
        return json.dumps({"id": number, "call": call.body(), "reply_to": self._reply_to})

    async def _send(self) -> None:
        while await self._has_calls.wait():
            self._has_calls.clear()
            ready, self._outgoing = self._outgoing, []
            await self._lists.redis.lpush(CALLS, *ready)

    async def _receive(self) -> None:
        while True:
            if self._many:
                answers = await self._lists.take_many(self._reply_to, _MOST)
            else:
                answers = await self._lists.take_one(self._reply_to)
            for answer in map(json.loads, answers):
                if waiting := self._waiting.pop(answer["id"], None):
                    waiting.set_result(answer["result"])


def connect(variant: str) -> Client:
    """Which of the two: `one`, `many`."""
    return Client(many=variant == "many")
