"""Does what an operator decides: disables, pins and approves tools, and shows what modules offer that is not in effect."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from toolfleet_registry.catalog.registration import Registrar, asked
from toolfleet_registry.contracts import ToolDefinition
from toolfleet_registry.contracts.tool_definition import tool_named
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.manifests.manifest_cache import (
    CachedManifest,
    ManifestCache,
    Pending,
    pending_because,
    seen_tools,
)
from toolfleet_registry.permissions import Access, denial
from toolfleet_registry.settings import Settings
from toolfleet_registry.specs import RegistryEvent, ToolRegistration, definition_of, digest_of, spec_of
from toolfleet_registry.store.factory import open_store
from toolfleet_registry.store.registry import EVENTS_KEPT, ToolRegistry


@dataclass(frozen=True, slots=True)
class Difference:
    """A tool whose offer differs from what is in effect, or from what was accepted.

    `registered` is what was registered or accepted last, `registered_digest` its digest; `digest` is that of the offer,
    which an approval may name.
    """

    kind: Pending
    offered: ToolDefinition
    digest: str
    registered: ToolDefinition | None
    registered_digest: str | None

    @property
    def tool_name(self) -> str:
        """The tool's name."""
        return self.offered.name

    def fields(self) -> dict[str, tuple[Any, Any]]:
        """Return the fields that differ: the value as registered, and as offered."""
        before = {} if self.registered is None else self.registered.model_dump(mode="json", exclude_defaults=True)
        after = self.offered.model_dump(mode="json", exclude_defaults=True)
        names = [name for name in ToolDefinition.model_fields if before.get(name) != after.get(name)]
        return {name: (before.get(name), after.get(name)) for name in names}


