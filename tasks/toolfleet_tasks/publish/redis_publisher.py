"""Publishes a call over a pipelined connection: kombu's message without kombu, in one write with the other commands of the tick."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.config.signing_settings import SigningSettings
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.errors import BrokerUnavailable, NotPublished, PublishUnconfirmed
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Parameters, Script
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time.shared_timers import shared_timers
from toolfleet_tasks.admission import AdmissionControl, Refusal, refusal_in, script_for
from toolfleet_tasks.lua.admission import ADMIT
from toolfleet_tasks.lua.queues import PUBLISH
from toolfleet_tasks.messages.deaths import with_deaths
from toolfleet_tasks.messages.envelope import (
    call_message,
    control_message,
    message,
    revocation_message,
    revocation_topic,
    sender,
    time_after,
)
from toolfleet_tasks.messages.signing import Seal, seal_of
from toolfleet_tasks.publish.admission_batch import AdmissionBatcher
from toolfleet_tasks.publish.publisher import CONTROL_SECONDS, REPUBLISH_SECONDS, Delivered
from toolfleet_tasks.queues import CONTROL, queue_for
from toolfleet_tasks.redis.connection import Part, PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.redis.refusals import is_one_of, unavailable
from toolfleet_tasks.redis.script_runner import is_unknown_script

log = get_logger(__name__)

_REVOKE_SECONDS = 10.0  # for the connection to come back, and Redis to answer


class RedisPublisher:
    """Implements `Publisher`: puts calls into their queues, each with one script, or several of one tick with it.

    `connection` goes to the broker's Redis, and its `database`.

    With the settings `signing`, and a key in them, calls and revocations are signed. With an `admission`, that script
    judges calls as well: if Redis has everything that this needs.
    """

    most_in_flight = 512  # answered within a tenth of a second where the agent's loop is busy with nothing else

    def __init__(
        self,
        connection: PipelinedConnection,
        *,
        keys: Keys,
        database: int,
        signing: SigningSettings | None = None,
        admission: AdmissionControl | None = None,
    ) -> None:
        self._connection = connection
        self._signing = signing
        self._seal = Seal(None) if signing is None else seal_of(signing)
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._batcher = AdmissionBatcher(connection, self._loop)
        self._keys = keys
        self._topic = keys.prefix + revocation_topic(database)
        self._origin = sender()
        self._revoked: list[str] = []

    @property
    def is_ready(self) -> bool:
        """Implements `Publisher.is_ready`."""
        return self._connection.is_connected

    async def ready(self) -> None:
        """Implements `Publisher.ready`."""
        try:
            await self._connection.connected()
        except RedisConnectionLost as exc:  # closed for good
            raise NotPublished("the fleet was left") from exc

    async def publish(
        self,
        call: PublishedCall,
        *,
        seconds: float,
        limit: int = 0,
        needs_worker: bool = False,
        again: bool = False,
    ) -> Refusal | None:
        """Implements `Publisher.publish`.

        Redis has the call, or refuses it: with admission control, or if `limit` messages wait in its queue.

        With admission control a call that is published `again` is in its queue once; without one it may be there twice.
        """
        queue = queue_for(call)
        text = call_message(call, queue, text=self._seal.seal(call), origin=self._origin)
        if self._admission is None:
            return await self.put(text, queue, seconds=seconds, limit=limit)
        if seconds <= 0:
            raise NotPublished("no time is left")
        rest = self._admission.build_command(
            call, queue, message=text, limit=limit, needs_worker=needs_worker, again=again
        )
        script, give_up_at = script_for(call), self._loop.time() + seconds
        try:
            reply = await self._sent_now(give_up_at, self._admitting(script, rest))
        except ResponseError as exc:
            if not is_unknown_script(exc):
                raise _refused(exc) from exc
            reply = await self._put(give_up_at, "EVAL", script.text, *rest)
        return self._admission.parse_reply(call, reply)

    async def put(self, message: str, queue_name: str, *, seconds: float, limit: int = 0) -> Refusal | None:
        """Put any message into a queue, once, without admission control; waits for the connection to stand, if it must.

        Raises `NotPublished` or `PublishUnconfirmed`, in `seconds` at the latest.
        """
        names = {
            "queue": self._keys.queue(queue_name),
            "notify_key": self._keys.notify_key(queue_name),
            "message": message,
        }
        give_up_at = self._loop.time() + seconds
        return refusal_in(await self._put(give_up_at, *PUBLISH.command(**names, limit=limit or None)))

    async def republish(self, delivered: Delivered, *, delay: float, retries: int) -> None:
        """Implements `Publisher.republish`."""
        label, eta = delivered.label, time_after(delay).isoformat()
        again = message(
            delivered.text, label, origin=self._origin, reply_to=delivered.reply_to, retries=retries, eta=eta
        )
        await self.put(with_deaths(again, delivered.died), label.queue, seconds=REPUBLISH_SECONDS)

    async def control(self, task: str, *args: str) -> None:
        """Implements `Publisher.control`."""
        await self.put(control_message(task, args, CONTROL, origin=self._origin), CONTROL, seconds=CONTROL_SECONDS)

    async def revoke(self, call_id: str) -> None:
        """Implements `Publisher.revoke`."""
        self._revoked.append(call_id)
        await asyncio.sleep(0)
        # The first call speaks for all of this tick, and for those that were cancelled meanwhile.
        call_ids, self._revoked = self._revoked, []
        if not call_ids:
            return
        try:
            await self._revoke(revocation_message(call_ids, self._signing))
        except (NotPublished, OSError, ResponseError) as exc:
            log.warning("calls_not_revoked", call_ids=call_ids[:10], calls=len(call_ids), error=str(exc) or "no answer")

    def close(self) -> None:
        """Do nothing: another component owns the connection."""

    async def _revoke(self, message: str) -> None:
        give_up_at = self._loop.time() + _REVOKE_SECONDS
        while True:  # twice does no harm
            if not self._connection.is_connected:
                await self._connected(give_up_at)
            try:
                await self._answered(give_up_at, self._connection.send("PUBLISH", self._topic, message))
            except RedisConnectionLost:
                continue
            return

    async def _put(self, give_up_at: float, *command: Part) -> Any:
        try:
            return await self._sent_once(give_up_at, *command)
        except ResponseError as exc:
            raise _refused(exc) from exc

    async def _sent_once(self, give_up_at: float, *command: Part) -> Any:
        """The reply to what must not be sent twice. Raises `ResponseError` as well as what `put` does."""
        if give_up_at <= self._loop.time():
            raise NotPublished("no time is left")
        while True:
            if not self._connection.is_connected:
                await self._connected(give_up_at)
            with contextlib.suppress(BrokerUnavailable):
                return await self._sent_now(give_up_at, self._connection.send(*command))

    def _admitting(self, script: Script, parameters: Parameters) -> "asyncio.Future[Any]":
        if script is ADMIT:
            return self._batcher.send(parameters)
        return self._connection.send("EVALSHA", script.digest, *parameters)

    async def _sent_now(self, give_up_at: float, reply: "asyncio.Future[Any]") -> Any:
        """The same over the connection as it is; without one it is surely not sent."""
        try:
            return await self._answered(give_up_at, reply)
        except RedisConnectionLost as exc:
            if exc.sent:
                raise PublishUnconfirmed(str(exc)) from exc
            raise BrokerUnavailable(str(exc), passes=True) from exc
        except TimeoutError as exc:
            raise PublishUnconfirmed("no answer") from exc

    async def _connected(self, give_up_at: float) -> None:
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._connection.connected()
        except TimeoutError as exc:
            raise BrokerUnavailable("Redis does not answer", passes=True) from exc
        except RedisConnectionLost as exc:  # closed for good
            raise NotPublished("the fleet was left") from exc

    async def _answered(self, give_up_at: float, reply: "asyncio.Future[Any]") -> Any:
        """Wait for a reply. Raises what `PipelinedConnection.send` does, or `TimeoutError`."""
        timer = shared_timers(self._loop).call_at(give_up_at, _expire, reply)
        try:
            return await reply
        finally:
            timer.cancel()


def _expire(reply: "asyncio.Future[Any]") -> None:
    if not reply.done():
        reply.set_exception(TimeoutError())


def _refused(error: ResponseError) -> NotPublished | PublishUnconfirmed:
    """Return what an error of Redis means for the message: a script that fails on its way leaves behind what it has written."""
    text = str(error)
    if (away := unavailable(error)) is not None:
        return away
    if is_one_of(("NOPERM",), error) and "script" not in text:
        return NotPublished(text)
    log.warning("publishing_failed", error=text)
    return PublishUnconfirmed(text)


def database_of(connect: Callable[[], Any]) -> int:
    """The number of the database to which a connection will be made."""
    return int(connect().db or 0)
