"""Writes a line into the audit for each change that an operator makes: who, what, when, and the outcome.

The line is written before the change begins, with the outcome `unknown`, and is replaced once the outcome is known: a
process that dies between the two leaves it. Fails open: a leaked key can be revoked although Redis is away; lines that
cannot be written are logged.
"""

import getpass
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Self, TypeAlias

from redis.asyncio import Redis

from toolfleet_registry.contracts.attempts import AuditOutcome
from toolfleet_registry.errors import FleetUnavailable, NoSuchDeadLetter, OperationRefused
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.ledger.audit import FIELD, AuditLine, text_of

ChangeKind: TypeAlias = Literal[
    "agent_put",
    "agent_removed",
    "agent_rolled_back",
    "call_approved",
    "call_rejected",
    "contents_forgotten",
    "dead_letter_dropped",
    "dead_letter_replayed",
    "dead_letters_dropped",
    "dead_letters_replayed",
    "job_cancelled",
    "jobs_cancelled",
    "key_created",
    "key_revoked",
    "module_added",
    "module_pinned",
    "module_removed",
    "module_unpinned",
    "program_cancelled",
    "queue_drained",
    "queue_paused",
    "queue_resumed",
    "registry_adopted",
    "tool_approved",
    "tool_disabled",
    "tool_enabled",
    "tool_forgotten",
    "tool_rolled_back",
    "wakeup_dropped",
    "wakeup_replayed",
    "wakeups_dropped",
    "wakeups_replayed",
]
"""What operators change."""

BEGUN: Final = "is_begun"
"""Of a line: whether its outcome is not known yet, or never will be."""

_PATIENCE_SECONDS = 2.0  # for each of the two lines: a change must not wait long for them
_LONGEST = 256  # characters of a name, an id or a reason
_REFUSALS = (NoSuchDeadLetter, OperationRefused, ValueError)

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of changes: a user, and the credential: `key <id>`, `token <subject>` or `command line`."""

    user_id: str | None
    by: str

    @classmethod
    def at_command_line(cls, name: str | None = None) -> Self:
        """Return the user of the command line, by this name; `None`: by the name on this machine."""
        return cls(name or _system_user(), "command line")


@dataclass(slots=True)
class OperatorChange:
    """A change while it is made: of `subject`, which is a tool, a module, or an id. `facts` go into its line."""

    kind: ChangeKind
    subject: str
    facts: dict[str, str | int] = field(default_factory=dict)
    refusal: str | None = None
    """Why it is not made, where no error says it."""


class ChangeTrail:
    """Writes the lines of one who makes changes. Without a Redis only the log has them. Raises nothing by itself."""

    def __init__(self, redis: Redis | None, settings: Settings, actor: Actor) -> None:
        self.missed = 0
        """Lines that are not there, as far as is known."""
        self._redis = redis
        self._settings = settings
        self._actor = actor

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, actor: Actor) -> AsyncGenerator[Self]:
        """Open the trail of the fleet of these settings."""
        if settings.redis_url is None:
            yield cls(None, settings, actor)
            return
        async with settings.redis_client(timeout_seconds=_PATIENCE_SECONDS) as redis:
            yield cls(redis, settings, actor)

    @asynccontextmanager
    async def change(self, kind: ChangeKind, subject: str, **facts: str | int) -> AsyncGenerator[OperatorChange]:
        """The block makes the change. What it raises, or its `refusal`, says how that has ended."""
        change = OperatorChange(kind, subject, dict(facts))
        begun = await self._write(self._line(change, "unknown") | {BEGUN: True}, None)
        try:
            yield change
        except _REFUSALS as exc:
            change.refusal = str(exc)
            await self._end(change, "refused", begun)
            raise
        except Exception:  # whether it was made is not known, as when no answer has come
            await self._end(change, "unknown", begun)
            raise
        await self._end(change, "success" if change.refusal is None else "refused", begun)

    def _line(self, change: OperatorChange, outcome: AuditOutcome) -> AuditLine:
        known = {
            "change": change.kind,
            "tool": change.subject,
            "ts": fleet_clock.now(),
            "user_id": self._actor.user_id,
            "by": self._actor.by,
            "signed": self._settings.signing_key is not None,
            "outcome": outcome,
            "reason": change.refusal,
        }
        line = {**change.facts, **known}
        return {
            name: bounded(value) if isinstance(value, str) else value
            for name, value in line.items()
            if value is not None
        }

    async def _end(self, change: OperatorChange, outcome: AuditOutcome, begun: str | None) -> None:
        line = self._line(change, outcome)
        log.info("fleet_changed", **line)
        await self._write(line, begun)

    async def _write(self, line: AuditLine, replaced: str | None) -> str | None:
        """Write a line that replaces another one. Returns its id; `None` if it is not written, or that is unknown."""
        if self._redis is None:
            self.missed += 1
            return None
        key, kept = self._settings.keys.audit, self._settings.audit_kept
        try:
            async with (
                answering(self._redis, seconds=_PATIENCE_SECONDS),
                self._redis.pipeline(transaction=True) as pipe,
            ):
                if replaced is not None:
                    pipe.xdel(key, replaced)
                pipe.xadd(key, {FIELD: text_of(line)}, maxlen=kept, approximate=True)
                entry = (await pipe.execute())[-1]
        except FleetUnavailable as exc:
            self.missed += 1
            log.warning("audit_not_written", reason=str(exc), change=line["change"])
            return None
        return entry.decode() if isinstance(entry, bytes) else str(entry)


def bounded(text: str) -> str:
    """Return the text with a bounded length, and with "?" for lone surrogates."""
    return text[:_LONGEST].encode("utf-8", "replace").decode()


def _system_user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name
        return None
