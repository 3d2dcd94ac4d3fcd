"""Keeps the heartbeats of hosts in the fleet's Redis, and says which hosts serve a module.

All times are by Redis's clock. If the fleet signs, a heartbeat without the signature of its module's key is ignored; so
is one older than the last one of its host, so that a replay keeps no host alive.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.directory.announcements import (
    LONGEST_TEXT,
    TTL_SECONDS,
    Announcement,
    readers_seal,
)
from toolfleet_registry.directory.host_judgement import JudgedHosts, RefusedHost, SeenHost, is_timely, judge
from toolfleet_registry.directory.scripts import ANNOUNCE, FORGET_HOSTS, HOSTS, LEAVE
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.redis_errors import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import TextSeal
from toolfleet_registry.system.loggers import get_logger

_PATIENCE_SECONDS = 5
_AS_BYTES = {NEVER_DECODE: True}
_TTL_MS = int(TTL_SECONDS * 1000)
_MOST_SEALS = 10_000
_MS_DIGITS = 15
_MOST_REFUSED = 100  # that are listed: a flood of them must not fill a process's memory

_log = get_logger(__name__)


class AnnouncingHost:
    """One host's announcements in the directory. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, settings: Settings, seal: TextSeal) -> None:
        self._redis = redis
        self._keys = settings.keys
        self._kept_seconds = _kept_seconds(settings)
        self._seal = seal

    async def now(self) -> float:
        """Redis's time, in seconds since the epoch."""
        async with self._answering():
            seconds, micros = await self._redis.time()
        return float(seconds) + float(micros) / 1e6

    async def announce(self, said: Announcement) -> float:
        """Write a heartbeat. Returns Redis's time then."""
        keys = self._keys
        command = ANNOUNCE.command(
            hosts=keys.hosts.announced,
            heartbeats=keys.hosts.heartbeats,
            revision=keys.modules_revision,
            fetch=keys.manifest_fetch(said.module),
            channel=keys.manifests_changed,
            ttl_ms=_TTL_MS,
            kept_s=self._kept_seconds,
            module=said.module,
            id=said.id,
            mark=said.mark,
            text=self._seal.sign(said.model_dump_json(exclude_defaults=True)),
        )
        async with self._answering():
            return int(await cast("Awaitable[int]", self._redis.execute_command(*command))) / 1000

    async def leave(self, module: str, host_id: str) -> int:
        """Say that a host ends. Returns how many others announce the module now."""
        keys = self._keys
        command = LEAVE.command(
            heartbeats=keys.hosts.heartbeats,
            revision=keys.modules_revision,
            channel=keys.manifests_changed,
            module=module,
            id=host_id,
        )
        async with self._answering():
            return int(await cast("Awaitable[int]", self._redis.execute_command(*command)))

    def _answering(self) -> AbstractAsyncContextManager[None]:
        return answering(self._redis, seconds=_PATIENCE_SECONDS)


@dataclass(frozen=True, slots=True)
class _Stored:
    """One host's line in Redis, and what it is, or why it is nothing."""

    member: bytes
    value: bytes
    is_live: bool
    found: SeenHost | RefusedHost


