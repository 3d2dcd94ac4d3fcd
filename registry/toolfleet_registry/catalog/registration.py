"""Registers what modules offer, some dozens at a time, and writes the verdicts in effect next to their manifests.

The registry is asked in a thread. Agents and workers read manifests with their verdicts from the cache, or expired ones
from the registry through `manifest_reader`.

Many together, because every question to Redis and every hop into a thread would else be made for each of thousands of
modules.
"""

import asyncio
import functools
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from toolfleet_registry.catalog.registration_plan import (
    ModuleRegistration,
    ModuleTooCostly,
    Moment,
    PlannedChange,
    RegistrationPlan,
    moment_of,
    register_together,
)
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.contracts.tool_definition import ToolLines
from toolfleet_registry.errors import FleetUnavailable, RegistryAway
from toolfleet_registry.manifests.manifest_cache import CachedManifest, ManifestCache, Successor, kept_text
from toolfleet_registry.permissions import broken_because
from toolfleet_registry.specs import ToolFinding
from toolfleet_registry.store.registry import ToolRegistry
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

OpenRegistry = Callable[[], ToolRegistry]

_OTHER_REGISTRY = (
    "The registry here is not this fleet's: TOOLFLEET_REGISTRY_URL must be the same in all its processes "
    "(`toolfleet tools adopt-registry` makes the one here the fleet's)."
)

T = TypeVar("T")

MOST_TRIES = 5  # while others change the registry at the same time, which is rare and soon over

_MOST_NAMED = 20  # tools of a kind in a line of the log

# To judge a module: first each gets a little, so that none waits for a costly one; then the costly ones get the rest.
TURN_SECONDS = (0.5, 4.5)

_SECONDS_IN_ALL = 12  # less than a refresh has, so that what did not get its turn is still told

_AT_ONCE = 6  # batches: most of each is waiting for Redis or the registry, in a thread

# A batch ends with the one that comes first.
_BATCH = 32  # modules: ten times as many would save no time

_BATCH_TOOLS = 200  # of large modules: a batch is written in one go

_BATCH_SECONDS = 0.5  # of judging


@dataclass(frozen=True, slots=True)
class TakenIn:
    """The result of probes, by module: the stored manifest, or why the last good one still holds."""

    saved: dict[str, CachedManifest] = field(default_factory=dict[str, CachedManifest])
    errors: dict[str, str] = field(default_factory=dict[str, str])

    def report(self, turn: ModuleRegistration, exc: Exception) -> None:
        """A defect that one module brings out must not hide the others."""
        _log.error("module_not_taken_in", module=turn.module, exc_info=exc)
        self.errors[turn.module] = f"what it offers cannot be taken in: {type(exc).__name__}"


