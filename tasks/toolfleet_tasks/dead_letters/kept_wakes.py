"""Lists, finds, delivers and drops wake-ups and events of the registry that wait, or that were never accepted."""

import itertools
import json
import math
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from redis.client import NEVER_DECODE

from toolfleet_registry.errors import MessageRefused, NotReplayable
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system.http_bodies import is_too_deep
from toolfleet_tasks.dead_letters.store import DeadEntry, DeadKind, DeadStore, Letter, check_limits, kind_of_event
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.wakeups.events import FIELD as OUTCOMES
from toolfleet_tasks.wakeups.events import WakeupOutcome, opened_wake, outcome_line, read_outcomes
from toolfleet_tasks.wakeups.outbox import DROP_WAITING, REPLAY
from toolfleet_tasks.wakeups.sender import PATHS
from toolfleet_tasks.wakeups.webhook_feed import REGISTRY, parts_of

MOST_WAITING_SEARCHED: Final = 5_000
"""Wake-ups that one question looks at: a caller that wants those behind them asks again, with the `next` of the answer."""

_AT_ONCE = 100  # in memory: each may have some hundred kilobytes

_LONGEST_ID = 1_024  # characters

WaitingKind: TypeAlias = Literal["continue", "notify", "call", "registry"]
"""What waits: to wake or to tell a conversation, to be published as a call, or an event of the registry for a webhook."""

WAITING_KINDS: Final[tuple[WaitingKind, ...]] = get_args(WaitingKind)

DueMark: TypeAlias = tuple[float, str]
"""When a wake-up is tried next (ms), and its id: those behind it in the list have more."""

FIRST: Final[DueMark] = (-math.inf, "")
"""Before all of them."""

_KINDS: Final[tuple[DeadKind, ...]] = ("wakeup", "webhook")

_PAGE = 500  # ids that are read of a set at once

_DEEPEST = 200  # levels of a body: pydantic writes no more than 254

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
    due_at: float | None = field(default=None, kw_only=True)
    """When the next one is, in seconds since the epoch, of news that wait."""
    died_at: float | None = field(default=None, kw_only=True)
    """When they were given up, in seconds since the epoch."""
    error: str
    """Why the last try failed."""
    body: dict[str, Any] | None = field(default=None, kw_only=True)
    """What is sent, or of a call what is to be called, without sensitive arguments; `None` if it cannot be read, or is not the fleet's."""

    def text_field(self, name: str) -> str | None:
        """A field of the body, if it is a text."""
        value = (self.body or {}).get(name)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class WantedWakes:
    """A search: wake-ups of this `kind`, with `about` in their id or subject and `error` in their last error, ignoring case, due first before `until` (s)."""

    kind: WaitingKind | None = None
    about: str = ""
    error: str = ""
    until: float = math.inf

    def fits(self, wake: KeptWake) -> bool:
        """Return whether it matches."""
        is_kind = self.kind is None or wake.kind == self.kind
        about = f"{wake.wake_id} {subject_of(wake)}".lower()
        return (
            is_kind
            and wake.first_at < self.until
            and self.about.lower() in about
            and self.error.lower() in wake.error.lower()
        )

    @property
    def words(self) -> dict[str, str | int]:
        """The search's part of an audit line."""
        said = {"wakeup_kind": self.kind or "", "about": self.about, "error": self.error}
        return {name: value for name, value in said.items() if value}


@dataclass(frozen=True, slots=True)
class FoundWakes:
    """The wake-ups found, the next due first.

    `next`: behind which there may be more; with fewer than were asked for, not all were searched.
    """

    wakes: list[KeptWake]
    next: str | None = None


