"""Registers and stores what many modules offer: some dozens at a time, and each within a bounded time.

Every question to Redis, and every hop into a thread, would else be asked and made for each of thousands of modules.
"""

import asyncio
import functools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from toolfleet_registry.catalog.module_registration import (
    ModuleRegistration,
    ModuleTooCostly,
    Moment,
    moment_of,
    register_together,
)
from toolfleet_registry.catalog.registration_plan import PlannedChange, RegistrationPlan
from toolfleet_registry.errors import FleetUnavailable, RegistryAway
from toolfleet_registry.manifests.manifest_cache import CachedManifest, ManifestCache, Successor
from toolfleet_registry.manifests.specs import ToolFinding
from toolfleet_registry.permissions import broken_because
from toolfleet_registry.store.port import ToolRegistry
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import machine_clock

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

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TakenIn:
    """The result of probes, by module: the stored manifest, or why the last good one still holds."""

    saved: dict[str, CachedManifest] = field(default_factory=dict[str, CachedManifest])
    errors: dict[str, str] = field(default_factory=dict[str, str])

    def report(self, turn: ModuleRegistration, exc: Exception) -> None:
        """A defect that one module brings out must not hide the others."""
        _log.error("module_not_taken_in", module=turn.module, exc_info=exc)
        self.errors[turn.module] = f"what it offers cannot be taken in: {type(exc).__name__}"


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
