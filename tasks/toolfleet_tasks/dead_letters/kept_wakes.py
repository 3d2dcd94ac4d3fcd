"""Lists, delivers and drops wake-ups and events of the registry that wait, or that nobody accepted."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.client import NEVER_DECODE

from toolfleet_registry.errors import MessageRefused, NotReplayable
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.dead_letters.entry import DeadEntry, DeadKind
from toolfleet_tasks.dead_letters.store import DeadStore, Letter, check_limits, kind_of_event
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.wakeups.events import opened_wake
from toolfleet_tasks.wakeups.scripts import REPLAY
from toolfleet_tasks.wakeups.sender import PATHS
from toolfleet_tasks.wakeups.webhook_events import REGISTRY, parts_of

_KINDS: Final[tuple[DeadKind, ...]] = ("wakeup", "webhook")
_FIELDS = ("kind", "body", "tries", "first_at", "error")
_AS_BYTES: Final[dict[str, Any]] = {NEVER_DECODE: True}


@dataclass(frozen=True, slots=True)
class KeptWake:
    """News of a job's end, or an event of the registry for one receiver, that wait or were given up."""

    wake_id: str
    """The id of the news."""
    kind: str
    """`continue`, `notify`, `call`, or `registry`: an event for a webhook."""
    tries: int
    """How many tries were begun."""
    first_at: float
    """When the first one was, in seconds since the epoch."""
    due_at: float | None
    """When the next one is, in seconds since the epoch, of news that wait."""
    died_at: float | None
    """When they were given up, in seconds since the epoch."""
    error: str
    """Why the last try failed."""
    body: dict[str, Any] | None
    """What is sent, or of a call what is to be called, without sensitive arguments; `None` if it cannot be read, or is not the fleet's."""

    def text_field(self, name: str) -> str | None:
        """A field of the body, if it is a text."""
        value = (self.body or {}).get(name)
        return value if isinstance(value, str) else None


