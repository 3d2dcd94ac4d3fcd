"""Receives the fleet's webhooks: wake-ups, each acted on once however often it is delivered, and the registry's events.

A request must have been signed by the fleet, as Standard Webhooks defines it, within five minutes. Needs `toolfleet[webhooks]`.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, overload

from pydantic import BaseModel

from toolfleet_registry.config.webhook_settings import secret_fault
from toolfleet_registry.contracts.jobs import WakeKind, WakeUp
from toolfleet_registry.errors import FleetUnavailable, WakeBusy, WakeLost, WakeRefused, WebhookRefused
from toolfleet_registry.once.port import OnceStore
from toolfleet_registry.specs import RegistryEvent
from toolfleet_registry.system import randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end, is_wanted
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.ids import wake_key
from toolfleet_tasks.webhooks.dedup import WakeMemory

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from redis.asyncio.client import Pipeline
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session


try:
    from standardwebhooks import Webhook, WebhookVerificationError
except ImportError as exc:
    raise ImportError("Webhooks need 'standardwebhooks': pip install 'toolfleet[webhooks]'.") from exc

_MOST_BYTES = 1_000_000  # of a body; a wake-up has a quarter at most


class SignedRequests:
    """Knows one secret, or several while it is changed. Raises `ValueError` for one that no fleet has.

    `refusal` is what `verify` raises.
    """

    def __init__(self, secret: str | Sequence[str], refusal: type[WebhookRefused]) -> None:
        secrets = [secret] if isinstance(secret, str) else list(secret)
        if not secrets:
            raise ValueError("a receiver needs a secret, or anybody could send to it")
        for one in secrets:
            if (fault := secret_fault(one)) is not None:
                raise ValueError(f"a receiver's secret {fault}")
        self._webhooks = [Webhook(one) for one in secrets]
        self._refusal = refusal

    def verify(self, headers: Mapping[str, str], body: bytes) -> str | None:
        """The request's `webhook-id`, if the fleet has sent it. Raises the refusal."""
        if len(body) > _MOST_BYTES:
            raise self._refusal("The request is too large.")
        known, is_timely = {name.lower(): value for name, value in headers.items()}, True
        for webhook in self._webhooks:
            try:
                webhook.verify(body, known, json_parse=False)
            except WebhookVerificationError as exc:
                is_timely = is_timely and "timestamp" not in str(exc)
            except ValueError:  # the library's own, for headers that are none
                continue
            else:
                return known.get("webhook-id")
        if not is_timely:
            raise self._refusal("The request was not sent in these five minutes; or a clock is wrong.")
        raise self._refusal("The request is not signed with the secret of this receiver.")


log = get_logger(__name__)

LEASE_SECONDS = 30.0
"""After which a delivery whose process has died may be acted on anew."""

_LONGEST_ID = 300


class Delivery:
    """One delivery of a wake-up. `wake` is `None` when it was acted on before: answer 200, and do nothing."""

    def __init__(self, wake: WakeUp, memory: WakeMemory, token: str, *, is_repeat: bool) -> None:
        self.wake: WakeUp | None = None if is_repeat else wake
        self.wake_id = wake.wake_id
        self.is_lost = False
        """Whether another delivery has taken over, because this one was not heard of for so long."""
        self._memory = memory
        self._token = token
        self._is_marked = False

    @property
    def is_repeat(self) -> bool:
        """Whether it was processed before."""
        return self.wake is None

    def key(self, name: str) -> str:
        """An idempotency key for a call that follows from this wake-up: the fleet makes it once, however often the turn is repeated.

        It holds an hour longer than the fleet tries the wake-up (`wake_give_up_seconds`, one value for all of the fleet); one that
        an operator replays after that may have its calls made again.
        """
        return wake_key(self.wake_id, name)

    @overload
    def done_in(self, transaction: "Connection | Session") -> None: ...
    @overload
    def done_in(self, transaction: "Pipeline") -> "Awaitable[None]": ...
    def done_in(self, transaction: Any) -> Any:
        """Record in your own transaction that the wake-up was processed: both happen, or neither.

        With `SQLSeen`: `delivery.done_in(connection)`, together with your statements. With `RedisSeen`: `await
        delivery.done_in(pipe)`, then your commands, then `await pipe.execute()`. Raises `WakeLost`, and your
        transaction must be rolled back, if another delivery has it; a `MULTI` raises redis-py's `WatchError` for that.
        The transaction must be over when the block ends.
        """
        self._is_marked = True
        return self._memory.done_in(transaction, self.wake_id, self._token)

    async def keep(self) -> None:
        """Renew the claim until cancelled, or until it is lost."""
        while is_wanted() and not self.is_lost:
            await asyncio.sleep(LEASE_SECONDS / 3)
            if self._is_marked:  # it would be in that transaction's way
                continue
            try:
                self.is_lost = not await self._memory.renew(self.wake_id, self._token, seconds=LEASE_SECONDS)
            except FleetUnavailable as exc:  # a transaction of the core itself may be in the way
                log.warning("wake_not_renewed", wake_id=self.wake_id, error=str(exc))

    async def finish(self) -> None:
        """The block has ended. Raises `WakeLost` if another delivery has it, or if a transaction was to mark it and did not."""
        if self._is_marked:
            is_done = await self._memory.is_done(self.wake_id)
        else:
            is_done = await self._memory.done(self.wake_id, self._token)
        if not is_done:
            raise WakeLost(self.wake_id)

    async def release(self) -> None:
        """The block has failed: let the next delivery have it. Raises nothing."""
        try:
            await self._memory.release(self.wake_id, self._token)
        except FleetUnavailable as exc:
            log.warning("wake_not_released", wake_id=self.wake_id, error=str(exc))


