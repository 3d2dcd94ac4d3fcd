"""Has hosts read their tool files again, and the fleet ask its modules, on request: from any machine."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, cast

from pydantic import Field, ValidationError
from redis.asyncio import Redis

from toolfleet_registry.contracts.message import Message
from toolfleet_registry.contracts.tool_definition import ToolLoadError
from toolfleet_registry.directory.entries import ASK
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock

_PATIENCE_SECONDS = 5
_KEPT_SECONDS = 600  # answers, for the requester
_MOST_TOGETHER = 100  # requests that one reload is the answer to
_MOST_ERRORS = 100  # of one host
_BEGIN_SECONDS = 3.0  # for hosts to hear of it: they ask twice a second
_PAUSE_SECONDS = 0.1

MODULES_AT_ONCE: Final = 500
"""Modules that one process asks at once: each is an open socket, and 1,024 is a usual limit of these."""

_PROBE_KEPT_SECONDS = 300  # longer than any look
_PROBE_BEGIN_SECONDS = 3.0  # a worker asks every half a second
_TOGETHER_MS = 1000  # of a thousand agents that hear of a module at once, each would have all modules asked
_DONE = b"done"


class ReloadAnswer(Message):
    """A host's answer: first that it has started, then its tools and errors."""

    module: str
    """The module that it serves."""
    is_done: bool = False
    """Whether it has read them; otherwise it has started to."""
    tools: int = 0
    """How many tools it serves since."""
    errors: list[ToolLoadError] = Field(default=[])
    """What does not load as it stands, of which the first hundred are told."""

    def within_bounds(self) -> "ReloadAnswer":
        """Return the same, with no more errors than are told."""
        return self.model_copy(update={"errors": self.errors[:_MOST_ERRORS]})


class ReloadRequests:
    """Requests to reload tool files, in Redis. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys.registry

    async def ask(self) -> int:
        """Ask all hosts; returns the request's number."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            return int(await self._redis.incr(self._keys.reloads))

    async def latest(self) -> int:
        """Return the latest request's number; 0 before the first request."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            return int(await self._redis.get(self._keys.reloads) or 0)

    async def answer(self, since: int, latest: int, host: str, answer: ReloadAnswer) -> None:
        """Answer the requests after `since` up to `latest`; `host` is unique to this host, and its previous answer is replaced."""
        first = max(since + 1, latest - _MOST_TOGETHER) if since < latest else latest  # Redis may have lost its count
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            pipeline = self._redis.pipeline(transaction=True)
            for number in range(first, latest + 1):
                key = self._keys.reload_answers(number)
                pipeline.hset(key, host, answer.within_bounds().model_dump_json())
                pipeline.expire(key, _KEPT_SECONDS)
            await pipeline.execute()

    async def answers(self, number: int) -> Sequence[ReloadAnswer]:
        """Return the hosts' answers to a request so far, sorted by module."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            key = self._keys.reload_answers(number)
            found = await cast("Awaitable[dict[bytes, bytes]]", self._redis.hgetall(key))
        read = (_read(text) for text in found.values())
        return sorted((each for each in read if each is not None), key=lambda each: each.module)


async def reload_tools(settings: Settings, *, seconds: float) -> Sequence[ReloadAnswer]:
    """Have all hosts of tool folders read their files again, and return their answers, by module.

    Hosts that have started and are not done after `seconds` say so. Raises `FleetUnavailable` when Redis does not answer, and
    `SettingsError` if the settings name none.
    """
    async with settings.redis_client() as redis:
        requests = ReloadRequests(redis, settings.keys)
        number = await requests.ask()
        asked_at = machine_clock.monotonic()
        while True:
            answers = await requests.answers(number)
            waited = machine_clock.monotonic() - asked_at
            if waited > seconds or (waited > _BEGIN_SECONDS and all(each.is_done for each in answers)):
                return answers
            await asyncio.sleep(_PAUSE_SECONDS)


def _read(text: bytes) -> ReloadAnswer | None:
    """Parse an answer; `None` for a text that is no answer."""
    try:
        return ReloadAnswer.model_validate_json(text)
    except ValidationError:
        return None


class RequestedProbes:
    """Requests to probe modules, in Redis. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def request(self, *, seconds: float) -> bool:
        """Request a probe, and wait for its end for at most `seconds`. Returns whether it was made.

        If no process has started it within some seconds, there is none that would. Requests before its start share one
        probe.
        """
        names = {"asked": self._keys.probe("asked"), "waiting": self._keys.probe(0)}
        command = ASK.command(**names, together_ms=_TOGETHER_MS, prefix=self._keys.probe(""))
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            number = int(await cast("Awaitable[int]", self._redis.execute_command(*command)))
        asked_at = machine_clock.monotonic()
        give_up_at = asked_at + min(seconds, _PROBE_BEGIN_SECONDS)
        while machine_clock.monotonic() < give_up_at:
            async with answering(self._redis, seconds=_PATIENCE_SECONDS):
                found = await self._redis.get(self._keys.probe(number))
            if found in {_DONE, _DONE.decode()}:
                return True
            if found is not None:
                give_up_at = asked_at + seconds
            await asyncio.sleep(_PAUSE_SECONDS)
        return False

    async def begin(self, number: int) -> bool:
        """Claim the requested probe; returns whether this process is to make it, and no other one has claimed it."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            return bool(await self._redis.set(self._keys.probe(number), "begun", nx=True, ex=_PROBE_KEPT_SECONDS))

    async def end(self, number: int) -> None:
        """Tell that it was made."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            await self._redis.set(self._keys.probe(number), _DONE, ex=_PROBE_KEPT_SECONDS)
