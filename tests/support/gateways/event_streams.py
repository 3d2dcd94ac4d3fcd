"""Reads Server-Sent Events as a client does: ids, kinds and data."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from support.gateways.keyed_gateway import KeyedGateway


@dataclass(frozen=True)
class Event:
    kind: str
    data: Any
    id: str | None


class EventReader:
    """The events of one stream, in order."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self) -> Event:
        """The next event."""
        fields = dict[str, str]()
        async for line in self._lines:
            if not line and "data" in fields:
                return Event(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id"))
            name, separator, value = line.partition(": ")
            if separator and name:
                fields[name] = value
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def streaming(
    gateway: KeyedGateway, who: str, path: str, *, last: str | None = None, **params: str
) -> AsyncGenerator[EventReader]:
    """A stream that is open inside."""
    headers = {} if last is None else {"last-event-id": last}
    async with gateway.client(who) as client, client.stream("GET", path, headers=headers, params=params) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield EventReader(answer)
