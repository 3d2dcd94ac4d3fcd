"""Takes what modules offer into the registry, and writes what of it is in effect beside their manifests.

The registry is asked in a thread, and by nobody else: agents and workers read manifests and verdicts only.
"""

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.errors import FleetUnavailable, RegistryAway
from toolfleet_registry.intake import Change
from toolfleet_registry.judging import ModuleTooCostly, Moment, Turn, moment_of
from toolfleet_registry.manifests import CachedManifest, ManifestCache
from toolfleet_registry.store.port import ToolRegistry

T = TypeVar("T")

OpenRegistry = Callable[[], ToolRegistry]

_MOST_TRIES = 5  # while others change the registry at the same time, which is rare and soon over
_MOST_NAMED = 20  # tools of a kind in a line of the log

# To judge a module: first each gets a little, so that none waits for a costly one; then the costly ones get the rest.
_TURN_SECONDS = (0.5, 4.5)
_SECONDS_IN_ALL = 12  # less than a refresh has, so that what did not get its turn is still told

_OTHER_REGISTRY = (
    "The registry here is not this fleet's: TOOLFLEET_REGISTRY_URL must be the same in all its processes "
    "(`toolfleet tools adopt-registry` makes the one here the fleet's)."
)

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What came of looks, by module: what is stored now, or why that is still the last good one."""

    saved: dict[str, CachedManifest] = field(default_factory=dict[str, CachedManifest])
    errors: dict[str, str] = field(default_factory=dict[str, str])


class Registrar:
    """Keeps manifests, registry and verdicts in step. `open_registry` is called in a thread, for each piece of work.

    Raises `RegistryAway`, storing nothing more, when the registry does not answer, or is not the fleet's: what operators
    have switched off must not come back. Raises `FleetUnavailable` when the cache's Redis does not answer.
    """

    def __init__(self, cache: ManifestCache, open_registry: OpenRegistry) -> None:
        self._cache = cache
        self._open_registry = open_registry

    async def take_in(self, manifests: Mapping[str, ModuleManifest]) -> TakenIn:
        """Register what looks have just found, and store it with its verdicts, one module after the other.

        A module that takes too long, or shows a defect of ours, keeps its last good manifest, and holds no other one up.
        """
        taken = TakenIn()
        if not manifests:
            return taken
        for module in manifests:  # first: whatever becomes of this look
            await self._cache.renew(module)
        turns = [Turn(module, manifest) for module, manifest in manifests.items()]
        async with self.registry() as registry:
            loaded = await self._cache.load(manifests)
            moment = await asked(functools.partial(moment_of, registry))
            for turn in turns:
                turn.before = loaded.get(turn.module)
            await self._take_turns(registry, moment, turns, taken)
            await self._see_to_it(registry, moment, turns, taken)
        return taken

    async def rejudge(
        self, registry: ToolRegistry, module: str, *, registers: bool = False, like: Turn | None = None
    ) -> CachedManifest | None:
        """Judge the stored manifest of a module anew, after a change of the registry; `None` if there is none.

        `like` is a turn whose findings about the module's schemas are used again.
        """
        for _ in range(_MOST_TRIES):
            cached = (await self._cache.load([module])).get(module)
            if cached is None:
                return None
            turn = Turn(module, cached.manifest, cached, like)
            moment = await asked(functools.partial(moment_of, registry))
            work = functools.partial(turn.register, registry) if registers else turn.look
            try:
                intake = await asked(functools.partial(work, moment))
            except ModuleTooCostly as exc:
                raise FleetUnavailable(f"It takes too long to judge the tools of module {module!r}.") from exc
            saved = await self._cache.replace(cached, intake.verdicts)
            if saved is not None and await asked(registry.revision) == moment.revision:
                return saved
        _log.warning("module_keeps_changing", module=module)
        return (await self._cache.load([module])).get(module)

    @asynccontextmanager
    async def registry(self) -> AsyncGenerator[ToolRegistry]:
        """The registry, for a piece of work. It must be the one that was there when the fleet first took something in."""
        async with self._opened() as registry:
            identity = await asked(registry.identity)
            if await self._cache.fleets_registry(identity) != identity:
                raise RegistryAway(_OTHER_REGISTRY)
            yield registry

    async def adopt(self) -> None:
        """Make the registry here the fleet's, whichever was. What holds is what this one says, from the next refresh on."""
        async with self._opened() as registry:
            await self._cache.fleets_registry(await asked(registry.identity), replaces=True)

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[ToolRegistry]:
        registry = await asked(self._open_registry)
        try:
            yield registry
        finally:
            await asyncio.to_thread(registry.close)

    async def _take_turns(self, registry: ToolRegistry, moment: Moment, turns: Iterable[Turn], taken: TakenIn) -> None:
        waiting, until = list(turns), time.monotonic() + _SECONDS_IN_ALL
        for seconds in _TURN_SECONDS:
            costly = list[Turn]()
            for turn in waiting:
                if time.monotonic() > until:
                    costly.append(turn)
                    continue
                turn.allow(seconds)
                try:
                    await self._take_turn(registry, moment, turn, taken)
                except ModuleTooCostly:
                    costly.append(turn)
                except FleetUnavailable:
                    raise
                except Exception as exc:  # noqa: BLE001 - whatever it is
                    self._report(turn, exc, taken)
            waiting = costly
        for turn in waiting:
            _log.warning("module_too_costly", module=turn.module, tools=len(turn.manifest.tools))
            taken.errors[turn.module] = "it takes too long to find out what its tools' schemas mean"

    async def _take_turn(self, registry: ToolRegistry, moment: Moment, turn: Turn, taken: TakenIn) -> None:
        for _ in range(_MOST_TRIES):
            intake = await asked(functools.partial(turn.register, registry, moment))
            saved = await self._cache.succeed(turn.before, turn.manifest, intake.verdicts)
            if saved is not None:
                turn.verdicts, taken.saved[turn.module] = intake.verdicts, saved
                await self._tell(turn)
                return
            # An operator's word, or another look, was stored meanwhile: that is what is to be judged with.
            turn.before = (await self._cache.load([turn.module])).get(turn.module)
            moment = await asked(functools.partial(moment_of, registry))
        _log.warning("module_keeps_changing", module=turn.module)
        taken.errors[turn.module] = "others keep changing what is stored of it"

    async def _see_to_it(self, registry: ToolRegistry, moment: Moment, turns: Iterable[Turn], taken: TakenIn) -> None:
        """Judge anew if the registry has changed meanwhile: an operator's word may be missing."""
        for _ in range(_MOST_TRIES):
            if await asked(registry.revision) == moment.revision:
                return
            moment = await asked(functools.partial(moment_of, registry))
            for turn in turns:
                if turn.module in taken.saved:
                    await self._judge_again(registry, moment, turn, taken)
        _log.warning("registry_keeps_changing")

    async def _judge_again(self, registry: ToolRegistry, moment: Moment, turn: Turn, taken: TakenIn) -> None:
        turn.before = taken.saved[turn.module]
        turn.allow(sum(_TURN_SECONDS))
        try:
            intake = await asked(functools.partial(turn.look, moment))
            if intake.verdicts == turn.verdicts and not intake.register:
                return
            judged = await self.rejudge(registry, turn.module, registers=True, like=turn)
        except FleetUnavailable:
            raise
        except Exception as exc:  # noqa: BLE001 - as when the turn was taken
            self._report(turn, exc, taken)
            return
        if judged is not None:
            turn.verdicts, taken.saved[turn.module] = judged.verdicts, judged

    def _report(self, turn: Turn, exc: Exception, taken: TakenIn) -> None:
        """A defect that one module brings out must not hide the others."""
        _log.error("module_not_taken_in", module=turn.module, exc_info=exc)
        taken.errors[turn.module] = f"what it offers cannot be taken in: {type(exc).__name__}"

    async def _tell(self, turn: Turn) -> None:
        """Log and count what has changed."""
        module, changes, faults = turn.module, turn.changes, turn.faults()
        kinds = Counter[str](change.kind for change in changes)
        if faults:
            _log.warning("tools_closed", module=module, tools=dict(list(faults.items())[:_MOST_NAMED]))
        if not kinds:
            return
        withheld = sum(change.is_withheld for change in changes)
        named = {kind: _named(changes, kind) for kind in kinds}
        say = _log.warning if withheld or kinds["drifted"] else _log.info
        say("tools_changed", module=module, changes=dict(kinds), withheld=withheld, tools=named)
        await self._cache.count(kinds)


async def asked(work: Callable[[], T]) -> T:
    """Ask the registry in a thread. Raises `RegistryAway` if it does not answer."""
    try:
        return await asyncio.to_thread(work)
    except RegistryAway:
        raise
    except FleetUnavailable as exc:
        raise RegistryAway(f"The registry is away: {exc}") from exc


def _named(changes: list[Change], kind: str) -> list[str]:
    return [change.tool_name for change in changes if change.kind == kind][:_MOST_NAMED]