class WakeReceiver:
    """Takes what the fleet sends to `{core_url}/continue` and `/notify`.

    `secret` is the fleet's `core_secret`, or several while it is changed: any will do. `seen` remembers what was acted on:
    `RedisSeen`, `SQLSeen`, or any other store of things that are done once.
    Raises `ValueError` for a secret that no fleet has.
    """

    def __init__(self, secret: str | Sequence[str], seen: OnceStore) -> None:
        self._requests = SignedRequests(secret, WakeRefused)
        self._memory = WakeMemory(seen)

    @asynccontextmanager
    async def receive(
        self, headers: Mapping[str, str], body: bytes, *, kind: WakeKind = "continue"
    ) -> AsyncGenerator[Delivery]:
        """Act on a wake-up inside the block: `async with receiver.receive(headers, body) as delivery:`.

        `kind` is what the request's path says: what was signed for `/notify` wakes no agent. Raises, before the block, `WakeRefused` (answer 401: it is not the fleet's, or too old), `WakeBusy` (answer 409 with
        `Retry-After`: another delivery of it is being acted on) and `FleetUnavailable` (answer 503). A block that ends has acted; one
        that raises, or dies, is repeated with the next delivery. `WakeLost` at its end: answer 503.
        """
        wake = self.read(headers, body, kind=kind)
        token = randomness.uuid4().hex
        standing = await self._memory.claim(wake.wake_id, token, seconds=LEASE_SECONDS)
        if standing.state == "busy":
            raise WakeBusy(wake.wake_id, standing.rest_seconds)
        delivery = Delivery(wake, self._memory, token, is_repeat=standing.state == "done")
        if delivery.is_repeat:
            yield delivery
            return
        keeping = asyncio.create_task(delivery.keep(), name="toolfleet-wake")
        try:
            yield delivery
            await delivery.finish()
        except BaseException:
            await delivery.release()
            raise
        finally:
            await end([keeping])

    def read(self, headers: Mapping[str, str], body: bytes, *, kind: WakeKind = "continue") -> WakeUp:
        """Verify and parse the fleet's message. Raises `WakeRefused`. By itself no protection from repeats."""
        webhook_id = self._requests.verify(headers, body)
        try:
            wake = json_text.load(WakeUp, body.decode())
        except ValueError:
            raise WakeRefused("The wake-up cannot be read.") from None
        if wake.wake_id != webhook_id or len(wake.wake_id) > _LONGEST_ID:
            raise WakeRefused("The wake-up has another id than its message.")
        if wake.kind != kind:
            raise WakeRefused(f"The wake-up is of the kind {wake.kind!r}, and was sent to another path.")
        return wake


class RegistryReceiver:
    """Reads what the fleet sends to a URL of `TOOLFLEET_REGISTRY_WEBHOOKS`: who sent it, and what has happened to which tool.

    Knows the fleet's `registry_webhooks_secret`, or several while it is changed. Raises `ValueError` for one that no
    fleet has.
    """

    def __init__(self, secret: str | Sequence[str]) -> None:
        self._requests = SignedRequests(secret, WebhookRefused)

    def read(self, headers: Mapping[str, str], body: bytes) -> RegistryEvent:
        """The event, if the fleet has sent it. Raises `WebhookRefused`: answer 401.

        An event may come again, with the same `id`, and after a later one: ids grow, so keep the last one of each tool.
        """
        webhook_id = self._requests.verify(headers, body)
        try:
            event = _Payload.model_validate_json(body, extra="ignore").data
        except ValueError:
            raise WebhookRefused("The event cannot be read.") from None
        if event.id != webhook_id:
            raise WebhookRefused("The event has another id than its message.")
        return event


class _Payload(BaseModel):
    """A webhook's payload.

    Its `type` and `timestamp`, which Standard Webhooks recommends, repeat the event's kind and time.
    """

    data: RegistryEvent
