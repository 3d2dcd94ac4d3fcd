"""Stores what another process needs to continue a call, continues calls of other processes, and follows them.

A record is sent in the same write as the call's publishing, before it: a call that is in its queue has one. It costs no
round trip.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import Caller, Effect, Message, PublishedCall, Since, ToolResult
from toolfleet_registry.contracts.call_context import LogLevel
from toolfleet_registry.errors import FleetUnavailable, NotPublished
from toolfleet_registry.redis.keys import ApprovalKeys
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import Closing
from toolfleet_tasks.calls.idempotency import Joined, handle_of
from toolfleet_tasks.calls.pending_call import PendingCall
from toolfleet_tasks.messages import fleet_results, json_text
from toolfleet_tasks.messages.ids import kept_seconds
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost
from toolfleet_tasks.results.listener import ResultListener
from toolfleet_tasks.results.receipts import Receipts
from toolfleet_tasks.results.stored import read_stored, text_of
from toolfleet_tasks.results.verifier import PEEK_SECONDS, ResultReader

log = get_logger(__name__)

Started = PendingCall | Joined | ToolResult

_ANY_ARGUMENT = "*"

RESULT_KEPT_SECONDS: Final = 600.0
"""How long a result stays that was handed out, for a client that has lost its answer: it asks again after its time-out, or a reconnection."""

_MARGIN_SECONDS = 60  # a record outlives its call's deadline: clocks differ

_GRACE_SECONDS = (
    3.0  # beyond the deadline: a worker, or the process that began the call, ends it with more than we know
)

_READ_SECONDS = 5.0

_DEFERRED_KEPT_SECONDS = 7 * 86_400  # as long as what people were asked about

_SILENCE_SECONDS = 0.5  # of Redis, before it may be frozen


class BegunHandle:
    """A handle on one call: its `id`, and its result. `refusal` is the result of a call that was in no queue.

    `status`, `cancel`, `progress`, `log`, `next_stop` and `answer` are those of a `CallHandle`.

    `is_guest`: another client has started it, and this owner may not cancel it.
    """

    def __init__(self, started: Started, *, is_guest: bool = False) -> None:
        call = handle_of(started)
        self._started = started
        self.id, self.tool_name = call.id, call.tool_name
        self.status, self.cancel, self.progress, self.log = call.status, call.cancel, call.progress, call.log
        self.next_stop, self.answer = call.next_stop, call.answer
        self.refusal = started if isinstance(started, ToolResult) else None
        self.is_guest = is_guest

    @property
    def published(self) -> PublishedCall | None:
        """Return the call as it was published; `None` for one that was not, or that another client has published."""
        return self._started.published_call if isinstance(self._started, PendingCall) else None

    @property
    def log_level(self) -> LogLevel | None:
        """Return the level of log messages that the call was started with; `None`: none."""
        return self._started.published_call.log_level if isinstance(self._started, PendingCall) else None

    @property
    def waits_for_approval(self) -> bool:
        """Return whether it needs an approval first: no worker has it yet."""
        return isinstance(self._started, PendingCall) and self._started.expires_at is not None

    @property
    def has_ended(self) -> bool:
        """Return whether its result is known here."""
        return isinstance(self._started, ToolResult) or self._started.ending.done()

    @property
    def has_joined(self) -> bool:
        """Return whether it returns the result of an earlier call, with the same idempotency key."""
        return isinstance(self._started, Joined)

    async def end_within(self, seconds: float, closing: Closing | None = None) -> ToolResult | None:
        """Wait for the call's end. The call continues in any case.

        Args:
            seconds: How long to wait at most; 0 to return what is known now.
            closing: Ends the wait when it begins; for programs that are about to end.

        Returns:
            The result; `None` if the call has not ended.

        """
        if isinstance(self._started, ToolResult):
            return self._started
        ending, loop = self._started.ending, asyncio.get_running_loop()
        if not ending.done() and seconds > 0:
            waiter: asyncio.Future[None] = loop.create_future()

            def wake(_: object = None) -> None:
                if not waiter.done():
                    waiter.set_result(None)

            ending.add_done_callback(wake)
            timer = loop.call_later(seconds, wake)
            number = None if closing is None else closing.tell(wake)
            try:
                await waiter
            finally:
                timer.cancel()
                ending.remove_done_callback(wake)
                if closing is not None and number is not None:
                    closing.forget(number)
        return ending.result() if ending.done() and not ending.cancelled() else None

    async def is_kept_within(self, seconds: float) -> bool:
        """Wait until it is known whether Redis has stored the call, so that any process can continue it.

        Args:
            seconds: How long to wait at most.

        Returns:
            Whether it is stored.

        """
        return not isinstance(self._started, PendingCall) or await self._started.is_confirmed_within(seconds)

    def leave(self) -> None:
        """Stop following an attached call. The call continues."""
        if isinstance(self._started, PendingCall):
            self._started.leave()


class BegunCall(Message):
    """A call without its arguments, which only its workers need.

    `owner` has started it, perhaps in the name of `user_id`, and no other user may learn of it. `data_id` names the
    data that Redis had then. `is_guest`: another client has started it before, and `owner` has joined it with its
    idempotency key.
    """

    call_id: str
    owner: str | None
    tool_name: str
    user_id: str | None
    caller: Caller
    effect: Effect | None
    lane: Literal["fast", "slow"]
    limit_seconds: float
    published_at: float
    deadline_at: float
    idempotency_key: str | None = None
    hides_results: bool = False
    data_id: str = ""
    is_guest: bool = False
    log_level: Annotated[LogLevel | None, Since(2)] = None

    @classmethod
    def of(cls, call: PublishedCall, *, owner: str | None, data_id: str, joins: str | None = None) -> Self:
        """The record of a call that is about to be published, or that has joined the call of the id `joins`."""
        return cls(
            call_id=joins or call.call_id,
            owner=owner,
            tool_name=call.tool_name,
            user_id=call.user_id,
            caller=call.caller,
            effect=call.effect,
            lane=call.lane,
            limit_seconds=call.limit_seconds,
            published_at=call.published_at,
            deadline_at=call.deadline_at,
            idempotency_key=call.idempotency_key,
            hides_results=call.hides_results,
            data_id=data_id,
            is_guest=joins is not None,
            log_level=call.log_level,
        )

    def published(self) -> PublishedCall:
        """The call as its ledger and its audit know it. A dead letter of it says that its arguments were not kept."""
        return PublishedCall(
            call_id=self.call_id,
            tool_name=self.tool_name,
            arguments={_ANY_ARGUMENT: ""},
            sensitive=(f"/{_ANY_ARGUMENT}",),
            user_id=self.user_id,
            caller=self.caller,
            effect=self.effect,
            lane=self.lane,
            limit_seconds=self.limit_seconds,
            published_at=self.published_at,
            deadline_at=self.deadline_at,
            idempotency_key=self.idempotency_key,
            hides_results=self.hides_results,
            log_level=self.log_level,
        )


@dataclass(frozen=True, slots=True)
class Owner:
    """The user who has started a call, perhaps in another user's name."""

    user_id: str | None


