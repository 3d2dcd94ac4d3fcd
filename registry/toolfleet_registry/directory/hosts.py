"""Keeps the signed heartbeats of hosts in the fleet's Redis, and decides which hosts serve a module.

The host that is there longest decides what the module offers, and others count while they offer the same: in a rolling upgrade
the new version takes over when the last old host is gone, and the module has an address at each moment.

All times are by Redis's clock. If the fleet signs, a heartbeat without the signature of its module's key is ignored; so
is one older than the last one of its host, so that a replay keeps no host alive.
"""

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as NoBase64
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.contracts.message import DEFERS_BUILD
from toolfleet_registry.contracts.names import RESERVED, is_module_name
from toolfleet_registry.directory.entries import ANNOUNCE, FORGET_HOSTS, HOSTS, LEAVE, AnnouncedModule, Replica
from toolfleet_registry.errors import MessageRefused, SettingsError
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.redis.urls import is_http_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import SigningSettings, TextSeal, derived_key
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

HEARTBEAT_SECONDS = 2.0
"""How often a host says that it is there."""

TTL_SECONDS = 8.0
"""For so long a heartbeat counts: three may be missed, so that no pause of a loaded machine takes a host out."""

LONGEST_TEXT = 8192
"""Characters of a stored heartbeat, beyond which it is not read: ours have less than 1,000, and a URL."""

ANNOUNCE_VARIABLE = "TOOLFLEET_ANNOUNCE_KEY"
"""The environment variable with a host's key for heartbeats; several with commas between them, of which the first signs."""

_KEY_BYTES = 32

_CLOCK_SECONDS = 1.0  # by which two clocks may differ, and a heartbeat be under way

LATE = "its heartbeat is an old one, or of a time to come"

_PATIENCE_SECONDS = 5
_AS_BYTES = {NEVER_DECODE: True}
_TTL_MS = int(TTL_SECONDS * 1000)
_MOST_SEALS = 10_000
_MS_DIGITS = 15
_MOST_REFUSED = 100  # that are listed: a flood of them must not fill a process's memory


class Announcement(BaseModel):
    """One heartbeat of the host `id`, which serves `module` at `url`.

    `digest` is one of what it offers, so that hosts that offer the same have the same. `at` is Redis's time in seconds since
    the epoch, and `counter` grows with each heartbeat. `timeout_seconds` is the limit of its calls, `None`: that of its lane.
    `has_shared_store`: as a `Replica` has it. A reader of an earlier version ignores the fields that a later one has added.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, defer_build=DEFERS_BUILD)

    module: str
    id: str = Field(pattern="^[0-9A-Za-z_-]{1,64}$")
    url: str = Field(max_length=2048)
    digest: str = Field(max_length=100)
    at: float = Field(ge=0, allow_inf_nan=False)
    counter: int = Field(ge=0)
    has_shared_store: bool = False
    slow: bool = False
    timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @field_validator("module")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not is_module_name(name) or name in RESERVED:
            raise ValueError("no host can serve a module of this name")
        return name

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if not is_http_url(url):
            raise ValueError("a host needs an http:// or https:// URL")
        return url.rstrip("/")

    @property
    def mark(self) -> str:
        """A text that changes with every fact that the fleet must learn of at once."""
        facts = self.digest, self.has_shared_store, self.slow, self.timeout_seconds, self.url
        return "|".join(str(fact) for fact in facts).replace(" ", "%20")


def announce_key(signing_key: str, module: str) -> str:
    """Return the key with which a host signs this module's heartbeats: 43 printable characters.

    Raises `SettingsError` without the libraries.
    """
    return urlsafe_b64encode(derived_key(signing_key, _purpose(module))).rstrip(b"=").decode()


def announce_keys(signing_keys: Sequence[str], module: str) -> str:
    """Return the same for each of the fleet's keys, with commas between them: the value of a `TOOLFLEET_ANNOUNCE_KEY`."""
    return ",".join(announce_key(key, module) for key in signing_keys)


def readers_seal(settings: SigningSettings, module: str) -> TextSeal:
    """Return the seal that verifies a module's heartbeats, for processes that have the fleet's key."""
    return TextSeal(settings.signing_key, purpose=_purpose(module), old_keys=settings.signing_keys_old)


