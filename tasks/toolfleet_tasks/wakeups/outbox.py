"""Delivers the events of jobs' ends and of the registry: a due one is claimed with a lease, tried, and forgotten or kept.

Each event is a hash (`kind`: continue, notify, call or registry; `body`: JSON; `tries`: how many were started;
`first_at`: since when it is due, ms; `error`: of the last attempt; `rest`: for how many ms it was put off last), and an
id in a sorted set, by when the next attempt is due (ms). Those of kind `call` have a set of their own, its name with
`:calls` appended, so that a slow core delays no call; so have events of the registry, for each receiver of webhooks
(`:webhooks:<receiver>`; their ids end with `@<receiver>`). The process that tries has a token in the hash, and a lease:
the id's score, until which no other one tries. Dead events are a hash, id -> JSON with all that as text, a sorted set,
id -> when they were given up (ms), and how many bytes all of them have.

The outcomes of a job's wake-ups are kept in its own record, in the format of `outcomes`: written in the step that ends
one.

Times are the fleet's, as it is known inside Redis: if the server's clock is set, nothing waits for longer, and no lease
ends.

At least once, under one id: a process that dies between a core's answer and its record leaves the event to the next.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.config.setting_sources import channel_secret
from toolfleet_registry.errors import MessageRefused, SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.aio import end
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.redis_connection import PipelinedConnection, RedisConnectionLost, run_durably
from toolfleet_tasks.scripts import script
from toolfleet_tasks.wakeups.events import opened_wake, outcome_line
from toolfleet_tasks.wakeups.sender import (
    AT_ONCE,
    PATHS,
    WEBHOOK_SECONDS,
    WEBHOOKS_AT_ONCE,
    DeliveryAnswer,
    WebhookSender,
    one_line,
    seconds_until_next,
)
from toolfleet_tasks.wakeups.webhook_feed import REGISTRY, approval_receiver_of, parts_of, receiver_of, sent_body

log = get_logger(__name__)

MOST_DEAD_BYTES = 100_000_000
"""The most of all dead wake-ups together: they must leave Redis room for the fleet."""

CLAIM = script("wakeups/claim")
"""Returns for each, the longest due first: id, kind, body, and the number of this try."""

ACCEPTED = script("wakeups/accepted")
"""Returns 1 if it was there."""

RELEASED = script("wakeups/released")

DROP_WAITING = script("wakeups/drop")
"""Returns 1; 2 if a try is under way, which may still be accepted; 0 if none of this id waits."""

FAILED = script("wakeups/failed")
"""Returns `later`; `dead`; or `lost`: others have it, or have delivered it."""

REPLAY = script("wakeups/replay")
"""Returns 1; 0 if there are none of this id; -1 if they cannot be read; -2 for a call whose arguments were not kept."""

_CORE_SECONDS = 30.0  # for a core's answer: it accepts, and acts afterwards or within that time
_LEASE_MARGIN_SECONDS = 10.0  # beyond a try's own deadline, to note what came of it
_CALLS_AT_ONCE = 100
_PUBLISH_SECONDS = 20.0  # for one call to be judged and published
_CHECK_SECONDS = (
    2.0  # for Redis to say whether news that have waited are still ours; with it their lease is long enough
)
_TURN_SECONDS = 5.0  # of its lease that news may wait for earlier ones of the same conversation; less than the margin

Around = Callable[[str, str, Coroutine[Any, Any, DeliveryAnswer]], Coroutine[Any, Any, DeliveryAnswer]]
"""Surrounds a try to wake a core."""


@dataclass(frozen=True, slots=True)
class DueWake:
    """A wake-up that this process has claimed, under `token`.

    `tries` counts this attempt; the meaning of `body` (JSON) depends on `kind`.

    `fault`: why it must not be sent.
    """

    wake_id: str
    kind: str
    body: str
    tries: int
    token: str
    fault: str = ""


def place_when_dead(wake: DueWake, settings: Settings) -> dict[str, str | int]:
    """Return the place of a dead wake-up, and how many of its kind are kept."""
    keys = settings.keys
    if wake.kind == REGISTRY:
        names = keys.dead_webhooks(), keys.dead_webhooks("-order"), keys.dead_webhooks("-bytes")
    else:
        names = keys.dead_wakes, keys.dead_wakes_order, keys.dead_wakes_bytes
    dead, order, size = names
    return {"dead": dead, "dead_order": order, "dead_bytes": size, "dead_kept": settings.dead_letters_kept}


def kept_when_dead(wake: DueWake) -> str:
    """Return the replacement of a secret call; "" for a wake-up that is kept as it is."""
    if wake.kind != "call":
        return ""
    try:
        body = json.loads(wake.body)
        if not body.get("is_secret"):
            return ""
    except (ValueError, AttributeError, RecursionError):
        return ""
    return json.dumps({name: value for name, value in body.items() if name != "call"}, separators=(",", ":"))


def by_conversation(wakes: Iterable[DueWake]) -> list[list[DueWake]]:
    """Group wake-ups by conversation, in their order; those of none, and calls, each by itself."""
    wait_queue = dict[str, list[DueWake]]()
    for wake in wakes:
        wait_queue.setdefault(_conversation_of(wake) or f"\0{wake.wake_id}", []).append(wake)
    return list(wait_queue.values())


def job_of(wake: DueWake) -> str:
    """Return the id of the job of a wake-up; "" if it does not say it."""
    try:
        found = json.loads(wake.body).get("job_id")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _conversation_of(wake: DueWake) -> str | None:
    try:
        found = json.loads(wake.body).get("conversation_id") if wake.kind in PATHS else None
    except (ValueError, AttributeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


Publish = Callable[[DueWake], Awaitable[str | None]]
"""Publishes the call of a wake-up of kind `call`. Returns `None`, or a sentence why that is impossible; after any error it is tried again."""


Try = Callable[[DueWake], Awaitable[DeliveryAnswer]]


class NotYet(Exception):
    """Raised by `Publish` for a call that is tried again, after `seconds` or as usual, without a fault; the message says why."""

    def __init__(self, reason: str | None, *, seconds: float | None = None) -> None:
        self.seconds = seconds
        super().__init__(reason)


class WakeupOutbox:
    """The deliveries of one process. Belongs to the loop of its `connection`, and must be closed on it.

    `around` surrounds each attempt to wake a core, of a job's id at a URL. A core has `core_seconds` for its answer.
    """

    def __init__(
        self,
        connection: PipelinedConnection,
        settings: Settings,
        *,
        around: Around | None = None,
        core_seconds: float = _CORE_SECONDS,
    ) -> None:
        self._connection, self._around = connection, around
        self._settings = settings
        self._keys = settings.keys
        self._seal = seal_of(settings, purpose="job")
        url, secret = settings.core_url, settings.core_secret
        self._sender = WebhookSender(url, secret, timeout_seconds=core_seconds) if url and secret else None
        self._core = _Lane(self._keys.wakes_due, AT_ONCE, core_seconds)
        self._calls = _Lane(self._keys.calls_due, _CALLS_AT_ONCE, _PUBLISH_SECONDS)
        self._receivers = WebhookReceivers(settings)
        self._webhooks = dict[str, _Lane]()

    async def deliver_due(self, *, publish: Publish, seconds: float) -> int:
        """Deliver due events, as long as there are any, for at most `seconds`. Returns how many were accepted.

        Attempts that are under way then go on by themselves. Safe to be called concurrently; raises nothing for errors
        of Redis, the core or `publish`.
        """
        until = asyncio.get_running_loop().time() + seconds
        tries: tuple[tuple[_Lane, Try], ...] = (
            (self._core, self._try_core),
            (self._calls, lambda wake: self._try_call(wake, publish)),
        )
        return sum(await asyncio.gather(*(self._serve(lane, attempt, until) for lane, attempt in tries)))

    async def send_webhooks(self, *, seconds: float) -> int:
        """Send the registry's events that are due, as `deliver_due` does; each receiver has a lane of its own."""
        until = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout(seconds):
                names = await self._connection.execute("HKEYS", self._keys.webhook_positions)
        except (TimeoutError, RedisConnectionLost, ResponseError) as exc:
            log.warning("webhooks_not_claimed", error=str(exc) or "no answer in time")
            return 0
        lanes = [self._webhook_lane(name.decode(errors="replace")) for name in names]
        return sum(await asyncio.gather(*(self._serve(lane, self._try_webhook, until) for lane in lanes)))

    async def aclose(self) -> None:
        """End running attempts: they are made again, by the next process after their lease."""
        lanes = (self._core, self._calls, *self._webhooks.values())
        await end({task for lane in lanes for task in lane.running})
        if self._sender is not None:
            await self._sender.aclose()
        await self._receivers.aclose()

    async def _serve(self, lane: "_Lane", attempt: "Try", until: float) -> int:
        loop = asyncio.get_running_loop()
        own, accepted = set[asyncio.Task[int]](), 0
        while (left := until - loop.time()) > 0:
            free = lane.size - len(lane.running) - lane.claiming
            wakes = await self._claim(lane, free, seconds=left) if free > 0 else []
            for turn in by_conversation(wakes):
                task = loop.create_task(self._deliver(turn, lane, attempt, loop.time() + _TURN_SECONDS))
                lane.running.add(task)
                task.add_done_callback(lane.running.discard)
                own.add(task)
            if not own:
                break
            is_empty = len(wakes) < free
            when = asyncio.ALL_COMPLETED if is_empty else asyncio.FIRST_COMPLETED
            done, own = await asyncio.wait(own, timeout=max(until - loop.time(), 0), return_when=when)
            accepted += sum(task.result() for task in done if not task.cancelled())
        return accepted

    async def _claim(self, lane: "_Lane", count: int, *, seconds: float) -> list[DueWake]:
        token, lease_ms = randomness.uuid4().hex, int((lane.seconds + _LEASE_MARGIN_SECONDS) * 1000)
        parameters = CLAIM.parameters(
            due=lane.due,
            clock_key=self._keys.clock,
            prefix=self._keys.wake(""),
            token=token,
            lease_ms=lease_ms,
            most=count,
        )
        lane.claiming += count
        try:
            async with asyncio.timeout(seconds):
                found: Any = await run_durably(self._connection, CLAIM, parameters)
        except (TimeoutError, RedisConnectionLost, ResponseError) as exc:
            log.warning("wakes_not_claimed", error=str(exc) or "no answer in time")
            return []
        finally:
            lane.claiming -= count
        return [
            self._opened(*(part.decode(errors="replace") for part in one[:3]), tries=int(one[3]), token=token)
            for one in found
        ]

    def _opened(self, wake_id: str, kind: str, body: str, *, tries: int, token: str) -> DueWake:
        """Open a wake-up; a call is opened by its publisher."""
        if kind == "call":
            return DueWake(wake_id, kind, body, tries, token)
        try:
            return DueWake(wake_id, kind, opened_wake(body, self._seal, wake_id=wake_id, kind=kind), tries, token)
        except MessageRefused as exc:
            return DueWake(wake_id, kind, "", tries, token, str(exc))

    async def _deliver(self, wakes: list[DueWake], lane: "_Lane", attempt: "Try", until: float) -> int:
        """One conversation's, one after the other, as long as that is no danger to their leases."""
        accepted = 0
        for number, wake in enumerate(wakes):
            is_late = number > 0 and asyncio.get_running_loop().time() > until
            # It has waited for its turn: others may have it by now, or an operator has dropped it.
            if number > 0 and not is_late and not await self._is_held(wake):
                continue
            answer = None if is_late else await attempt(wake)
            try:
                accepted += await self._note(wake, answer, lane)
            except (RedisConnectionLost, ResponseError) as exc:
                log.warning("wake_not_noted", wake_id=wake.wake_id, answer=answer, error=str(exc))
        return accepted

    async def _is_held(self, wake: DueWake) -> bool:
        """Return whether it is still ours, as far as Redis says: without an answer, its lease runs out."""
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                holder = await self._connection.execute("HGET", self._keys.wake(wake.wake_id), "token")
        except (TimeoutError, RedisConnectionLost, ResponseError) as exc:
            log.warning("wake_not_tried", wake_id=wake.wake_id, error=str(exc) or "no answer in time")
            return False
        return bool(holder == wake.token.encode())

    async def _try_core(self, wake: DueWake) -> DeliveryAnswer:
        if self._sender is None:
            return DeliveryAnswer(accepted=False, refused=True, reason="TOOLFLEET_CORE_URL is not set.")
        if wake.kind not in PATHS:
            return DeliveryAnswer(accepted=False, refused=True, reason="These are no news of a kind that is known.")
        if wake.fault:  # for good only if no other process of the fleet can verify it, either
            return DeliveryAnswer(accepted=False, refused=True, reason=wake.fault)
        path = PATHS[wake.kind]
        sending = self._sender.send(wake.wake_id, wake.body, path=path)
        if self._around is None:
            return await sending
        return await self._around(job_of(wake), f"{self._sender.shown_url}{path}", sending)

    async def _try_webhook(self, wake: DueWake) -> DeliveryAnswer:
        if wake.fault:  # as above
            return DeliveryAnswer(accepted=False, refused=True, reason=wake.fault)
        return await self._receivers.send(wake.wake_id, wake.body)

    def _webhook_lane(self, receiver: str) -> "_Lane":
        due = self._keys.webhooks_due(receiver)
        return self._webhooks.setdefault(receiver, _Lane(due, WEBHOOKS_AT_ONCE, WEBHOOK_SECONDS))

    @staticmethod
    async def _try_call(wake: DueWake, publish: Publish) -> DeliveryAnswer:
        try:
            async with asyncio.timeout(_PUBLISH_SECONDS):
                reason = await publish(wake)
        except NotYet as exc:
            return DeliveryAnswer(accepted=False, reason=str(exc), retry_after_seconds=exc.seconds)
        except Exception as exc:  # judging and publishing raise anything: the next attempt may succeed
            log.exception("wake_call_not_published", wake_id=wake.wake_id)
            return DeliveryAnswer(accepted=False, reason=f"{type(exc).__name__}: {exc}")
        return (
            DeliveryAnswer(accepted=True)
            if reason is None
            else DeliveryAnswer(accepted=False, is_final=True, reason=reason)
        )

    async def _note(self, wake: DueWake, answer: DeliveryAnswer | None, lane: "_Lane") -> bool:
        """Record the answer, until Redis has it; `None`: it was not tried. Returns whether the event was delivered."""
        record = self._keys.wake(wake.wake_id)
        if answer is None:
            names = {"wake": record, "due": lane.due, "clock_key": self._keys.clock}
            parameters = RELEASED.parameters(**names, id=wake.wake_id, token=wake.token)
            await run_durably(self._connection, RELEASED, parameters)
        elif answer.accepted:
            by, job = self._receiver_of(wake), self._job_key(wake)
            outcome = outcome_line(wake.wake_id, "accepted", by, tries=wake.tries)
            parameters = ACCEPTED.parameters(wake=record, due=lane.due, job=job, id=wake.wake_id, outcome=outcome)
            await run_durably(self._connection, ACCEPTED, parameters)
            log.info("wake_delivered", wake_id=wake.wake_id, kind=wake.kind, tries=wake.tries)
        else:
            await self._note_failure(wake, answer, record, lane.due)
        return answer is not None and answer.accepted

    def _job_key(self, wake: DueWake) -> str:
        """Return the key of its outcome: its job's, or its own."""
        job_id = job_of(wake)
        return self._keys.job(job_id) if job_id else self._keys.wake(wake.wake_id)

    def _receiver_of(self, wake: DueWake) -> str:
        """Return its receiver, as its job shows it."""
        if wake.kind in PATHS:
            return "core" if self._sender is None else f"{self._sender.shown_url}{PATHS[wake.kind]}"
        return f"call {wake.wake_id}" if wake.kind == "call" else "webhook"

    async def _note_failure(self, wake: DueWake, answer: DeliveryAnswer, record: str, due: str) -> None:
        settings, reason = self._settings, one_line(answer.reason)
        parameters = FAILED.parameters(
            wake=record,
            due=due,
            **place_when_dead(wake, settings),
            clock_key=self._keys.clock,
            job=self._job_key(wake),
            id=wake.wake_id,
            token=wake.token,
            next_ms="" if answer.is_final else int(seconds_until_next(wake.tries, answer) * 1000),
            reason=reason,
            give_up_ms=round(settings.wake_give_up_seconds * 1000),
            bytes_kept=MOST_DEAD_BYTES,
            dead_body=kept_when_dead(wake),
            outcome=outcome_line(wake.wake_id, "given_up", self._receiver_of(wake), tries=wake.tries),
        )
        became = await run_durably(self._connection, FAILED, parameters)
        facts = {"wake_id": wake.wake_id, "kind": wake.kind, "tries": wake.tries, "reason": reason}
        if became == b"dead":
            log.error("wake_given_up", **facts)
        elif became == b"lost":
            log.info("wake_no_longer_held", **facts)
        else:
            log.warning("wake_put_off", **facts)


