"""Listens to the bells of a worker's queues, over a few connections if they are many: each has a share of them.

To fall asleep on thousands of keys takes Redis milliseconds in which it serves nobody. So after a ring only the line in whose
share it was listens anew.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_tasks.redis.connection import Line, LineLost

SHARE = 128  # bells: Redis is at them for a tenth of a millisecond
MOST_LINES = 16  # of a worker; of more queues each gets a larger share


class Bells:
    """Belongs to one loop. `line_of` gives a line of its own for each share, by number; `line` is one that never blocks.

    A ring that is heard is heard by nobody else: what cannot be answered is to be given back.
    """

    def __init__(self, line: Line, line_of: Callable[[int], Line], prefix: str) -> None:
        self._line = line
        self._line_of = line_of
        self._prefix = prefix
        self._queues: Sequence[str] = ()
        self._shares: list[tuple[Line, list[str]]] = []
        self._asked = dict[int, asyncio.Future[Any]]()  # by share; Redis has not answered
        self._heard = deque[str]()
        self._error: Exception | None = None
        self._has_news = asyncio.Event()
        self._is_resting = False

    async def rung(self, queues: Sequence[str], *, seconds: float, room: Callable[[], int]) -> list[str]:
        """Queues whose bells have rung, at most as many as there is `room` for then: at once, or none after `seconds`.

        `queues` is another object when there are others. Raises `LineLost`, and what Redis says to it.
        """
        self._is_resting = False
        self._has_news.clear()
        self._share_out(queues)
        for number, (line, bells) in enumerate(self._shares):
            if number not in self._asked:
                await line.connected()
                self._listen(number, line, bells, seconds)
        if not (self._heard or self._error or self._has_news.is_set()):
            await self._news()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return [self._heard.popleft() for _ in range(min(room(), len(self._heard)))]

    def rest(self) -> None:
        """Hear nothing until `rung` is asked again: what rings meanwhile, rings for others."""
        self._is_resting = True
        while self._heard:
            self.give_back(self._heard.popleft())

    def give_back(self, queue: str) -> None:
        """Have a bell that was heard ring on."""
        self._line.send("LPUSH", self._prefix + queue, "1").add_done_callback(_seen)

    def _share_out(self, queues: Sequence[str]) -> None:
        if queues is self._queues:
            return
        self._queues = queues
        size = max(SHARE, -(-len(queues) // MOST_LINES))
        parts = [queues[start : start + size] for start in range(0, len(queues), size)]
        self._shares = [
            (self._line_of(number), [self._prefix + queue for queue in part]) for number, part in enumerate(parts)
        ]

    def _listen(self, number: int, line: Line, bells: Sequence[str], seconds: float) -> None:
        ring = self._asked[number] = line.send("BRPOP", *bells, seconds)
        ring.add_done_callback(lambda ring: self._on_answer(number, ring))

    async def _news(self) -> None:
        if len(self._asked) > 1:
            await self._has_news.wait()
            return
        with contextlib.suppress(LineLost, ResponseError):  # which are kept
            await next(iter(self._asked.values()))  # a turn of the loop sooner

    def _on_answer(self, number: int, ring: "asyncio.Future[Any]") -> None:
        del self._asked[number]
        self._has_news.set()
        if ring.cancelled():
            return
        if (error := ring.exception()) is not None:
            self._error = error if isinstance(error, Exception) else None
        elif (token := ring.result()) is not None:
            queue = token[0].decode().removeprefix(self._prefix)
            if self._is_resting:
                self.give_back(queue)
            else:
                self._heard.append(queue)


def _seen(reply: "asyncio.Future[Any]") -> None:
    """If it got lost, workers look by themselves."""
    if not reply.cancelled():
        reply.exception()
