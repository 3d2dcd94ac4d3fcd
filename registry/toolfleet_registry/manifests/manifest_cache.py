"""Caches manifests in Redis: each module's last good one with its verdicts, which every process of the fleet reads.

They travel with the manifest, in the same value of the cache, so that agents and workers need no other look at
the registry.

A value is the manifest as its module sends it, so that older readers of the same key understand it, with two more
fields: `discovered_at` (seconds since the epoch), and `verdicts`, what of it is not in effect as it stands, if there is
any such thing. In the same value, so that a manifest, its age and its verdicts never part.
"""

import functools
import hashlib
import json
import math
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

from pydantic import TypeAdapter, ValidationError
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.admission_rules import admit, read_document
from toolfleet_registry.contracts import Message, ModuleManifest, ToolDefinition
from toolfleet_registry.contracts.names import name_fault
from toolfleet_registry.contracts.tool_definition import ToolLines, joined
from toolfleet_registry.errors import ManifestRefused
from toolfleet_registry.lua_files import script
from toolfleet_registry.permissions import Access, level_of_tool
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.specs import effect_of
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.http_bodies import MAX_DEPTH
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.offload import aside

_log = get_logger(__name__)

Pending: TypeAlias = Literal["drifted", "withheld", "rolled_back", "changed"]
"""Why what a module offers is not in effect: it is other content under the same version, its module is pinned, or an operator has gone back.
`changed`: it is in effect, and no operator has accepted it."""

DISCOVERED_AT = "discovered_at"
VERDICTS = "verdicts"

# A command takes a millisecond; redis-py alone would wait this long several times over, for it tries again.
_PATIENCE_SECONDS = 5

# However the client was built: one value that is no text would else fail the reading of all.
_AS_BYTES = {NEVER_DECODE: True}

# Of bytes, and of tools about that large: to read or write them takes some 10 ms, which no event loop should wait.
_LARGE = 200_000
_MANY = 200

_SAVE = script("manifests/save")
"""Returns 1 and what was there, or 0 and nothing."""

_REPLACE = script("manifests/replace")
"""Returns 1 if it has happened."""

# What is kept of a tool stands a level deeper than the tool stood in its manifest; of an earlier release's, two may be.
_DEPTH = MAX_DEPTH + 2

_WHATEVER = "*"
_MOST_AUDITED = 20  # tools of a module that have lines in the audit for one change of it


class ToolOverride(Message):
    """The exceptions for one tool. A tool without any has no override.

    `is_disabled`: an operator has switched it off. `is_withheld`: its module is pinned, and the offer is not approved.
    `kept`: the offer has the version of the registered tool and different content, or an operator has rolled the tool
    back, so that this one, the registered, stays in effect. `fault`: what is wrong with it. `digest`: of the offer, if
    it is not approved.
    """

    is_disabled: bool = False
    is_withheld: bool = False
    kept: ToolDefinition | None = None
    fault: str | None = None
    digest: str | None = None


Verdicts: TypeAlias = Mapping[str, ToolOverride]
"""Tool name -> what is not as its manifest says."""


@dataclass(frozen=True, slots=True)
class SeenTool:
    """A tool as it is in effect: the definition that holds, and who may use it."""

    definition: ToolDefinition
    access: Access


def pending_because(offered: ToolDefinition, verdict: ToolOverride) -> Pending | None:
    """Return why an offer is not in effect and waits for an approval; `None` if it does not."""
    if verdict.digest is None:
        return None
    if verdict.is_withheld:
        return "withheld"
    kept = verdict.kept
    # Without versions the content names them: it cannot differ under the same one.
    is_rolled_back = kept is not None and (not offered.version or kept.version != offered.version)
    return "rolled_back" if is_rolled_back else "drifted"


def seen_tools(manifest: ModuleManifest, verdicts: Verdicts, own: ToolLines | None = None) -> Iterator[SeenTool]:
    """Yield the manifest's tools as they are in effect, with settings applied: stored ones, and this process's `own`."""
    module = manifest.module_name
    for offered in manifest.tools:
        verdict = verdicts.get(offered.name)
        tool = offered if verdict is None or verdict.kept is None else verdict.kept
        if (
            tool is not offered and offered.approval
        ):  # what its author asks for now holds at once: people are asked rather than not
            tool = tool.model_copy(update={"approval": joined(tool.approval, offered.approval)})
        for lines in (manifest.lines, own):
            tool = tool if lines is None else lines.on(tool, effect_of(tool))
        closed = closed_because(tool.name, verdict or _NOTHING)
        yield SeenTool(tool, Access(tool.name, module, tool.required_permission, closed))