class Registrar:
    """Keeps manifests, registry and verdicts in step. `open_registry` is called in a thread, for each operation.

    Raises `RegistryAway`, storing nothing more, when the registry does not answer, or is not the fleet's: what
    operators have switched off must not come back. `lines` are the settings' overrides for modules' tools, `None` in a
    process whose settings do not count: stored ones stay. Raises `FleetUnavailable` when the cache's Redis does not
    answer.
    """

    def __init__(
        self, cache: ManifestCache, open_registry: OpenRegistry, lines: Mapping[str, ToolLines] | None = None
    ) -> None:
        self._cache = cache
        self._open_registry = open_registry
        self._lines = lines

    async def take_in(self, manifests: Mapping[str, ModuleManifest]) -> TakenIn:
        """Register what looks have just found, and store it with its verdicts.

        A module that takes too long, or shows a defect of ours, keeps its last good manifest, and holds no other one up.
        """
        taken = TakenIn()
        if not manifests:
            return taken
        await self._cache.renew_all(manifests)  # first: with any result of this probe
        turns = [ModuleRegistration(module, manifest) for module, manifest in manifests.items()]
        async with self.registry() as registry:
            loaded = await self._cache.load(manifests)
            moment = await asked(functools.partial(moment_of, registry))
            for turn in turns:
                turn.before = loaded.get(turn.module)
                turn.manifest = self._with_lines(turn)
            if pins := {turn.module: digests for turn in turns if (digests := turn.pins(moment))}:
                for module, digests in pins.items():
                    await asked(functools.partial(registry.pin, module, digests))
                    _log.info("module_pinned", module=module, tools=len(digests))
                moment = await asked(functools.partial(moment_of, registry))
            await BatchRegistration(self._cache, registry, taken).take(moment, turns)
            await self._see_to_it(registry, moment, turns, taken)
            await asked(lambda: registry.keep_manifests({name: kept_text(one) for name, one in taken.saved.items()}))
        return taken

    def _with_lines(self, turn: ModuleRegistration) -> ModuleManifest:
        """Return what a module offers with what settings say of its tools, and log names that are none of its tools'."""
        if self._lines is None:
            lines = None if turn.before is None else turn.before.manifest.lines
        else:
            said = self._lines.get(turn.module)
            lines = None if said is None else ToolLines.model_validate(said.model_dump(exclude_defaults=True))
        if lines is not None and (unmet := lines.unmet(turn.manifest.tools)):
            _log.warning("settings_name_no_tool", module=turn.module, names=unmet[:20])
        return turn.manifest if lines == turn.manifest.lines else turn.manifest.model_copy(update={"lines": lines})

    async def rejudge(
        self, registry: ToolRegistry, module: str, *, registers: bool = False, like: ModuleRegistration | None = None
    ) -> CachedManifest | None:
        """Judge the stored manifest of a module again after a change of the registry; `None` if there is none.

        `like` is a registration whose findings about the module's schemas are used again.
        """
        for _ in range(MOST_TRIES):
            cached = (await self._cache.load([module])).get(module)
            if cached is None:  # readers of the registry's manifests are told
                await self._cache.announce(module)
                return None
            turn = ModuleRegistration(module, cached.manifest, cached, like)
            moment = await asked(functools.partial(moment_of, registry))
            work = functools.partial(turn.register, registry) if registers else turn.preview
            try:
                plan = await asked(functools.partial(work, moment))
            except ModuleTooCostly as exc:
                raise FleetUnavailable(f"It takes too long to judge the tools of module {module!r}.") from exc
            saved = await self._cache.replace(cached, plan.verdicts)
            if saved is not None and await asked(registry.revision) == moment.revision:
                return saved
        _log.warning("module_keeps_changing", module=module)
        return (await self._cache.load([module])).get(module)

    @asynccontextmanager
    async def registry(self) -> AsyncGenerator[ToolRegistry]:
        """The registry, for a piece of work. It must be the one that was there when the fleet first took something in."""
        async with self._opened() as registry:
            await self.check(registry)
            yield registry

    async def check(self, registry: ToolRegistry) -> None:
        """Look whether it is the one that was there when the fleet first took something in. Raises `RegistryAway` if not."""
        identity = await asked(registry.identity)
        if await self._cache.fleets_registry(identity) != identity:
            raise RegistryAway(_OTHER_REGISTRY)

    async def adopt(self) -> None:
        """Make this registry the fleet's, replacing any other.

        From the next refresh on, this registry's content is in force.
        """
        async with self._opened() as registry:
            await self._cache.fleets_registry(await asked(registry.identity), replaces=True)

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[ToolRegistry]:
        registry = await asked(self._open_registry)
        try:
            yield registry
        finally:
            await asyncio.to_thread(registry.close)

    async def _see_to_it(
        self, registry: ToolRegistry, moment: Moment, turns: Iterable[ModuleRegistration], taken: TakenIn
    ) -> None:
        """Judge again if the registry has changed meanwhile: an operator's decision may be missing."""
        for _ in range(MOST_TRIES):
            if await asked(registry.revision) == moment.revision:
                return
            moment = await asked(functools.partial(moment_of, registry))
            for turn in turns:
                if turn.module in taken.saved:
                    await self._judge_again(registry, moment, turn, taken)
        _log.warning("registry_keeps_changing")

    async def _judge_again(
        self, registry: ToolRegistry, moment: Moment, turn: ModuleRegistration, taken: TakenIn
    ) -> None:
        turn.before = taken.saved[turn.module]
        turn.allow(sum(TURN_SECONDS))
        try:
            plan = await asked(functools.partial(turn.preview, moment))
            if plan.verdicts == turn.verdicts and not plan.register:
                return
            judged = await self.rejudge(registry, turn.module, registers=True, like=turn)
        except FleetUnavailable:
            raise
        except Exception as exc:  # noqa: BLE001 - as when the turn was taken
            taken.report(turn, exc)
            return
        if judged is not None:
            turn.verdicts, taken.saved[turn.module] = judged.verdicts, judged


