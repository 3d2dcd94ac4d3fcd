"""Keeps the directory of modules in the fleet's Redis, for all processes of a fleet, and why a module could not be asked.

Workers and beat add the modules of their settings, and repeat this every few seconds. Operators add and remove others
while the fleet runs. If the fleet signs, an unsigned entry is ignored and reported.
"""

import functools
import hashlib
import math
import re
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.directory.entries import ANNOUNCED, FEED, REPLACE, ModuleEntry, plain_url
from toolfleet_registry.directory.hosts import HostReadings, JudgedHosts
from toolfleet_registry.directory.requests import RequestedProbes
from toolfleet_registry.errors import MessageRefused
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.signing import TextSeal
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

_PATIENCE_SECONDS = 5
_AS_BYTES = {NEVER_DECODE: True}

_ANSWERED = r"answered with status (\d+)"

LOCAL_FAULT = "TOOLFLEET_LOCAL_TOOLS: "
"""How the error of a look begins that a worker has made at itself: some of its own functions cannot be imported."""

FEED_SECONDS = 10.0
"""How often a process says again what its settings name."""

_COUNTS_SECONDS = 25  # two feedings may be missed, and then its process has died
_ANYBODY = "*"  # is fed by any feeding process
_AT_ONCE = 500  # modules of one script: Redis is at them for about a millisecond


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """The reason why a module's last probe failed, and its time."""

    error: str
    at: float


@functools.cache
def _failure() -> TypeAdapter[ProbeFailure]:
    return TypeAdapter(ProbeFailure)


class ProbeFailures:
    """The last failed probes, in Redis. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, keys: Keys, *, ttl_seconds: float) -> None:
        self._redis = redis
        self._key = keys.probe_failures
        self._ttl_seconds = math.ceil(ttl_seconds)

    async def note(self, failed: Mapping[str, ProbeFailure], well: Collection[str]) -> None:
        """Note what came of looks: which have failed, and which went well."""
        if not failed and not well:
            return
        async with (
            answering(self._redis, seconds=_PATIENCE_SECONDS),
            self._redis.pipeline(transaction=True) as pipeline,
        ):
            if well:
                pipeline.hdel(self._key, *well)
            if failed:
                pipeline.hset(self._key, mapping={name: _failure().dump_json(one) for name, one in failed.items()})
            pipeline.expire(self._key, self._ttl_seconds)
            await pipeline.execute()

    async def read(self) -> dict[str, ProbeFailure]:
        """Return the latest failure of each module that failed its last probe. Unreadable ones are left out."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            answer = await self._redis.execute_command("HGETALL", self._key, **_AS_BYTES)
        found = dict[str, ProbeFailure]()
        for name, text in cast("Mapping[bytes, bytes]", answer).items():
            try:
                found[name.decode(errors="replace")] = _failure().validate_json(text)
            except ValidationError:
                continue
        return found


def state_without_manifest(error: str | None) -> str:
    """Return the state of a module that never had a manifest: `unknown` without a probe, `answers 404` and the like, or `unreachable`.

    Local tools are `failed`. `error`: why its last probe failed.
    """
    if error is None:
        return "unknown"
    if error.startswith(LOCAL_FAULT):
        return "failed"
    answered = re.match(_ANSWERED, error)
    return f"answers {answered[1]}" if answered else "unreachable"


# However the client was built: one value that is no text would else fail the reading of all.


@dataclass(frozen=True, slots=True)
class Listing:
    """The directory at one moment: `stored` entries, and announcements of `hosts`.

    `ignored`: why a stored entry does not count, by module.
    """

    stored: Mapping[str, ModuleEntry] = field(default_factory=dict[str, ModuleEntry])
    ignored: Mapping[str, str] = field(default_factory=dict[str, str])
    hosts: JudgedHosts = field(default_factory=JudgedHosts)

    @property
    def entries(self) -> dict[str, ModuleEntry]:
        """The module of each name."""
        return {**self.stored, **self.hosts.modules}