def broken_tools(manifest: ModuleManifest, verdicts: Verdicts) -> tuple[str, ...]:
    """Return the tools that cannot be used because of their own definitions, sorted."""
    faulty = {name for name, verdict in verdicts.items() if verdict.fault is not None}
    faulty |= {tool.name for tool in manifest.tools if name_fault(tool.name) is not None}
    seen = seen_tools(manifest, verdicts)
    return tuple(
        sorted(
            tool.access.tool_name
            for tool in seen
            if level_of_tool(tool.access.required_permission) is None or tool.access.tool_name in faulty
        )
    )


def closed_because(tool_name: str, verdict: ToolOverride) -> str | None:
    """Return why no caller may use the tool now, or `None`."""
    if verdict.is_disabled:
        return f"Tool {tool_name!r} is disabled by an operator."
    if verdict.is_withheld:
        return f"Tool {tool_name!r} is withheld: no operator has approved what its module offers now."
    fault = verdict.fault or name_fault(tool_name)
    return None if fault is None else f"Tool {tool_name!r} is closed: {fault}."


_NOTHING = ToolOverride.model_construct()  # as its model says; validated it would be built by an import


@functools.cache
def _verdicts() -> TypeAdapter[dict[str, ToolOverride]]:
    return TypeAdapter(dict[str, ToolOverride])


@dataclass(frozen=True, slots=True)
class CachedManifest:
    """A module's last good manifest, and what of it is not in effect. `mark` tells the stored value from others.

    `discovered_at` is `None` where another program wrote it without. `is_kept`: it has expired, and this is what the
    registry keeps of it.
    """

    manifest: ModuleManifest
    discovered_at: float | None
    verdicts: Verdicts = field(default_factory=dict[str, ToolOverride])
    mark: str = field(default="", compare=False, repr=False)
    is_kept: bool = False

    @property
    def age_seconds(self) -> float | None:
        """The age of its discovery; the clocks of two machines may differ, so it is never negative."""
        return None if self.discovered_at is None else max(0.0, fleet_clock.now() - self.discovered_at)


@dataclass(frozen=True, slots=True)
class Successor:
    """A manifest just discovered, and the mark of the stored one that it replaces: '' for none."""

    manifest: ModuleManifest
    verdicts: Verdicts
    expected: str

    @classmethod
    def of(cls, before: CachedManifest | None, manifest: ModuleManifest, verdicts: Verdicts) -> "Successor":
        """Return the successor of the manifest that was loaded `before`, `None` if there was none."""
        return cls(manifest, verdicts, "" if before is None else before.mark)