class KeptWakes:
    """The wake-ups in Redis. Everything raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, store: DeadStore, keys: Keys, seal: Seal) -> None:
        self._store = store
        self._keys = keys
        self._seal = seal

    async def waiting(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """Return at most `limit` that wait for an attempt, the next due first."""
        check_limits(limit, offset)
        due = await self.due_behind(FIRST, offset + limit)
        return [
            wake for wake in await self.read_waiting(due[offset:]) if wake is not None
        ]  # `None`: delivered just now

    async def due_behind(
        self, mark: DueMark, count: int, kinds: Collection[WaitingKind] = WAITING_KINDS
    ) -> list[DueMark]:
        """Return at most `count` that wait behind a mark, the next due first; of some kinds, perhaps with others among them."""
        found = [due for name in await self._due_sets(kinds) for due in await self._due_of(name, mark, count)]
        return sorted(found)[:count]

    async def read_waiting(self, due: Sequence[DueMark]) -> list[KeptWake | None]:
        """Read these wake-ups; `None` for each that no longer waits."""
        if not due:
            return []
        async with self._store.asking() as redis, redis.pipeline(transaction=False) as pipe:
            for _, wake_id in due:
                pipe.execute_command("HMGET", self._keys.wake(wake_id), *_FIELDS, **_AS_BYTES)
            found = zip(due, await pipe.execute(), strict=True)
        return [
            None if fields[0] is None else self._waiting_one(wake_id, fields, due_ms)
            for (due_ms, wake_id), fields in found
        ]

    async def of_conversation(self, conversation_id: str, most: int = 50) -> list[KeptWake]:
        """Return those that wait for a conversation: of the next `most` attempts, and of the latest `most` that its readers have not confirmed."""
        waiting = [wake for wake in await self.waiting(most) if wake.text_field("conversation_id") == conversation_id]
        return [*waiting, *await self._unconfirmed(conversation_id, most)]

    async def dead(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """Return at most `limit` that were never accepted, the latest first."""
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
        """Try dead ones again, under the same id, for as long as new ones; and waiting ones now.

        Returns whether they were there.

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

    async def drop_waiting(self, wake_id: str, by: str) -> Literal["dropped", "under_way"] | None:
        """Forget a waiting one; `None` if there is none. Its job records that it was dropped, and by which operator.

        `under_way`: it is being tried just now, and may still be accepted. It is not tried after that.
        """
        fields = await self._store.ask("HMGET", self._keys.wake(wake_id), *_FIELDS)
        if fields[0] is None:
            return None
        wake = self._waiting_one(wake_id, fields, None)
        job_id = wake.text_field("job_id")
        command = DROP_WAITING.command(
            wake=self._keys.wake(wake_id),
            due=self._keys.wakes_due,
            job=self._keys.job(job_id) if job_id else self._keys.wake(wake_id),
            clock_key=self._keys.clock,
            id=wake_id,
            outcome=outcome_line(wake_id, "dropped", by, tries=wake.tries),
            outcome_under_way=outcome_line(wake_id, "dropped", by, tries=wake.tries, under_way=True),
        )
        became: int = await self._store.ask(*command)
        return None if not became else "dropped" if became == 1 else "under_way"

    async def drop(self, wake_ids: Iterable[str]) -> tuple[str, ...]:
        """Forget these dead ones. Returns the ids of those that were there."""
        return await self._store.drop(_KINDS, wake_ids)

    async def drop_all(self) -> int:
        """Forget all dead ones. Returns how many there were."""
        return await self._store.drop_all(_KINDS)

    async def outcomes(self, job_ids: Sequence[str]) -> dict[str, Sequence[WakeupOutcome]]:
        """Return the outcomes of the wake-ups of these jobs, oldest first; empty for jobs without a record."""
        if not job_ids:
            return {}
        async with self._store.asking() as redis, redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.execute_command("HGET", self._keys.job(job_id), OUTCOMES, **_AS_BYTES)
            found = zip(job_ids, await pipe.execute(), strict=True)
        return {job_id: outcomes for job_id, text in found if (outcomes := read_outcomes(text))}

    def read(self, letter: Letter) -> KeptWake:
        """Parse any entry."""
        kept = _object(letter.value or b"") or {}
        kind = str(kept.get("kind", "?"))
        return KeptWake(
            wake_id=letter.id,
            kind=kind,
            tries=int(_number(kept.get("tries"))),
            first_at=_number(kept.get("first_at")) / 1000,
            died_at=_number(kept.get("died_at")) / 1000,
            error=str(kept.get("error", "It cannot be read.")),
            body=self._body(letter.id, kind, str(kept.get("body", ""))),
        )

    def entry(self, letter: Letter) -> DeadEntry:
        """Return the wake-up in the form of dead letters of all kinds."""
        wake = self.read(letter)
        return DeadEntry(
            kind=letter.kind,
            id=wake.wake_id,
            died_at=letter.died_at,
            attempts=wake.tries,
            error=wake.error,
            subject=subject_of(wake),
            body=wake.body,
            replayable=wake.body is not None and not (wake.kind == "call" and wake.body.get("is_secret")),
        )

    async def _due_sets(self, kinds: Collection[WaitingKind]) -> list[str]:
        names = [self._keys.calls_due] if "call" in kinds else []
        if not {"continue", "notify"}.isdisjoint(kinds):
            names.append(self._keys.wakes_due)
        if REGISTRY in kinds:
            receivers = await self._store.ask("HKEYS", self._keys.webhook_positions)
            names += [self._keys.webhooks_due(receiver.decode(errors="replace")) for receiver in receivers or ()]
        return names

    async def _due_of(self, name: str, mark: DueMark, count: int) -> list[DueMark]:
        found, size, lowest = list[DueMark](), min(count + 1, _PAGE), "-inf" if math.isinf(mark[0]) else repr(mark[0])
        for first in itertools.count(0, size):
            command = ("ZRANGEBYSCORE", name, lowest, "+inf", "WITHSCORES", "LIMIT", first, size)
            page = await self._store.ask(*command, withscores=True)
            due = ((float(due_ms), wake_id.decode(errors="replace")) for wake_id, due_ms in page)
            found += [one for one in due if one > mark]
            if len(page) < size or len(found) >= count:
                break
        return found[:count]

    async def _unconfirmed(self, conversation_id: str, most: int) -> list[KeptWake]:
        """Return the unconfirmed ones of a fleet without a core; foreign entries are left out."""
        found, all_users = list[KeptWake](), self._keys.completions(conversation_id)
        users = await self._store.ask("XRANGE", self._keys.completion_users(conversation_id), "-", "+")
        streams = {all_users} | {f"{all_users}:{fields[b'user'].decode()}" for _, fields in users}
        pages = [await self._store.ask("XREVRANGE", stream, "+", "-", "COUNT", most) for stream in sorted(streams)]
        entries = sorted(itertools.chain.from_iterable(pages), key=lambda entry: tuple(map(int, entry[0].split(b"-"))))
        for _, fields in entries[-most:]:
            try:
                body = _object(self._seal.read(fields.get(b"body", b"").decode(errors="replace")))
            except MessageRefused:
                continue
            if body is not None and body.get("conversation_id") == conversation_id:
                wake_id, kind, at = str(body.get("wake_id")), str(body.get("kind")), _number(body.get("timestamp"))
                found.append(KeptWake(wake_id, kind, 0, at, error="", body=body))
        return found

    def _waiting_one(self, wake_id: str, fields: Sequence[bytes | None], due_ms: Any) -> KeptWake:
        kind, body, tries, first_at, error = (None if one is None else one.decode(errors="replace") for one in fields)
        return KeptWake(
            wake_id=wake_id,
            kind=str(kind),
            tries=int(_number(tries)),
            first_at=_number(first_at) / 1000,
            due_at=None if due_ms is None else float(due_ms) / 1000,
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


async def search_waiting(
    kept: KeptWakes, wanted: WantedWakes, *, behind: str | None = None, limit: int = 50
) -> FoundWakes:
    """Return at most `limit` matching wake-ups behind the mark `behind`, first due before the mark's `until`.

    Raises `ValueError` for an invalid mark, and `FleetUnavailable`.
    """
    until, mark = (wanted.until, FIRST) if behind is None else _mark_of(behind)
    wanted = WantedWakes(wanted.kind, wanted.about, wanted.error, min(until, wanted.until))
    found, searched = list[KeptWake](), 0
    async with aclosing(_each_behind(kept, wanted, mark)) as wakes:
        async for due, wake in wakes:
            if searched == MOST_WAITING_SEARCHED or len(found) == limit:
                return FoundWakes(found, _text_of(wanted.until, mark))
            searched += 1
            if wake is not None and wanted.fits(wake):
                found.append(wake)
            mark = due
    return FoundWakes(found)


def is_mark(text: str) -> bool:
    """Return whether a text is the mark of a wake-up."""
    try:
        _mark_of(text)
    except ValueError:
        return False
    return True


async def _each_behind(
    kept: KeptWakes, wanted: WantedWakes, mark: DueMark
) -> AsyncGenerator[tuple[DueMark, KeptWake | None]]:
    """`None` for one that does not wait any more."""
    kinds = WAITING_KINDS if wanted.kind is None else (wanted.kind,)
    while True:
        due = await kept.due_behind(mark, _AT_ONCE, kinds)
        for one, wake in zip(due, await kept.read_waiting(due), strict=True):
            yield one, wake
        if len(due) < _AT_ONCE:
            return
        mark = due[-1]


def _text_of(until: float, mark: DueMark) -> str:
    return f"{until!r}~{mark[0]!r}~{mark[1]}"


def _mark_of(text: str) -> tuple[float, DueMark]:
    until, _, rest = text.partition("~")
    due_ms, sign, wake_id = rest.partition("~")
    moment, due = float(until), float(due_ms)
    if not sign or len(wake_id) > _LONGEST_ID or math.isnan(moment) or math.isnan(due):
        raise ValueError("it is no mark of a wake-up")
    return moment, (due, wake_id)


def subject_of(wake: KeptWake) -> str:
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
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    return found if isinstance(found, dict) and not is_too_deep(data, found, _DEEPEST) else None


def _number(value: object) -> float:
    """Return a number, or 0 for any other value: one damaged record must not hide all others."""
    try:
        number = float(str(value))
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0