class KeptWakes:
    """The news in Redis. Everything raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, store: DeadStore, keys: Keys, seal: Seal) -> None:
        self._store = store
        self._keys = keys
        self._seal = seal

    async def waiting(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """At most `limit` of those that wait for a try, those due next first."""
        check_limits(limit, offset)
        async with self._store.asking() as redis, redis.pipeline(transaction=False) as pipe:
            receivers = await redis.execute_command("HKEYS", self._keys.webhook_positions, **_AS_BYTES)
            names = [self._keys.webhooks_due(receiver.decode(errors="replace")) for receiver in receivers or ()]
            for name in (self._keys.calls_due, self._keys.wakes_due, *names):
                pipe.execute_command("ZRANGE", name, 0, offset + limit - 1, "WITHSCORES", withscores=True, **_AS_BYTES)
            pairs = [pair for page in await pipe.execute() for pair in page]
            due = sorted(pairs, key=lambda pair: float(pair[1]))[offset : offset + limit]
            ids = [wake_id.decode(errors="replace") for wake_id, _ in due]
            for wake_id in ids:
                pipe.execute_command("HMGET", self._keys.wake(wake_id), *_FIELDS, **_AS_BYTES)
            found = zip(ids, await pipe.execute(), due, strict=True)
        return [
            self._waiting_one(wake_id, fields, float(due_ms))
            for wake_id, fields, (_, due_ms) in found
            if fields[0] is not None  # else delivered just now
        ]

    async def of_conversation(self, conversation_id: str, most: int = 50) -> list[KeptWake]:
        """Those that wait for a conversation: of the `most` that are tried next, and of the latest `most` that its readers have not confirmed."""
        waiting = [wake for wake in await self.waiting(most) if wake.text_field("conversation_id") == conversation_id]
        return [*waiting, *await self._unconfirmed(conversation_id, most)]

    async def dead(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """At most `limit` of those that nobody accepted, the latest first."""
        return [self.read(letter) for letter in await self._store.list(_KINDS, limit, offset)]

    async def show(self, wake_id: str) -> KeptWake | None:
        """One that waits or is dead; `None`: there is none, so it was accepted, dropped, or never was."""
        for letter in await self._store.find(_KINDS, wake_id):
            return self.read(letter)
        fields = await self._store.ask("HMGET", self._keys.wake(wake_id), *_FIELDS)
        if fields[0] is None:
            return None
        return self._waiting_one(
            wake_id, fields, await self._store.ask("ZSCORE", self._due_set(wake_id, fields[0]), wake_id)
        )

    async def replay(self, wake_id: str) -> bool:
        """Have dead news tried anew, under the same id, as long as new ones; and waiting ones now. Returns whether they were there.

        Raises `NotReplayable` as well.
        """
        for place in self._store.places({kind_of_event(wake_id)}):
            names = (*place.names(), self._keys.wake(wake_id), self._keys.wakes_due, self._keys.clock)
            became: int = await self._store.ask("EVAL", REPLAY.text, *REPLAY.parameters_of(names, id=wake_id))
            if became < 0:
                why = "cannot be read" if became == -1 else "are a call with sensitive arguments, which are not kept"
                raise NotReplayable(f"The news {wake_id!r} {why}: they can be dropped only.")
            if became:
                return True
        return False

    async def drop(self, wake_ids: Iterable[str]) -> tuple[str, ...]:
        """Forget these dead ones. Returns the ids of those that were there."""
        return await self._store.drop(_KINDS, wake_ids)

    async def drop_all(self) -> int:
        """Forget all dead ones. Returns how many there were."""
        return await self._store.drop_all(_KINDS)

    def read(self, letter: Letter) -> KeptWake:
        """Whatever is kept under this id."""
        kept = _object(letter.value or b"") or {}
        kind = str(kept.get("kind", "?"))
        return KeptWake(
            wake_id=letter.id,
            kind=kind,
            tries=int(_number(kept.get("tries"))),
            first_at=_number(kept.get("first_at")) / 1000,
            due_at=None,
            died_at=_number(kept.get("died_at")) / 1000,
            error=str(kept.get("error", "It cannot be read.")),
            body=self._body(letter.id, kind, str(kept.get("body", ""))),
        )

    def entry(self, letter: Letter) -> DeadEntry:
        """The news as letters of other kinds are shown."""
        wake = self.read(letter)
        return DeadEntry(
            kind=letter.kind,
            id=wake.wake_id,
            died_at=letter.died_at,
            attempts=wake.tries,
            error=wake.error,
            subject=_subject(wake),
            body=wake.body,
            replayable=wake.body is not None and not (wake.kind == "call" and wake.body.get("is_secret")),
        )

    async def _unconfirmed(self, conversation_id: str, most: int) -> list[KeptWake]:
        """Of a fleet without a core; what is not the fleet's is left out."""
        found = list[KeptWake]()
        stream = self._keys.completions(conversation_id)
        entries: list[Any] = await self._store.ask("XREVRANGE", stream, "+", "-", "COUNT", most)
        for _, fields in reversed(entries):
            try:
                body = _object(self._seal.read(fields.get(b"body", b"").decode(errors="replace")))
            except MessageRefused:
                continue
            if body is not None and body.get("conversation_id") == conversation_id:
                wake_id, kind, at = str(body.get("wake_id")), str(body.get("kind")), _number(body.get("timestamp"))
                found.append(KeptWake(wake_id, kind, 0, at, due_at=None, died_at=None, error="", body=body))
        return found

    def _waiting_one(self, wake_id: str, fields: Sequence[bytes | None], due_ms: Any) -> KeptWake:
        kind, body, tries, first_at, error = (None if one is None else one.decode(errors="replace") for one in fields)
        return KeptWake(
            wake_id=wake_id,
            kind=str(kind),
            tries=int(tries or 0),
            first_at=float(first_at or 0) / 1000,
            due_at=None if due_ms is None else float(due_ms) / 1000,
            died_at=None,
            error=error or "",
            body=self._body(wake_id, str(kind), body or ""),
        )

    def _due_set(self, wake_id: str, kind: bytes) -> str:
        if kind == REGISTRY.encode():
            return self._keys.webhooks_due(parts_of(wake_id)[1])
        return self._keys.calls_due if kind == b"call" else self._keys.wakes_due

    def _body(self, wake_id: str, kind: str, text: str) -> dict[str, Any] | None:
        if kind not in {*PATHS, REGISTRY}:
            found = _object(text)
            is_secret = found is not None and found.get("is_secret")
            # The call is sealed and not encrypted.
            return {name: value for name, value in found.items() if name != "call"} if found and is_secret else found
        try:
            return _object(opened_wake(text, self._seal, wake_id=wake_id, kind=kind))
        except MessageRefused:
            return None


def _subject(wake: KeptWake) -> str:
    """A conversation, the tool of a call, or what has happened to a tool, or to an approval of a call of it."""
    if wake.kind != REGISTRY:
        return wake.text_field("tool_name" if wake.kind == "call" else "conversation_id") or "-"
    payload = (wake.body or {}).get("payload")
    data = payload.get("data") if isinstance(payload, dict) else None
    if not isinstance(payload, dict) or not isinstance(data, dict):
        return "-"
    return " ".join(str(one) for one in (payload.get("type"), data.get("tool_name") or data.get("tool")) if one)


def _object(text: str | bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0