class ManifestCache:
    """Last good manifests by module. Raises `FleetUnavailable` when Redis does not answer within 5 s.

    A manifest is read again only when it has changed; large ones are read and written in a thread.
    """

    def __init__(self, redis: Redis, *, ttl_seconds: float, keys: Keys = Keys()) -> None:  # noqa: B008 - it is frozen
        self._redis = redis
        self._keys = keys
        self._ttl_seconds = math.ceil(ttl_seconds)
        self._seen: dict[str, CachedManifest] = {}

    async def check(self) -> None:
        """Do nothing, but find out whether Redis answers."""
        async with self._answering():
            await self._redis.ping()

    async def save(self, manifest: ModuleManifest, verdicts: Verdicts | None = None) -> CachedManifest:
        """Store a manifest just discovered, replacing any other, and announce it on `keys.manifests_changed` if it is new."""
        (saved,) = await self.succeed([Successor(manifest, verdicts or {}, expected=_WHATEVER)])
        assert saved is not None
        return saved

    async def succeed(self, successors: Sequence["Successor"]) -> list[CachedManifest | None]:
        """Store each manifest as `save` does, if the stored one is the one it replaces; otherwise return `None` in its place."""
        at = fleet_clock.now()
        is_large = sum(1 + len(one.manifest.tools) for one in successors) > _MANY
        written = await aside(
            lambda: [_written(one.manifest, one.verdicts, at) for one in successors], is_large=is_large
        )
        async with self._answering(), self._redis.pipeline(transaction=False) as pipeline:
            for one, (_, value) in zip(successors, written, strict=True):
                # What was replaced comes back in the same step, so that of two writers none misses a change.
                key = self._keys.module_manifest(one.manifest.module_name)
                command = _SAVE.command(manifest=key, expected=one.expected, value=value, seconds=self._ttl_seconds)
                pipeline.execute_command(*command, **_AS_BYTES)
            answers = cast("list[tuple[int, bytes]]", await pipeline.execute())
        replaced = [before if is_saved else None for is_saved, before in answers]
        changed = await aside(lambda: _changed(written, replaced), is_large=is_large)
        await self.announce(*(successors[place].manifest.module_name for place in changed))
        return [
            None if before is None else self._remember(CachedManifest(one.manifest, at, one.verdicts, _mark(value)))
            for one, (_, value), before in zip(successors, written, replaced, strict=True)
        ]

    async def replace(self, cached: CachedManifest, verdicts: Verdicts) -> CachedManifest | None:
        """Store other verdicts on a manifest that was loaded, and announce it; `None` if another one is there by now."""
        manifest, at = cached.manifest, cached.discovered_at
        _, value = await aside(lambda: _written(manifest, verdicts, at), is_large=len(manifest.tools) > _MANY)
        command = _REPLACE.command(
            manifest=self._keys.module_manifest(manifest.module_name),
            revision=self._keys.manifests_revision,
            expected=cached.mark,
            value=value,
            channel=self._keys.manifests_changed,
            module=manifest.module_name,
        )
        async with self._answering():
            replaced = await cast("Awaitable[int]", self._redis.execute_command(*command))
        return self._remember(CachedManifest(manifest, at, verdicts, _mark(value))) if replaced else None

    async def renew(self, module: str) -> bool:
        """Let the last good manifest live on unchanged after a failed look. Returns whether there is one."""
        async with self._answering():
            return bool(await self._redis.expire(self._keys.module_manifest(module), self._ttl_seconds))

    async def renew_all(self, modules: Iterable[str]) -> None:
        """Renew the manifests of several modules in one round trip."""
        async with self._answering(), self._redis.pipeline(transaction=False) as pipeline:
            for module in modules:
                pipeline.expire(self._keys.module_manifest(module), self._ttl_seconds)
            await pipeline.execute()

    async def load(self, modules: Iterable[str]) -> dict[str, CachedManifest]:
        """Return the manifests that there are of these modules. An entry that breaks a rule is skipped with a warning."""
        names = list(modules)
        if not names:
            return {}
        async with self._answering():
            answer = await self._redis.execute_command("MGET", *map(self._keys.module_manifest, names), **_AS_BYTES)
        values = cast("list[bytes | None]", answer)
        there = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        found = await aside(lambda: self._read_all(there), is_large=sum(map(len, there.values())) > _LARGE)
        return {name: self._remember(cached) for name, cached in found.items() if cached is not None}

    async def announce(self, *modules: str) -> None:
        """Have all processes read these modules again: something about them has changed, here or elsewhere."""
        if not modules:
            return
        async with self._answering(), self._redis.pipeline(transaction=False) as pipeline:
            pipeline.incr(self._keys.manifests_revision)
            for module in modules:
                pipeline.publish(self._keys.manifests_changed, module)
            await pipeline.execute()

    async def revision(self) -> int:
        """Return a number that changes with every change of the stored manifests."""
        async with self._answering():
            return int(await self._redis.get(self._keys.manifests_revision) or 0)

    async def count(self, changes: Mapping[str, int]) -> None:
        """Add to the numbers of changes that looks have found, by kind."""
        async with self._answering(), self._redis.pipeline(transaction=False) as pipeline:
            for kind, number in changes.items():
                pipeline.hincrby(self._keys.tool_changes, kind, number)
            await pipeline.execute()

    async def counted(self) -> dict[str, int]:
        """These numbers: of all time, by kind."""
        async with self._answering():
            answer = await cast("Awaitable[dict[Any, Any]]", self._redis.hgetall(self._keys.tool_changes))
        return {kind if isinstance(kind, str) else kind.decode(): int(number) for kind, number in answer.items()}

    async def note_changes(self, changes: Mapping[str, tuple[str, str]]) -> None:
        """Note which definitions tools had before they changed, by name: the digest before and after. Not over an earlier one.

        The first change of a tool that was accepted has a line in the audit. It is called before a change takes effect, and
        may come twice for one.
        """
        names = list(changes)
        async with self._answering():
            answer = await cast("Awaitable[list[Any]]", self._redis.hmget(self._keys.accepted_tools, names))
            known = dict(zip(names, map(_text, answer), strict=True))
            async with self._redis.pipeline(transaction=False) as pipeline:
                audited = 0
                for name, (before, after) in changes.items():
                    pipeline.hsetnx(self._keys.accepted_tools, name, before)
                    if known[name] in {None, before} and (audited := audited + 1) <= _MOST_AUDITED:
                        line = {"change": "tool_changed", "tool": name, "ts": fleet_clock.now(), "before": before}
                        line |= {"digest": after, "by": f"module {name.partition('.')[0]}", "outcome": "success"}
                        pipeline.xadd(self._keys.audit, {"line": json.dumps(line)})  # those of calls bound the stream
                await pipeline.execute()

    async def accept(self, digests: Mapping[str, str]) -> None:
        """Note that an operator has accepted these definitions, by the tool's name."""
        if digests:
            async with self._answering():
                await self._redis.hset(
                    self._keys.accepted_tools, items=[text for item in digests.items() for text in item]
                )

    async def accepted(self) -> dict[str, str]:
        """Return the digests of the definitions that were accepted last, of tools that have changed since they were first taken in."""
        async with self._answering():
            answer = await cast("Awaitable[dict[Any, Any]]", self._redis.hgetall(self._keys.accepted_tools))
        return {str(_text(name)): str(_text(digest)) for name, digest in answer.items()}

    async def forget_accepted(self, tool_name: str) -> None:
        """Know nothing of a tool's earlier definitions."""
        async with self._answering():
            await self._redis.hdel(self._keys.accepted_tools, tool_name)

    async def fleets_registry(self, identity: str, *, replaces: bool = False) -> str:
        """Return the id of the fleet's registry: set to this one if there is none yet, or if it `replaces` the other."""
        name = self._keys.registry_identity
        async with self._answering():
            await self._redis.set(name, identity, nx=not replaces)
            noted = await self._redis.get(name)
        return noted.decode() if isinstance(noted, bytes) else str(noted)

    def _read_all(self, values: Mapping[str, bytes]) -> dict[str, CachedManifest | None]:
        found = dict[str, CachedManifest | None]()
        for module, value in values.items():
            known, mark = self._seen.get(module), _mark(value)
            found[module] = known if known is not None and known.mark == mark else _read(module, value, mark)
        return found

    def _remember(self, cached: CachedManifest) -> CachedManifest:
        self._seen[cached.manifest.module_name] = cached
        return cached

    def _answering(self) -> AbstractAsyncContextManager[None]:
        return answering(self._redis, seconds=_PATIENCE_SECONDS)