class HostReadings:
    """Reads what hosts have said, and remembers how far each was. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._settings = settings
        self._keys = settings.keys
        self._away_seconds = float(settings.manifest_ttl_seconds)
        self._seals = dict[str, TextSeal]()
        self._parsed = dict[bytes, tuple[bytes, SeenHost | RefusedHost]]()
        self._latest = dict[tuple[str, str], Announcement]()
        self._said = set[RefusedHost]()
        self._stored: tuple[_Stored, ...] = ()

    async def read(self, taken: Callable[[frozenset[str]], Awaitable[Mapping[str, str]]]) -> JudgedHosts:
        """Judge all hosts. `taken` returns, for the announced modules, why a module cannot be announced.

        Notes the hosts as gone that were silent for too long. A refused host is logged the first time.
        """
        keys = self._keys
        names = {"hosts": keys.hosts.announced, "heartbeats": keys.hosts.heartbeats, "revision": keys.modules_revision}
        answer = await self._run(HOSTS.command(**names, channel=keys.manifests_changed, ttl_ms=_TTL_MS))
        now, lines = answer[0] / 1000, [answer[at : at + 3] for at in range(1, len(answer), 3)]
        if not lines and not self._stored:
            return JudgedHosts()
        self._parsed = {line[0]: self._parsed[line[0]] for line in lines if line[0] in self._parsed}
        self._stored = tuple(self._stored_host(*line) for line in lines)
        self._forget_old(now)
        hosts, refused = list[SeenHost](), list[RefusedHost]()
        for stored in self._stored:
            if isinstance(stored.found, RefusedHost):
                refused += [stored.found] if stored.is_live else []
            else:
                current = self._not_repeated(stored.found)
                refused += [_repeated(stored.found.said)] if current is not stored.found and stored.is_live else []
                hosts.append(current)
        reasons = await taken(frozenset(host.said.module for host in hosts)) if hosts else {}
        judged = judge(hosts, now=now, taken=reasons, away_seconds=self._away_seconds)
        found = JudgedHosts(judged.modules, (*refused, *judged.refused)[:_MOST_REFUSED])
        self._say(found.refused)
        return found

    async def forget(self, judged: JudgedHosts, *, removed: str = "") -> None:
        """Remove what hosts have said that are gone, but for the last one of each module that is away, if it is not `removed`."""
        away = {name for name, module in judged.modules.items() if not module.replicas} - {removed}
        gone = list[tuple[bytes, bytes]]()
        for stored in sorted(self._stored, key=_when, reverse=True):
            if isinstance(stored.found, SeenHost) and stored.found.said.module in away:
                away.remove(stored.found.said.module)
            elif not stored.is_live:
                gone.append((stored.member, stored.value))
        if gone:
            keys = self._keys
            names = {"hosts": keys.hosts.announced, "heartbeats": keys.hosts.heartbeats}
            changes = {"revision": keys.modules_revision, "channel": keys.manifests_changed}
            await self._run(FORGET_HOSTS.command(**names, **changes, members=gone))

    def _stored_host(self, member: bytes, value: bytes, is_live: int) -> _Stored:
        known = self._parsed.get(member)
        found = self._read(member, value) if known is None or known[0] != value else known[1]
        self._parsed[member] = value, found
        if isinstance(found, SeenHost):
            found = SeenHost(found.said, found.first_ms, bool(is_live))
        return _Stored(member, value, bool(is_live), found)

    def _read(self, member: bytes, value: bytes) -> SeenHost | RefusedHost:
        module, _, host_id = member.decode(errors="replace")[:200].partition(" ")
        first, _, rest = value.decode(errors="replace").partition(" ")
        text = rest.partition(" ")[2]
        if len(text) > LONGEST_TEXT or not first.isdecimal() or len(first) > _MS_DIGITS:
            return RefusedHost(module, host_id, "", "its heartbeat is none")
        try:
            said = Announcement.model_validate_json(self._seal_of(module).read(text))
        except MessageRefused as exc:
            return RefusedHost(module, host_id, "", _signature_fault(exc))
        except ValidationError as exc:
            return RefusedHost(module, host_id, "", f"its heartbeat is wrong in {exc.error_count()} places")
        if (said.module, said.id) != (module, host_id):
            return RefusedHost(module, host_id, "", "its heartbeat is another one's")
        return SeenHost(said, int(first), is_live=False)

    def _seal_of(self, module: str) -> TextSeal:
        if module not in self._seals:
            if len(self._seals) > _MOST_SEALS:
                self._seals.clear()
            self._seals[module] = readers_seal(self._settings, module)
        return self._seals[module]

    def _not_repeated(self, host: SeenHost) -> SeenHost:
        """The host by the latest that was ever heard of it here."""
        name = host.said.module, host.said.id
        latest = self._latest.get(name)
        if latest is not None and host.said.counter < latest.counter:
            return SeenHost(latest, host.first_ms, host.is_live)
        self._latest[name] = host.said
        return host

    def _forget_old(self, now: float) -> None:
        """Forget hosts' latest heartbeats that are too old to count anyway."""
        if len(self._latest) > len(self._stored):
            self._latest = {name: said for name, said in self._latest.items() if is_timely(said, now)}

    def _say(self, refused: Sequence[RefusedHost]) -> None:
        for host in refused:
            if host not in self._said:
                _log.warning("host_refused", module=host.module, host=host.id, url=host.url, reason=host.reason)
        self._said = set(refused)

    async def _run(self, command: tuple[Any, ...]) -> Any:
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            return await cast("Awaitable[Any]", self._redis.execute_command(*command, **_AS_BYTES))


def _signature_fault(exc: MessageRefused) -> str:
    if str(exc).startswith("The message is not signed"):
        return "its heartbeat is not signed: it needs the TOOLFLEET_ANNOUNCE_KEY of its module"
    if str(exc).startswith("The message is signed"):
        return "its heartbeat is signed, and nobody can verify it here: set TOOLFLEET_SIGNING_KEY"
    return "its heartbeat was changed, or signed with another key than the TOOLFLEET_ANNOUNCE_KEY of its module"


def _repeated(said: Announcement) -> RefusedHost:
    return RefusedHost(said.module, said.id, said.url, "its heartbeat is an old one, which somebody repeats")


def _when(stored: _Stored) -> float:
    return stored.found.said.at if isinstance(stored.found, SeenHost) else 0.0


def _kept_seconds(settings: Settings) -> int:
    return int(max(settings.manifest_ttl_seconds, 2 * TTL_SECONDS)) + 1