class Operator:
    """Changes take effect at once: in agents when they hear of it, in workers within four seconds.

    Raises `OperationRefused`; and `FleetUnavailable` when the registry or the fleet's Redis does not answer: the change may
    have happened then, has its effect with the next refresh at the latest, and may be repeated.
    """

    def __init__(
        self,
        settings: Settings,
        cache: ManifestCache,
        registry: ToolRegistry,
        registrar: Registrar,
        *,
        modules: frozenset[str],
    ) -> None:
        self._settings = settings
        self._modules = modules
        self._cache = cache
        self._registry = registry
        self._registrar = registrar

    async def disable(self, tool_name: str) -> ToolRegistration:
        """Block all use of the tool until it is enabled, also if its module offers another one."""
        return await self._set_enabled(tool_name, enabled=False)

    async def enable(self, tool_name: str) -> ToolRegistration:
        """Take a disabling back."""
        return await self._set_enabled(tool_name, enabled=True)

    async def pin(self, module: str) -> dict[str, str]:
        """Approve the module's tools as they are in effect now, and nothing that it offers otherwise, now or later.

        Returns their digests by name.
        """
        cached = await self._manifest(module)
        if module in await asked(self._registry.pins):
            raise OperationRefused(
                f"Module {module!r} is pinned already: approve single tools, or unpin it to take in all that it offers."
            )
        digests = await asyncio.to_thread(_digests_in_effect, cached)
        await asked(lambda: self._registry.pin(module, digests))
        await self._cache.accept(digests)
        await self._registrar.rejudge(self._registry, module)
        return digests

    async def unpin(self, module: str) -> None:
        """Take in what the module offers, now and later, without an approval."""
        if module not in await asked(self._registry.pins):
            raise OperationRefused(f"Module {module!r} is not pinned.")
        await asked(lambda: self._registry.unpin(module))
        await self._registrar.rejudge(self._registry, module, registers=True)

    async def approve(self, tool_name: str, *, digest: str | None = None) -> Difference:
        """Accept what a module offers of a tool; with a `digest`, or its beginning, only if it is that. It takes effect, if it did not yet."""
        module = tool_name.partition(".")[0]
        found = next((one for one in await self.differences(module) if tool_name in one.offered.names), None)
        if found is None:
            raise OperationRefused(
                f"There is nothing to approve of {tool_name!r}: `toolfleet tools diff` shows what is."
            )
        if digest is not None and not _begins(found.digest, digest):
            raise OperationRefused(
                f"Tool {tool_name!r} is offered with the digest {found.digest} by now, not {digest}: look at it again."
            )
        await self._cache.accept({found.tool_name: found.digest})
        if found.kind == "changed":
            return found
        try:
            await asked(lambda: self._take_in(module, found))
        except (ValueError, KeyError) as exc:
            raise OperationRefused(f"Tool {tool_name!r} has changed meanwhile: look at it again.") from exc
        await self._registrar.rejudge(self._registry, module)
        return found

    async def versions(self, tool_name: str) -> list[ToolRegistration]:
        """Return the specifications that the registry keeps of the tool, the latest last."""
        if not (found := await asked(lambda: self._registry.versions(tool_name))):
            raise OperationRefused(f"Tool {tool_name!r} is not registered.")
        return found

    async def version_in_force(self, tool_name: str) -> str | None:
        """Return the version of the tool's specification in force."""
        present = await asked(lambda: self._registry.get(tool_name))
        return None if present is None else present.spec.version

    async def rollback(self, tool_name: str, version: str) -> ToolRegistration:
        """Put an earlier specification of the tool in force, until its module offers a later version than it had.

        What the module offers meanwhile is a difference that can be approved. In a pinned module it must be approved as
        before, or the tool is withheld.
        """
        try:
            registration = await asked(lambda: self._registry.rollback(tool_name, version))
        except KeyError as exc:
            raise OperationRefused(f"Tool {tool_name!r} is not registered.") from exc
        except ValueError as exc:
            raise OperationRefused(
                f"{exc} `toolfleet tools show --versions {tool_name}` shows those that are."
            ) from exc
        await self._registrar.rejudge(self._registry, tool_name.partition(".")[0])
        return registration

    async def forget(self, tool_name: str) -> None:
        """Remove the tool from the registry: if offered again, it is new and enabled, even with the same content."""
        offered = await self._offered(tool_name)
        for name in offered.names if offered is not None and offered.name == tool_name else (tool_name,):
            await asked(functools.partial(self._registry.remove, name))
        await self._cache.forget_accepted(tool_name)
        await self._registrar.rejudge(self._registry, tool_name.partition(".")[0], registers=True)

    async def differences(self, module: str | None = None) -> list[Difference]:
        """Return the tools whose offered definition differs from the one in effect, or from the accepted one, by name."""
        if module is not None:
            self._check_known(module)
        cached = await self._cache.load(self._modules if module is None else [module])
        accepted = await self._cache.accepted()
        return await asked(lambda: sorted(self._differences(cached.values(), accepted), key=lambda one: one.tool_name))

    async def closed(self) -> dict[str, str]:
        """Return the tools that no caller may use now, by name, and why."""
        manifests = (await self._cache.load(self._modules)).values()
        seen = (tool.access for cached in manifests for tool in seen_tools(cached.manifest, cached.verdicts))
        reasons = {tool.tool_name: denial(tool, "owner", "*") for tool in sorted(seen, key=_name)}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    async def tools(self) -> list[ToolDefinition]:
        """Return all tools as they are in effect."""
        manifests = (await self._cache.load(self._modules)).values()
        return [tool.definition for cached in manifests for tool in seen_tools(cached.manifest, cached.verdicts)]

    async def stale(self) -> dict[str, float]:
        """Return the modules whose last good manifest is too old, and its age in seconds."""
        ages = {name: cached.age_seconds or 0 for name, cached in (await self._cache.load(self._modules)).items()}
        return {name: age for name, age in ages.items() if age > self._settings.manifest_stale_seconds}

    async def events(self, limit: int = 20) -> list[RegistryEvent]:
        """Return the last changes of the registry, the latest last."""
        return (await asked(lambda: self._registry.events(limit=EVENTS_KEPT)))[-limit:]

    async def pins(self) -> dict[str, dict[str, str]]:
        """Return the approved digests of the pinned modules, by module and tool name."""
        return await asked(self._registry.pins)

    async def counted(self) -> dict[str, int]:
        """Return how many tools were ever found added, changed, removed and drifted."""
        return await self._cache.counted()

    async def _set_enabled(self, tool_name: str, *, enabled: bool) -> ToolRegistration:
        offered = await self._offered(tool_name)
        tool_name = tool_name if offered is None else offered.name
        try:
            registration = await asked(lambda: self._switch(tool_name, offered, enabled=enabled))
        except KeyError as exc:
            raise OperationRefused(f"Tool {tool_name!r} is not registered.") from exc
        except ValueError as exc:  # it cannot be read
            raise OperationRefused(
                f"What is stored for tool {tool_name!r} cannot be read: `toolfleet tools forget {tool_name}` removes it."
            ) from exc
        await self._registrar.rejudge(self._registry, tool_name.partition(".")[0])
        return registration

    async def _offered(self, tool_name: str) -> ToolDefinition | None:
        """Return the tool that a module offers under this name, or under another one that it has got since."""
        cached = (await self._cache.load([module := tool_name.partition(".")[0]])).get(module)
        return None if cached is None else tool_named(tool_name, cached.manifest.tools)

    async def _manifest(self, module: str) -> CachedManifest:
        self._check_known(module)
        cached = (await self._cache.load([module])).get(module)
        if cached is None:
            raise OperationRefused(f"There is no manifest of module {module!r} yet: `toolfleet modules refresh`.")
        return cached

    def _check_known(self, module: str) -> None:
        if module not in self._modules:
            raise OperationRefused(f"Unknown module: {module}")

    def _differences(self, manifests: Iterable[CachedManifest], accepted: Mapping[str, str]) -> Iterable[Difference]:
        for cached in manifests:
            offered = {tool.name: tool for tool in cached.manifest.tools}
            for name, verdict in cached.verdicts.items():
                if name in offered and (kind := pending_because(offered[name], verdict)) is not None:
                    present = self._registry.get(name)
                    digest = digest_of(spec_of(offered[name]))
                    known = None if present is None else digest_of(present.spec)
                    yield Difference(kind, offered[name], digest, _definition(present), known)
            pending = {name for name, verdict in cached.verdicts.items() if verdict.digest is not None}
            for name in offered.keys() & accepted.keys() - pending if cached.manifest.on_change else ():
                if (digest := digest_of(spec_of(offered[name]))) != accepted[name]:
                    kept = self._registry.versions(name)
                    before = next((one for one in kept if digest_of(one.spec) == accepted[name]), None)
                    yield Difference("changed", offered[name], digest, _definition(before), accepted[name])

    def _switch(self, tool_name: str, offered: ToolDefinition | None, *, enabled: bool) -> ToolRegistration:
        """Enable or disable the tool.

        An offered tool that is withheld, and so unregistered, is registered as disabled: it stays unavailable.
        """
        for former in offered.former_names if enabled and offered is not None else ():
            with contextlib.suppress(KeyError):
                self._registry.set_enabled(former, enabled)
        try:
            return self._registry.set_enabled(tool_name, enabled)
        except KeyError:
            if enabled or offered is None:
                raise
        self._registry.register(spec_of(offered), keep_enabled=True)
        return self._registry.set_enabled(tool_name, enabled)

    def _take_in(self, module: str, difference: Difference) -> None:
        """Register the offer, then approve it.

        A crash between the two leaves the tool withheld, and the approval can be repeated.
        """
        self._registry.replace(spec_of(difference.offered), expected=difference.registered_digest)
        if module in self._registry.pins():
            self._registry.approve(module, difference.tool_name, difference.digest)