class BegunCalls:
    """The stored calls of one Redis.

    `follow` follows a call; `reader` has the results, and is closed here. Belongs to the connection's loop.
    """

    def __init__(
        self,
        connection: PipelinedConnection,
        listener: ResultListener,
        settings: Settings,
        *,
        reader: ResultReader,
        receipts: Receipts,
        follow: Callable[..., PendingCall],
    ) -> None:
        self._reader = reader
        self._receipts = receipts
        self._connection = connection
        self._listener = listener
        self._settings = settings
        self._keys = settings.keys
        self._follow = follow
        self._owners: dict[str, Owner] = {}  # by call id: of those that are under way here
        self.is_own: Callable[[str], bool] = self._owners.__contains__
        """Return whether a call that is under way here has an owner. Each call's end asks: a function would take longer."""

    async def owned(self, post: Awaitable[Started], call: PublishedCall, owner: Owner) -> Started:
        """Publish a call that any process can continue: it is stored before it is in its queue."""
        self._owners[call.call_id] = owner
        try:
            started = await post
        except BaseException:
            self._forget(call.call_id)
            raise
        if isinstance(started, PendingCall):
            started.ending.add_done_callback(lambda _: self._owners.pop(call.call_id, None))
            return started
        self._forget(call.call_id)
        if isinstance(started, Joined):  # where that is the owner's as well, its own record stays
            self._store(BegunCall.of(call, owner=owner.user_id, data_id="", joins=started.call_id), "NX")
        return started

    def write(self, call: PublishedCall) -> None:
        """Write the call's record together with the other commands of this tick, if it needs one."""
        if call.call_id in self._owners:
            owner = self._owners[call.call_id].user_id
            self._store(BegunCall.of(call, owner=owner, data_id=self._listener.identity.data_id))

    async def find(self, call_id: str, owner: Owner) -> BegunCall | None:
        """Return the record of a call of this owner's; `None` also for another owner's. Raises `FleetUnavailable`."""
        text: bytes | None = await self._asked("GET", self._keys.begun_call(call_id))
        if text is None:
            return None
        try:
            record = json_text.load(BegunCall, text.decode())
        except ValueError:  # of another version, or foreign
            log.warning("begun_call_not_read", call_id=call_id)
            return None
        return record if record.owner == owner.user_id and record.call_id == call_id else None

    async def keep_deferred(self, owner: Owner, idempotency_key: str, call_id: str, seconds: float) -> None:
        """Store which call the owner's key has stood for, for `seconds` and a week: a repeated step finds it.

        Raises `FleetUnavailable`.
        """
        kept = math.ceil(seconds) + _DEFERRED_KEPT_SECONDS
        await self._asked(
            "SET", ApprovalKeys(self._keys).asked(owner.user_id, idempotency_key), call_id, "EX", str(kept)
        )

    async def attach(self, record: BegunCall) -> PendingCall:
        """Follow a call that another process has started. One that has ended has its result already.

        `PendingCall.leave` it.

        Raises `FleetUnavailable`.
        """
        call = record.published()
        pending = self._follow(call, is_guest=record.is_guest, data_id=record.data_id, had=self.had)
        try:
            async with asyncio.timeout(_READ_SECONDS):
                await self._listener.listening(record.call_id)
                await self._end_if_ended(call, pending)
        except (OSError, ResponseError, NotPublished) as exc:
            pending.leave()
            raise FleetUnavailable("Redis does not answer.") from exc
        except BaseException:
            pending.leave()
            raise
        pending.published(record.deadline_at + _GRACE_SECONDS)
        return pending

    async def check_reachable(self) -> None:
        """Raise `FleetUnavailable` if Redis is away and does not come back within a moment.

        Asks it only if it was silent.
        """
        silence = asyncio.get_running_loop().time() - self._connection.heard_at
        if (silence > _SILENCE_SECONDS or not self._connection.is_connected) and not await self.ping():
            raise FleetUnavailable("Redis does not answer.")

    async def ping(self) -> bool:
        """Return whether Redis answers within a second."""
        try:
            async with asyncio.timeout(PEEK_SECONDS):
                return bool(await self._connection.execute("PING"))
        except (OSError, ResponseError):
            return False

    def had(self, call: PublishedCall, result: ToolResult, text: str) -> None:
        """Confirm a result whose caller may lose it, and ask again, perhaps in another process."""
        self._receipts.had_for(RESULT_KEPT_SECONDS, call, result, text)

    async def aclose(self) -> None:
        """Close what was opened for reading."""
        await self._reader.aclose()

    async def _end_if_ended(self, call: PublishedCall, pending: PendingCall) -> None:
        """End a call that ended before this process listened, by the ledger, also if its result is gone."""
        key = self._keys.result(call.call_id).encode()
        stored = await self._reader.end_of(self._keys.call(call.call_id), key)
        if stored is None:
            return
        if not stored:
            pending.refuse(fleet_results.dropped(call))
            return
        stored = await self._listener.verifier.believed(call.call_id, stored.encode())
        result = read_stored(stored, call.tool_name)
        pending.refuse(result)
        self.had(call, result, text_of(stored))

    async def _asked(self, *command: str) -> Any:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                return await self._connection.execute(*command)
        except (TimeoutError, RedisConnectionLost, ResponseError) as exc:
            raise FleetUnavailable("Redis does not answer.") from exc

    def _forget(self, call_id: str) -> None:
        """Delete the record of a call that is in no queue."""
        self._owners.pop(call_id, None)
        self._send("UNLINK", self._keys.begun_call(call_id))

    def _store(self, record: BegunCall, *options: str) -> None:
        kept = kept_seconds(record.idempotency_key, self._settings)
        left = round(record.deadline_at - fleet_clock.now()) + _MARGIN_SECONDS
        self._send(
            "SET", self._keys.begun_call(record.call_id), json_text.dump(record), "EX", max(kept, left), *options
        )

    def _send(self, *command: str | int) -> None:
        self._connection.send(*command).add_done_callback(_seen)


def _seen(reply: "asyncio.Future[Any]") -> None:
    """Log a refused write. A lost connection loses the publishing with it; both are repeated."""
    if not reply.cancelled() and isinstance(error := reply.exception(), ResponseError):
        log.warning("begun_call_not_written", error=str(error))