class BatchRegistration:
    """Takes turns through judging, registering and storing, and notes in `taken` what came of them.

    Raises `RegistryAway`, and `FleetUnavailable` when the cache's Redis does not answer.
    """

    def __init__(self, cache: ManifestCache, registry: ToolRegistry, taken: TakenIn) -> None:
        self._cache = cache
        self._registry = registry
        self._taken = taken
        self._left = deque[ModuleRegistration]()
        self._costly = deque[ModuleRegistration]()

    async def take(self, moment: Moment, turns: Iterable[ModuleRegistration]) -> None:
        """All of them, as far as the time suffices."""
        # What is new comes first: with very many modules some wait for the next look, and those had better be known ones.
        self._costly.extend(sorted(turns, key=lambda turn: turn.is_known))
        until = machine_clock.monotonic() + _SECONDS_IN_ALL
        for seconds in TURN_SECONDS:
            self._left, self._costly = self._costly, deque()
            work = functools.partial(self._work, moment, seconds=seconds, until=until)
            for end in await asyncio.gather(*(work() for _ in range(_AT_ONCE)), return_exceptions=True):
                if end is not None:
                    raise end
        for turn in self._costly:
            _log.warning("module_too_costly", module=turn.module, tools=len(turn.manifest.tools))
            self._taken.errors[turn.module] = "it takes too long to find out what its tools' schemas mean"

    async def _work(self, moment: Moment, *, seconds: float, until: float) -> None:
        """Take one batch after the other, until none is left. What stops it stops the others as well."""
        while self._left:
            batch = self._next(seconds, until)
            try:
                await self._take_batch(moment, batch)
            except FleetUnavailable:
                self._left.clear()
                raise
            except Exception as exc:  # noqa: BLE001 - of any kind
                await self._take_one_by_one(moment, batch, exc)

    def _next(self, seconds: float, until: float) -> list[ModuleRegistration]:
        batch, tools = list[ModuleRegistration](), 0
        while self._left and len(batch) < _BATCH and tools < _BATCH_TOOLS:
            turn = self._left.popleft()
            if machine_clock.monotonic() > until:
                self._costly.append(turn)
                continue
            turn.allow(seconds)
            batch.append(turn)
            tools += len(turn.manifest.tools)
        return batch

    async def _take_one_by_one(self, moment: Moment, batch: Sequence[ModuleRegistration], exc: Exception) -> None:
        """One of them has a defect: it shows which when each is taken by itself."""
        if len(batch) == 1:
            self._taken.report(batch[0], exc)
            return
        seen_to = {*self._left, *self._costly}
        for turn in batch:
            if turn in seen_to or turn.module in self._taken.saved:
                continue
            try:
                await self._take_batch(moment, [turn])
            except FleetUnavailable:
                raise
            except Exception as its_own:  # noqa: BLE001 - as above
                self._taken.report(turn, its_own)

    async def _take_batch(self, moment: Moment, batch: Sequence[ModuleRegistration]) -> None:
        for _ in range(MOST_TRIES):
            if not batch:
                return
            work = functools.partial(register_together, self._registry, moment, batch, seconds=_BATCH_SECONDS)
            batch = await self._store(self._judged(batch, await asked(work)))
            if batch:  # An operator's word, or another look, was stored meanwhile: that is what is to be judged with.
                loaded = await self._cache.load([turn.module for turn in batch])
                for turn in batch:
                    turn.before = loaded.get(turn.module)
                moment = await asked(functools.partial(moment_of, self._registry))
        for turn in batch:
            _log.warning("module_keeps_changing", module=turn.module)
            self._taken.errors[turn.module] = "others keep changing what is stored of it"

    def _judged(
        self, batch: Sequence[ModuleRegistration], ends: Sequence[RegistrationPlan | Exception]
    ) -> list[tuple[ModuleRegistration, RegistrationPlan]]:
        """Return the registrations that may be stored. Registrations that had no turn are queued again."""
        self._left.extendleft(reversed(batch[len(ends) :]))
        judged = list[tuple[ModuleRegistration, RegistrationPlan]]()
        for turn, end in zip(batch, ends, strict=False):
            if isinstance(end, RegistrationPlan):
                judged.append((turn, end))
            elif isinstance(end, ModuleTooCostly):
                self._costly.append(turn)
            else:
                self._taken.report(turn, end)
        return judged

    async def _store(self, judged: Sequence[tuple[ModuleRegistration, RegistrationPlan]]) -> list[ModuleRegistration]:
        """Store them, and say what has changed. Returns those that others have overtaken."""
        followers = [Successor.of(turn.before, turn.manifest, plan.verdicts) for turn, plan in judged]
        for turn, plan in judged:
            if changed := turn.served_changes(plan.verdicts):
                await self._cache.note_changes(
                    changed
                )  # first: a process that ends here has noted it, and it is stored later
        saved = await self._cache.succeed(followers)
        overtaken, kinds = list[ModuleRegistration](), Counter[str]()
        for (turn, plan), cached in zip(judged, saved, strict=True):
            if cached is None:
                overtaken.append(turn)
            else:
                turn.verdicts, self._taken.saved[turn.module] = plan.verdicts, cached
                kinds += _count_changes(turn)
        if kinds:
            await self._cache.count(kinds)
        # Last: what is stored is stored, and a process that ends before this has not reported what `differences` shows.
        if findings := [found for turn, _ in judged if turn not in overtaken for found in _findings(turn)]:
            await asked(lambda: self._registry.note(findings))
        return overtaken