@dataclass(slots=True)
class _Lane:
    """Concurrent attempts: at most `size` at once, each for at most `seconds`, claimed from the set `due`."""

    due: str
    size: int
    seconds: float
    claiming: int = 0
    running: set[asyncio.Task[int]] = field(default_factory=set)


class WebhookReceivers:
    """The `registry_webhooks` of one process, and the webhooks of its `approvals`. Belongs to the loop of its first try."""

    def __init__(self, settings: Settings) -> None:
        self._urls = {receiver_of(url): url for url in settings.registry_webhooks}
        self._secret = settings.registry_webhooks_secret or ""
        self._approvals = {approval_receiver_of(each.url): each for each in settings.approvals.webhooks}
        self._sources = settings.secrets
        self._senders = dict[str, WebhookSender]()

    async def send(self, wake_id: str, kept: str) -> DeliveryAnswer:
        """Try once to send what the outbox keeps under this id. Raises nothing but a cancellation."""
        event_id, receiver = parts_of(wake_id)
        if receiver not in self._urls and receiver not in self._approvals:
            # Taken away, perhaps to come back; or this process has older settings than others.
            reason = "No URL of TOOLFLEET_REGISTRY_WEBHOOKS is its receiver, nor a webhook of TOOLFLEET_APPROVALS."
            return DeliveryAnswer(accepted=False, refused=True, reason=reason)
        try:
            body = sent_body(kept)
        except (ValueError, RecursionError):
            return DeliveryAnswer(accepted=False, is_final=True, reason="The event cannot be read.")
        try:
            sender = self._sender(receiver)
        except SettingsError as exc:  # it may be there in a moment: it is tried again
            return DeliveryAnswer(accepted=False, refused=True, reason=str(exc))
        return await sender.send(event_id, body)

    async def aclose(self) -> None:
        """Close all connections."""
        for sender in self._senders.values():
            await sender.aclose()

    def _sender(self, receiver: str) -> WebhookSender:
        """Return the sender of a receiver. Raises `SettingsError` for a missing secret."""
        if receiver not in self._senders:
            url, secret = self._urls.get(receiver), self._secret
            if url is None:
                webhook = self._approvals[receiver]
                url, secret = webhook.url, channel_secret(webhook.secret, self._sources)
            self._senders[receiver] = WebhookSender(url, secret, timeout_seconds=WEBHOOK_SECONDS)
        return self._senders[receiver]