@asynccontextmanager
async def operating(settings: Settings) -> AsyncGenerator[Operator]:
    """Yield an operator of the fleet that the settings name, and of all its modules. Raises `SettingsError` if they name none."""
    async with _registrar(settings) as (redis, cache, registrar), registrar.registry() as registry:
        known = KnownModules(settings)
        known.take((await ModuleDirectory(redis, settings).read()).entries)
        yield Operator(settings, cache, registry, registrar, modules=known.names)


@asynccontextmanager
async def fleets_registry(settings: Settings) -> AsyncGenerator[ToolRegistry]:
    """Yield the registry that the settings name. Raises `RegistryAway` if it is not the fleet's."""
    async with _registrar(settings) as (_, _, registrar), registrar.registry() as registry:
        yield registry


async def adopt_registry(settings: Settings) -> None:
    """Make the registry that the settings name the fleet's, in place of the one that was."""
    async with _registrar(settings) as (_, _, registrar):
        await registrar.adopt()


@asynccontextmanager
async def _registrar(settings: Settings) -> AsyncGenerator[tuple[Redis, ManifestCache, Registrar]]:
    async with settings.redis_client() as redis:
        cache = ManifestCache(redis, ttl_seconds=settings.manifest_ttl_seconds, keys=settings.keys)
        yield redis, cache, Registrar(cache, functools.partial(open_store, settings))


def _name(tool: Access) -> str:
    return tool.tool_name


def _digests_in_effect(cached: CachedManifest) -> dict[str, str]:
    tools = seen_tools(cached.manifest, cached.verdicts)
    return {tool.definition.name: digest_of(spec_of(tool.definition)) for tool in tools}


def _definition(registration: ToolRegistration | None) -> ToolDefinition | None:
    if registration is None:
        return None
    try:
        return definition_of(registration.spec)
    except ValueError:  # a foreign specification under this name
        return None


def _begins(digest: str, wanted: str) -> bool:
    """Return whether `wanted` is a prefix of the digest, with or without `sha256:`; at least eight digits, against accidents."""
    digits = wanted.removeprefix("sha256:").lower()
    return len(digits) >= _FEWEST_DIGITS and digest.removeprefix("sha256:").startswith(digits)


_FEWEST_DIGITS = 8