async def asked(work: Callable[[], T]) -> T:
    """Ask the registry in a thread. Raises `RegistryAway` if it does not answer."""
    try:
        return await asyncio.to_thread(work)
    except RegistryAway:
        raise
    except FleetUnavailable as exc:
        raise RegistryAway(f"The registry is away: {exc}") from exc


def _count_changes(turn: ModuleRegistration) -> Counter[str]:
    """Log what has changed, and count it by kind."""
    module, changes, faults = turn.module, turn.changes, turn.faults()
    for tool in turn.manifest.tools:  # said when the manifest came
        if broken_because(tool.required_permission):
            faults.pop(tool.name, None)
    kinds = Counter[str](change.kind for change in changes)
    if faults:
        _log.warning("tools_closed", module=module, tools=dict(list(faults.items())[:_MOST_NAMED]))
    if kinds:
        withheld = sum(change.is_withheld for change in changes)
        named = {kind: _named(changes, kind) for kind in kinds}
        say = _log.warning if withheld or kinds["drifted"] else _log.info
        say("tools_changed", module=module, changes=dict(kinds), withheld=withheld, tools=named)
    return kinds


def _findings(turn: ModuleRegistration) -> list[ToolFinding]:
    """Return the findings for followers of the registry that the registry's own changes do not show."""
    digests = {name: verdict.digest for name, verdict in turn.verdicts.items()}
    return [
        ToolFinding(
            kind="withheld" if change.is_withheld else "drifted",
            tool_name=change.tool_name,
            version=change.after,
            digest=digests.get(change.tool_name),
        )
        for change in turn.changes
        if change.is_withheld or change.kind == "drifted"
    ]


def _named(changes: list[PlannedChange], kind: str) -> list[str]:
    return [change.tool_name for change in changes if change.kind == kind][:_MOST_NAMED]