def hosts_seal(keys: str) -> TextSeal:
    """Return the seal that signs a host's heartbeats with these keys; none for "".

    Raises `SettingsError` for an invalid key.
    """
    try:
        return TextSeal.with_keys([_bytes_of(key.strip()) for key in keys.split(",") if key.strip()])
    except (NoBase64, ValueError):
        raise SettingsError(
            f"{ANNOUNCE_VARIABLE} is no key: `toolfleet modules key NAME --announce` prints the one of a module."
        ) from None


def _bytes_of(key: str) -> bytes:
    found = b64decode(f"{key}=", altchars=b"-_", validate=True)
    if len(found) != _KEY_BYTES:
        raise ValueError(len(found))
    return found


def _purpose(module: str) -> str:
    return f"announce {module}"


@dataclass(frozen=True, slots=True)
class SeenHost:
    """A host's last announcement, and when it was first heard, in ms by Redis's clock.

    `is_live`: it was heard recently.
    """

    said: Announcement
    first_ms: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class RefusedHost:
    """A host that does not count, and why, as a sentence without its subject: "serves other tools than http://…"."""

    module: str
    id: str
    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class JudgedHosts:
    """The modules that are announced, and those who announce in vain."""

    modules: Mapping[str, AnnouncedModule] = field(default_factory=dict[str, AnnouncedModule])
    refused: Sequence[RefusedHost] = ()


def judge(hosts: Iterable[SeenHost], *, now: float, taken: Mapping[str, str], away_seconds: float) -> JudgedHosts:
    """Judge all hosts at `now`, Redis's time in seconds. `taken`: why a module cannot be announced, by name.

    A module without live hosts is known as away for `away_seconds`.
    """
    modules, refused = dict[str, AnnouncedModule](), list[RefusedHost]()
    by_module = dict[str, list[SeenHost]]()
    for host in hosts:
        by_module.setdefault(host.said.module, []).append(host)
    for name, seen in sorted(by_module.items()):
        live = sorted((host for host in seen if host.is_live), key=lambda host: (host.first_ms, host.said.id))
        if name in taken:
            refused += [_refused(host.said, taken[name]) for host in live]
            continue
        timely = [host.said for host in live if is_timely(host.said, now)]
        refused += [_refused(host.said, LATE) for host in live if not is_timely(host.said, now)]
        if timely:
            modules[name] = _module(timely[0], [said for said in timely if said.digest == timely[0].digest])
            other = f"serves other tools than {timely[0].url}, which is there longer"
            refused += [_refused(said, other) for said in timely if said.digest != timely[0].digest]
        elif last := max(
            (host.said for host in seen if abs(now - host.said.at) < away_seconds), key=_age, default=None
        ):
            modules[name] = _module(last, ())
    return JudgedHosts(modules, tuple(refused))


def is_timely(said: Announcement, now: float) -> bool:
    """Return whether a heartbeat is recent, not a replayed one: the host was alive within the TTL."""
    return now - TTL_SECONDS - _CLOCK_SECONDS < said.at < now + _CLOCK_SECONDS


def _module(deciding: Announcement, counting: Sequence[Announcement]) -> AnnouncedModule:
    return AnnouncedModule(
        module=deciding.module,
        url=deciding.url,
        slow=deciding.slow,
        timeout_seconds=deciding.timeout_seconds,
        digest=deciding.digest,
        replicas=tuple(Replica(said.id, said.url, said.has_shared_store) for said in counting),
    )


def _refused(said: Announcement, reason: str) -> RefusedHost:
    return RefusedHost(said.module, said.id, said.url, reason)


def _age(said: Announcement) -> float:
    return said.at


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
        """Return the host by the latest that was ever heard of it here."""
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
        return "its heartbeat is signed and cannot be verified here: set TOOLFLEET_SIGNING_KEY"
    return "its heartbeat was changed, or signed with another key than the TOOLFLEET_ANNOUNCE_KEY of its module"


def _repeated(said: Announcement) -> RefusedHost:
    return RefusedHost(said.module, said.id, said.url, "its heartbeat is an old one that was sent again")


def _when(stored: _Stored) -> float:
    return stored.found.said.at if isinstance(stored.found, SeenHost) else 0.0


def _kept_seconds(settings: Settings) -> int:
    return int(max(settings.manifest_ttl_seconds, 2 * TTL_SECONDS)) + 1