def kept_text(cached: CachedManifest) -> str:
    """Return the text of a manifest for the registry: the stored one, without the time of its discovery."""
    return json.dumps(_content(cached.manifest, cached.verdicts))


def read_kept(module: str, text: str) -> CachedManifest | None:
    """Return a manifest that the registry has kept; `None`, with a warning, if it breaks a rule."""
    cached = _read(module, text.encode(), "")
    return None if cached is None else replace(cached, is_kept=True)


def _content(manifest: ModuleManifest, verdicts: Verdicts) -> dict[str, Any]:
    content = manifest.model_dump(mode="json", exclude_none=True)
    if verdicts:
        content[VERDICTS] = _verdicts().dump_python(dict(verdicts), mode="json", exclude_defaults=True)
    return content


def _written(manifest: ModuleManifest, verdicts: Verdicts, at: float | None) -> tuple[dict[str, Any], bytes]:
    """Return the content, and the whole value."""
    content = _content(manifest, verdicts)
    return content, json.dumps(content if at is None else {**content, DISCOVERED_AT: at}).encode()


def _read(module: str, value: bytes, mark: str) -> CachedManifest | None:
    try:
        document = read_document(value, depth=_DEPTH)
        manifest = admit(module, document)
        verdicts = _verdicts_in(document)
    except ManifestRefused as exc:
        _log.warning("manifest_cache_unreadable", module=module, error=str(exc))
        return None
    at = document.get(DISCOVERED_AT)
    return CachedManifest(manifest, at if isinstance(at, float) else None, verdicts, mark)


def _verdicts_in(document: Mapping[str, Any]) -> dict[str, ToolOverride]:
    """Parse the verdicts. Fails closed: a manifest with unreadable verdicts is refused. Raises `ManifestRefused`."""
    try:
        kept = document.get(VERDICTS, {})
        verdicts: dict[str, ToolOverride] = {} if kept == {} else _verdicts().validate_python(kept)
    except ValidationError as exc:
        raise ManifestRefused(f"verdicts are wrong in {exc.error_count()} places") from exc
    if any(verdict.kept is not None and verdict.kept.name != name for name, verdict in verdicts.items()):
        raise ManifestRefused("verdicts keep a tool under another's name")
    return verdicts


def _changed(written: Sequence[tuple[Mapping[str, Any], bytes]], replaced: Sequence[bytes | None]) -> list[int]:
    """Return the places of those that say something else than what they have replaced; `None` where they were not stored."""
    pairs = enumerate(zip(written, replaced, strict=True))
    return [at for at, ((content, _), before) in pairs if before is not None and _content_of(before) != content]


def _content_of(value: bytes) -> Mapping[str, Any] | None:
    try:
        document = read_document(value, depth=_DEPTH)
    except ManifestRefused:
        return None
    document.pop(DISCOVERED_AT, None)
    return document


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _mark(value: bytes) -> str:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest()  # as Redis's scripts can make it
