"""Registers what modules offer, and writes the verdicts in effect next to their manifests.

The registry is asked in a thread. Agents and workers read manifests with their verdicts from the cache, or expired ones
from the registry through `manifest_reader`.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from toolfleet_registry.catalog.batch_registration import MOST_TRIES, TURN_SECONDS, BatchRegistration, TakenIn, asked
from toolfleet_registry.catalog.module_registration import ModuleRegistration, ModuleTooCostly, Moment, moment_of
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.contracts.tool_definition import ToolLines
from toolfleet_registry.errors import FleetUnavailable, RegistryAway
from toolfleet_registry.manifests.manifest_cache import CachedManifest, ManifestCache, kept_text
from toolfleet_registry.store.port import ToolRegistry
from toolfleet_registry.system.loggers import get_logger

OpenRegistry = Callable[[], ToolRegistry]

_OTHER_REGISTRY = (
    "The registry here is not this fleet's: TOOLFLEET_REGISTRY_URL must be the same in all its processes "
    "(`toolfleet tools adopt-registry` makes the one here the fleet's)."
)

_log = get_logger(__name__)


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