class ModuleDirectory:
    """The directory of the fleet that the settings name. Raises `FleetUnavailable` when Redis does not answer within 5 s.

    Raises `SettingsError` when it is made with a signing key and without the libraries for that.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._keys, self._own = settings.keys, settings.open_modules
        self._seal = TextSeal(settings.signing_key, purpose="module", old_keys=settings.signing_keys_old)
        self.failures = ProbeFailures(redis, settings.keys, ttl_seconds=settings.manifest_ttl_seconds)
        """Why the last looks at modules have failed."""
        self.requested_probes = RequestedProbes(redis, settings.keys)
        """What has workers ask the modules."""
        self._hosts = HostReadings(redis, settings)
        self._signed_again = dict[str, str]()
        self._read_before = dict[str, tuple[str, ModuleEntry | str]]()

    async def revision(self) -> tuple[str, int]:
        """Return a text that changes with the directory ("" before the first change, or if Redis has lost it), and the number of requested probes."""
        names = self._keys.modules_revision, self._keys.probe("asked")
        async with self._answering():
            answer = await self._redis.execute_command("MGET", *names, **_AS_BYTES)
        revision, asked = cast("list[bytes | None]", answer)
        return (revision or b"").decode(errors="replace"), int(asked or 0)

    async def read(self) -> Listing:
        """Return all that is there. What does not count is logged when it is seen first."""
        entries, ignored = dict[str, ModuleEntry](), dict[str, str]()
        for module, text in (await self.texts()).items():
            found = self._entry(module, text)
            if isinstance(found, ModuleEntry):
                entries[module] = found
            else:
                ignored[module] = found
        self._read_before = {module: self._read_before[module] for module in (*entries, *ignored)}
        return Listing(entries, ignored, await self.read_hosts(entries))

    async def read_hosts(self, stored: Mapping[str, ModuleEntry]) -> JudgedHosts:
        """Read the hosts' announcements.

        A module with a stored entry is not theirs, unless it was removed or only settings of dead processes name it.
        """

        async def taken(modules: frozenset[str]) -> dict[str, str]:
            there = [stored[name] for name in modules & stored.keys() if not stored[name].is_removed]
            fed = await self.fed() if any(entry.is_static for entry in there) else {}
            return {entry.module: _claim(entry) for entry in there if not entry.is_static or entry.module in fed}

        return await self._hosts.read(taken)

    async def forget_hosts(self, judged: JudgedHosts, *, removed: str = "") -> None:
        """Remove what hosts have said that are gone, but for the last one of each module that is away, if it is not `removed`."""
        await self._hosts.forget(judged, removed=removed)

    async def texts(self) -> dict[str, str]:
        """Return the stored texts by module, valid or not."""
        async with self._answering():
            answer = await self._redis.execute_command("HGETALL", self._keys.modules, **_AS_BYTES)
        pairs = cast("Mapping[bytes, bytes]", answer)
        return {name.decode(errors="replace"): text.decode(errors="replace") for name, text in pairs.items()}

    async def texts_of(self, entries: Mapping[str, ModuleEntry]) -> dict[str, str]:
        """Return the stored texts of those entries that were added."""
        texts = await self.texts()
        return {name: texts[name] for name, entry in entries.items() if not entry.is_static and name in texts}

    async def entry(self, module: str) -> tuple[str, ModuleEntry | None]:
        """Return a module's stored text, "" if there is none, and its entry if that is valid."""
        async with self._answering():
            answer = await self._redis.execute_command("HGET", self._keys.modules, module, **_AS_BYTES)
        text = "" if answer is None else cast("bytes", answer).decode(errors="replace")
        found = self._entry(module, text) if text else None
        return text, found if isinstance(found, ModuleEntry) else None

    async def replace(self, module: str, expected: str, entry: ModuleEntry | None) -> bool:
        """Store an entry, or remove it, if the stored text is still the one that was read; announce the change."""
        text = "" if entry is None else self._seal.sign(entry.text())
        return await self._replace(module, expected, text)

    async def restore(self, module: str, text: str) -> None:
        """Store a text as it was stored before, signature and all, unless there is another one by now."""
        await self._replace(module, "", text)

    async def forget(self, module: str, entry: ModuleEntry) -> None:
        """Remove a module's stored entry, if it is this one."""
        text, present = await self.entry(module)
        if present == entry:
            await self.replace(module, text, None)

    async def sign_again(self) -> None:
        """Sign with today's key what was signed with an older one, so that this one can be given up.

        Each text once: while a fleet goes from one key to the next, others take the newer one for the older.
        """
        for module, text in (await self.texts()).items():
            if not isinstance(self._entry(module, text), ModuleEntry):
                continue
            content = self._seal.read(text)  # and not the entry: a later version may have put more in
            if (signed := self._seal.sign(content)) != text and self._signed_again.get(module) != content:
                self._signed_again[module] = content
                await self._replace(module, text, signed)

    async def feed(self, entries: Sequence[ModuleEntry]) -> dict[str, ModuleEntry]:
        """Put in what a process's settings name. Returns the entries of others that say something else, and stay."""
        stay = dict[str, ModuleEntry]()
        for start in range(0, max(len(entries), 1), _AT_ONCE):  # also with none: a follower is there
            part = entries[start : start + _AT_ONCE]
            for entry, there in zip(part, await self._feed(part), strict=True):
                if there and (other := await self._judge_other(entry, there)) is not None:
                    stay[entry.module] = other
        return stay

    async def leave(self, entries: Sequence[ModuleEntry]) -> None:
        """Feed these no more: the process ends. Others that have the same settings say so again soon."""
        members = [f"{entry.module} {_mark(self._seal.sign(entry.text()))}" for entry in entries]
        for start in range(0, len(members), _AT_ONCE):
            async with self._answering():
                await self._redis.zrem(self._keys.module_feeds, *members[start : start + _AT_ONCE])

    async def fed(self) -> dict[str, int]:
        """Return the modules that processes have in their settings now, and how many different entries they have of each."""
        counts = dict[str, int]()
        for member in await self._fed():
            module = member.partition(" ")[0]
            counts[module] = counts.get(module, 0) + 1
        counts.pop(_ANYBODY, None)
        return counts

    async def is_tended(self) -> bool:
        """Return whether workers or a beat are alive that follow the directory, and probe modules for others."""
        return bool(await self._fed())

    async def _fed(self) -> list[str]:
        now, _ = await self._run(("TIME",))
        answer = await self._run(("ZRANGEBYSCORE", self._keys.module_feeds, now - _COUNTS_SECONDS + 1, "+inf"))
        return [member.decode(errors="replace") for member in cast("list[bytes]", answer)]

    @property
    def _places(self) -> dict[str, str]:
        keys = self._keys
        return {"directory": keys.modules, "revision": keys.modules_revision, "channel": keys.manifests_changed}

    async def _replace(self, module: str, expected: str, text: str) -> bool:
        command = REPLACE.command(**self._places, module=module, expected=expected, entry=text)
        return bool(await self._run(command))

    async def _feed(self, entries: Sequence[ModuleEntry]) -> list[str]:
        texts = [(entry.module, self._seal.sign(entry.text())) for entry in entries]
        modules = [(module, text, _mark(text)) for module, text in texts]
        feeds = {"feeds": self._keys.module_feeds, "counts_s": _COUNTS_SECONDS}
        answer = await self._run(FEED.command(**self._places, **feeds, modules=modules))
        return [there.decode(errors="replace") for there in cast("list[bytes]", answer)]

    async def _judge_other(self, own: ModuleEntry, there: str) -> ModuleEntry | None:
        """Return the entry that stays instead of our own, if any does; the one that was there is none of ours to believe else."""
        text, present = await self.entry(own.module)
        if present is None and text:  # a forgery, or signed with another key: it protects nothing
            await self.replace(own.module, text, own)
            return None
        if text == there and present is not None and present.is_static and present.text() != own.text():
            return present
        before = self._entry(own.module, there)
        if isinstance(before, ModuleEntry) and not before.is_static and not before.is_removed:
            _log.warning("module_of_settings_replaces_added", module=own.module)
        return None

    def _entry(self, module: str, text: str) -> ModuleEntry | str:
        """Return the entry that a text is, or why it does not count."""
        known = self._read_before.get(module)
        if known is not None and known[0] == text:
            return known[1]
        found = _read(self._seal, module, text)
        if isinstance(found, str):
            _log.warning("module_entry_ignored", module=module, reason=found)
        elif module in self._own and not (found.is_static or found.is_removed):  # added before the name was reserved
            _log.warning("module_entry_unused", module=module, reason="its name is that of the fleet's own module")
        self._read_before[module] = text, found
        return found

    async def _run(self, command: tuple[Any, ...]) -> Any:
        async with self._answering():
            return await cast("Awaitable[Any]", self._redis.execute_command(*command, **_AS_BYTES))

    def _answering(self) -> AbstractAsyncContextManager[None]:
        return answering(self._redis, seconds=_PATIENCE_SECONDS)


def _read(seal: TextSeal, module: str, text: str) -> ModuleEntry | str:
    try:
        entry = ModuleEntry.model_validate_json(seal.read(text))
    except MessageRefused as exc:
        return str(exc).replace("The message", "Its entry")
    except ValidationError as exc:
        return f"its entry is wrong in {exc.error_count()} places"
    if entry.origin == ANNOUNCED:
        return "its entry says that it was announced, and no such entry is stored"
    return entry if entry.module == module else "its entry is another module's"


def _claim(entry: ModuleEntry) -> str:
    if entry.is_static:
        return "the settings of workers or beat have this module"
    return f"this module was added at {plain_url(entry.url or '-')}"


def _mark(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]  # as Redis's scripts can make it
