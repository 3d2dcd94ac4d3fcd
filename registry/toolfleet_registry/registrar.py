"""Takes what modules offer into the registry, and writes what of it is in effect beside their manifests.

The registry is asked in a thread, and by nobody else: agents and workers read manifests and verdicts only.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from toolfleet_registry.aside import aside
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.errors import FleetUnavailable, RegistryAway
from toolfleet_registry.intake import Change, Intake, Known, Offer, offers_of, take_in
from toolfleet_registry.manifests import CachedManifest, ManifestCache
from toolfleet_registry.schemas.validation import schema_fault
from toolfleet_registry.specs import ToolRegistration
from toolfleet_registry.store.port import ToolRegistry
from toolfleet_registry.verdicts import Verdict

T = TypeVar("T")

OpenRegistry = Callable[[], ToolRegistry]

_MOST_TRIES = 5  # while others change the registry at the same time, which is rare and soon over
_MOST_NAMED = 20  # tools of a kind in a line of the log

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Judged:
    """What holds for some modules as the registry was at `revision`."""

    revision: str
    intakes: Mapping[str, Intake]


class Registrar:
    """Keeps manifests, registry and verdicts in step. `open_registry` is called in a thread, for each piece of work.

    Raises `RegistryAway`, having stored nothing, when the registry does not answer: what operators have switched off must
    not come back. Raises `FleetUnavailable` when the cache's Redis does not.
    """

    def __init__(self, cache: ManifestCache, open_registry: OpenRegistry) -> None:
        self._cache = cache
        self._open_registry = open_registry

    async def take_in(self, manifests: Mapping[str, ModuleManifest]) -> dict[str, CachedManifest]:
        """Register what looks have just found, and store it with its verdicts."""
        if not manifests:
            return {}
        before = await self._cache.load(manifests)
        offers = await aside(lambda: {name: offers_of(found) for name, found in manifests.items()}, is_large=True)
        saved = dict[str, CachedManifest]()
        async with self.registry() as registry:
            for _ in range(_MOST_TRIES):
                judged = await asked(functools.partial(self._register, registry, offers, before))
                # One after the other: a connection for each module at once would be a burst for little gain.
                for name, manifest in manifests.items():
                    saved[name] = await self._cache.save(manifest, judged.intakes[name].verdicts)
                await self._tell(judged)
                before = saved
                if await asked(registry.revision) == judged.revision:  # else an operator's word may be missing
                    break
        return saved

    async def rejudge(self, registry: ToolRegistry, module: str, *, registers: bool = False) -> CachedManifest | None:
        """Judge the stored manifest of a module anew, after a change of the registry; `None` if there is none."""
        for _ in range(_MOST_TRIES):
            cached = (await self._cache.load([module])).get(module)
            if cached is None:
                return None
            offers = {module: await asyncio.to_thread(offers_of, cached.manifest)}
            work = self._register if registers else self._judge
            judged = await asked(functools.partial(work, registry, offers, {module: cached}))
            saved = await self._cache.replace(cached, judged.intakes[module].verdicts)
            if saved is not None and await asked(registry.revision) == judged.revision:
                return saved
        _log.warning("module_keeps_changing", module=module)
        return (await self._cache.load([module])).get(module)

    @asynccontextmanager
    async def registry(self) -> AsyncGenerator[ToolRegistry]:
        """The registry, for a piece of work."""
        registry = await asked(self._open_registry)
        try:
            yield registry
        finally:
            await asyncio.to_thread(registry.close)

    def _register(
        self, registry: ToolRegistry, offers: Mapping[str, list[Offer]], before: Mapping[str, CachedManifest]
    ) -> _Judged:
        """Judge, and register until nothing is left to be. The changes are those of the first judgement."""
        judged = first = self._judge(registry, offers, before)
        refused = dict[str, str]()
        for _ in range(_MOST_TRIES):
            specs = [spec for intake in judged.intakes.values() for spec in intake.register]
            gone = [name for intake in judged.intakes.values() for name in intake.forget]
            specs = [spec for spec in specs if spec.tool_name not in refused]  # such as one that cannot be read
            if not specs and not gone:
                break
            answers = registry.register_many(specs, keep_enabled=True)
            for spec, answer in zip(specs, answers, strict=True):
                if isinstance(answer, ValueError):
                    refused[spec.tool_name] = str(answer)
            for name in gone:
                registry.remove(name, unless_disabled=True)  # which somebody may have done just now
            judged = self._judge(registry, offers, before)
        intakes = {
            module: replace(_closed(intake, refused), changes=first.intakes[module].changes)
            for module, intake in judged.intakes.items()
        }
        return _Judged(judged.revision, intakes)

    def _judge(
        self, registry: ToolRegistry, offers: Mapping[str, list[Offer]], before: Mapping[str, CachedManifest]
    ) -> _Judged:
        revision = registry.revision()  # first: what changes after it is seen in a later one
        registrations = dict[str, dict[str, ToolRegistration]]()
        for registration in registry.list_all(include_disabled=True):
            name = registration.spec.tool_name
            registrations.setdefault(name.partition(".")[0], {})[name] = registration
        pins = registry.pins()
        intakes = {
            module: take_in(
                offered, _known(registrations.get(module, {}), pins.get(module), before.get(module)), schema_fault
            )
            for module, offered in offers.items()
        }
        return _Judged(revision, intakes)

    async def _tell(self, judged: _Judged) -> None:
        """Log and count what has changed."""
        total = Counter[str]()
        for module, intake in judged.intakes.items():
            kinds = Counter(change.kind for change in intake.changes)
            total += kinds
            faults = {name: verdict.fault for name, verdict in intake.verdicts.items() if verdict.fault is not None}
            if faults:
                _log.warning("tools_closed", module=module, tools=dict(list(faults.items())[:_MOST_NAMED]))
            if kinds:
                withheld = sum(change.is_withheld for change in intake.changes)
                named = {kind: _named(intake.changes, kind) for kind in kinds}
                say = _log.warning if withheld or kinds["drifted"] else _log.info
                say("tools_changed", module=module, changes=dict(kinds), withheld=withheld, tools=named)
        if total:
            await self._cache.count(total)


async def asked(work: Callable[[], T]) -> T:
    """Ask the registry in a thread. Raises `RegistryAway` if it does not answer."""
    try:
        return await asyncio.to_thread(work)
    except FleetUnavailable as exc:
        raise RegistryAway(f"The registry is away: {exc}") from exc


def _known(
    registrations: Mapping[str, ToolRegistration], pins: Mapping[str, str] | None, before: CachedManifest | None
) -> Known:
    if before is None:
        return Known(registrations, pins)
    return Known(registrations, pins, frozenset(tool.name for tool in before.manifest.tools), before.verdicts)


def _closed(intake: Intake, refused: Mapping[str, str]) -> Intake:
    """Without the tools that the registry would not take: whether they are disabled nobody knows."""
    left = {spec.tool_name for spec in intake.register} & refused.keys()
    closed = {name: Verdict(fault=refused[name].rstrip(".")) for name in left}
    return replace(intake, verdicts=intake.verdicts | closed) if closed else intake


def _named(changes: list[Change], kind: str) -> list[str]:
    return [change.tool_name for change in changes if change.kind == kind][:_MOST_NAMED]
