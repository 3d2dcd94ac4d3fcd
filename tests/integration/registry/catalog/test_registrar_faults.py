"""Taking manifests in when the registry lies, belongs to somebody else, or a module means harm: no disabled tool opens."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.modules.raw_modules import answering, manifest_of, offering, raw_module
from toolfleet_registry.catalog import module_registration
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.catalog.operator import Operator, adopt_registry, operating
from toolfleet_registry.catalog.registration import Registrar
from toolfleet_registry.contracts import Caller, ModuleManifest, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.errors import FleetUnavailable, OperationRefused, RegistryAway
from toolfleet_registry.manifests.manifest_cache import CachedManifest, ManifestCache
from toolfleet_registry.manifests.overrides import broken_tools, seen_tools
from toolfleet_registry.manifests.specs import ToolSpec
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.schemas import validation
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.memory import InMemoryToolRegistry
from toolfleet_registry.store.redis import RedisToolRegistry

OWNER = Caller(permission="owner", allowed_modules="*")
GIT = ModuleManifest.model_validate(manifest_of("git", "log", "push"))
MAIL = ModuleManifest.model_validate(manifest_of("mail", "send"))


@pytest.fixture
def cache(redis: Redis) -> ManifestCache:
    return ManifestCache(redis, ttl_seconds=100)


async def open_tools(redis: Redis, *modules: str) -> list[str]:
    """What an agent or a worker reads."""
    found = await ManifestCache(redis, ttl_seconds=100).load(modules or ["git"])
    seen = (tool for cached in found.values() for tool in seen_tools(cached.manifest, cached.verdicts))
    return [tool.definition.name for tool in seen if tool.access.closed is None]


class Disabled:
    """A registry in Redis in which `git.push` is disabled, and an operator."""

    def __init__(self, redis: Redis, redis_url: str) -> None:
        self.redis = redis
        self.registry = RedisToolRegistry(redis_url)
        cache = ManifestCache(redis, ttl_seconds=100)
        self.registrar = Registrar(cache, lambda: RedisToolRegistry(redis_url))
        settings = Settings(redis_url=redis_url, module_services={"git": "http://127.0.0.1:1"})
        self.operator = Operator(settings, cache, self.registry, self.registrar, modules=settings.modules)

    async def rewrite(self, **fields: Any) -> None:
        """Change the stored specification, and leave what stands before it."""
        name = Keys().registry.tools
        head, spec = str(await self.redis.hget(name, "git.push")).rsplit("\n", 1)
        text = fields.pop("text", None) or json.dumps({**json.loads(spec), **fields})
        await self.redis.hset(name, "git.push", f"{head}\n{text}")


@pytest.fixture
async def disabled(redis: Redis, redis_url: str) -> Any:
    one = Disabled(redis, redis_url)
    await one.registrar.take_in({"git": GIT})
    await one.operator.disable("git.push")
    yield one
    await asyncio.to_thread(one.registry.close)


async def test_what_a_newer_release_has_stored_is_read(disabled: Disabled) -> None:
    """It knows a field more; without it the tool is what it was, and the word of an operator holds."""
    await disabled.rewrite(future_field=[1])
    registration = await asyncio.to_thread(disabled.registry.get, "git.push")
    assert registration is not None
    assert not registration.enabled

    await disabled.registrar.take_in({"git": GIT})
    assert await open_tools(disabled.redis) == ["git.log"]
    await disabled.operator.enable("git.push")
    assert await open_tools(disabled.redis) == ["git.log", "git.push"]


@pytest.mark.parametrize("text", ["{", "[]", '{"tool_name": "git.push"}', '{"tool_name": 1}'])
async def test_a_disabled_tool_whose_specification_cannot_be_read_stays_closed(disabled: Disabled, text: str) -> None:
    """Over refreshes, over the tool's new versions, and over an operator's words about other tools."""
    await disabled.rewrite(text=text)
    await disabled.registrar.take_in({"git": GIT})
    assert await open_tools(disabled.redis) == ["git.log"]
    await disabled.operator.disable("git.log")
    assert await open_tools(disabled.redis) == []
    await disabled.operator.enable("git.log")
    await disabled.registrar.take_in({"git": GIT})
    assert await open_tools(disabled.redis) == ["git.log"]


async def test_a_tool_that_nobody_can_read_can_be_forgotten(disabled: Disabled) -> None:
    """To disable it is refused with that advice; forgotten, it is new."""
    await disabled.redis.hset(Keys().registry.tools, "git.push", "nonsense")
    with pytest.raises(OperationRefused, match=r"cannot be read: `toolfleet tools forget git\.push`"):
        await disabled.operator.disable("git.push")
    assert await open_tools(disabled.redis) == ["git.log"]
    await disabled.operator.forget("git.push")

    assert await open_tools(disabled.redis) == ["git.log", "git.push"]


async def test_a_look_that_dies_after_its_store_leaves_nothing_stale(disabled: Disabled) -> None:
    """It has read the registry before the operator's word, and would store its manifest after: it is not stored."""
    await disabled.operator.enable("git.push")

    class Dying(ManifestCache):
        async def succeed(self, successors: Any) -> list[CachedManifest | None]:
            await disabled.operator.disable("git.push")
            await super().succeed(successors)
            raise asyncio.CancelledError

    with contextlib.suppress(asyncio.CancelledError):
        dying = Dying(disabled.redis, ttl_seconds=100)
        await Registrar(dying, lambda: disabled.registry).take_in({"git": GIT})
    assert await open_tools(disabled.redis) == ["git.log"]


async def test_a_look_that_others_overtake_for_ever_keeps_the_last_good(cache: ManifestCache, redis: Redis) -> None:
    """After some tries; its module says so."""
    registry = InMemoryToolRegistry()
    await Registrar(cache, lambda: registry).take_in({"git": GIT})

    class Overtaken(ManifestCache):
        async def succeed(self, successors: Any) -> list[CachedManifest | None]:
            await cache.save(GIT)
            return await super().succeed(successors)

    later = ModuleManifest.model_validate(manifest_of("git", "log", "push", "gc"))
    overtaken = Overtaken(redis, ttl_seconds=100)
    taken = await Registrar(overtaken, lambda: registry).take_in({"git": later, "mail": MAIL})

    assert list(taken.errors) == ["git"]
    assert (await cache.load(["git"]))["git"].manifest == GIT


async def test_another_registry_overrules_nobody(redis: Redis, redis_url: str, elsewhere: Path) -> None:
    """Neither a process's look, nor an operator's word, if it is set up otherwise; the last good manifests live on."""
    async with raw_module(offering("git", "log", "push")) as url:
        fleet = Settings(redis_url=redis_url, module_services={"git": url}, registry_url=f"sqlite:///{elsewhere}/a.db")
        await Catalog(fleet, ManifestCache(redis, ttl_seconds=100)).refresh()
        async with operating(fleet) as operator:
            await operator.disable("git.push")
        for registry_url in (None, f"sqlite:///{elsewhere}/b.db", "sqlite://"):
            other = fleet.model_copy(update={"registry_url": registry_url})
            await redis.expire(Keys().module_manifest("git"), 5)
            catalog = Catalog(other, ManifestCache(redis, ttl_seconds=100))
            status = (await catalog.refresh())["git"]
            assert "TOOLFLEET_REGISTRY_URL must be the same" in str(status.error)
            assert [tool.name for tool in catalog.tools(OWNER)] == ["git.log"]
            assert await redis.ttl(Keys().module_manifest("git")) > 5
            with pytest.raises(RegistryAway, match="TOOLFLEET_REGISTRY_URL"):
                async with operating(other):
                    pass
        assert (await Catalog(fleet, ManifestCache(redis, ttl_seconds=100)).refresh())["git"].ok


async def test_a_fleet_can_move_to_another_registry(redis: Redis, redis_url: str, elsewhere: Path) -> None:
    """On purpose; then the old one is the wrong one."""
    async with raw_module(offering("git", "log", "push")) as url:
        old = Settings(redis_url=redis_url, module_services={"git": url})
        new = old.model_copy(update={"registry_url": f"sqlite:///{elsewhere}/new.db"})
        await Catalog(old, ManifestCache(redis, ttl_seconds=100)).refresh()
        await adopt_registry(new)

        assert (await Catalog(new, ManifestCache(redis, ttl_seconds=100)).refresh())["git"].ok
        assert not (await Catalog(old, ManifestCache(redis, ttl_seconds=100)).refresh())["git"].ok


async def test_a_defect_that_one_module_brings_out_hides_no_other(
    cache: ManifestCache, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its last good manifest, and says what is wrong."""
    registry = InMemoryToolRegistry()
    registrar = Registrar(cache, lambda: registry)
    await registrar.take_in({"git": GIT})
    await redis.expire(Keys().module_manifest("git"), 5)

    def faulty(tool: ToolDefinition) -> str | None:
        if tool.name == "git.push":
            raise TypeError
        return None

    monkeypatch.setattr(validation, "schema_fault", faulty)
    with capture_logs() as logs:
        taken = await registrar.take_in({"git": GIT, "mail": MAIL})

    assert list(taken.saved) == ["mail"]
    assert taken.errors == {"git": "what it offers cannot be taken in: TypeError"}
    assert "module_not_taken_in" in [line["event"] for line in logs]
    assert await open_tools(redis, "git", "mail") == ["git.log", "git.push", "mail.send"]
    assert await redis.ttl(Keys().module_manifest("git")) > 5


async def test_a_manifest_that_cannot_be_stored_hides_no_other(redis: Redis) -> None:
    """They are written together: whose defect it is shows when each is taken by itself."""

    class Choking(ManifestCache):
        async def succeed(self, successors: Any) -> list[CachedManifest | None]:
            if any(one.manifest is GIT for one in successors):
                raise TypeError
            return await super().succeed(successors)

    taken = await Registrar(Choking(redis, ttl_seconds=100), InMemoryToolRegistry).take_in({"git": GIT, "mail": MAIL})

    assert list(taken.saved) == ["mail"]
    assert taken.errors == {"git": "what it offers cannot be taken in: TypeError"}


async def test_odd_details_of_a_registration_hide_no_module(cache: ManifestCache, redis: Redis) -> None:
    """Somebody else has registered something under the name of a module's tool."""
    registry = InMemoryToolRegistry()
    details: dict[str, Any] = {"name": "x", "version": 7}
    registry.register(ToolSpec(tool_name="git.push", version="1", input_schema={}, output_schema={}, details=details))
    git = manifest_of("git", "log", "push")
    git["tools"][1]["version"] = "1"
    taken = await Registrar(cache, lambda: registry).take_in({"git": ModuleManifest.model_validate(git), "mail": MAIL})

    assert sorted(taken.saved) == ["git", "mail"]
    assert await open_tools(redis, "mail") == ["mail.send"]


async def test_a_costly_module_waits_for_the_others(
    cache: ManifestCache, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps its last good manifest, if even a longer turn is not enough; the others have been stored by then."""
    registry = InMemoryToolRegistry()
    registrar = Registrar(cache, lambda: registry)
    await registrar.take_in({"git": GIT})
    await redis.expire(Keys().module_manifest("git"), 5)
    seen = list[str]()
    clock = [0.0]

    def slow(tool: ToolDefinition) -> None:
        seen.append(tool.name)
        clock[0] += 3 if tool.name.startswith("git.") else 0

    monkeypatch.setattr(validation, "schema_fault", slow)
    monkeypatch.setattr("toolfleet_registry.catalog.module_registration.time.thread_time", lambda: clock[0])
    later = ModuleManifest.model_validate(manifest_of("git", *"abcdef"))
    with capture_logs() as logs:
        taken = await registrar.take_in({"git": later, "mail": MAIL})

    assert seen == ["git.a", "mail.send", "git.b", "git.c"]
    assert list(taken.saved) == ["mail"]
    assert list(taken.errors) == ["git"]
    assert ("module_too_costly", "git") in [(line["event"], line.get("module")) for line in logs]
    assert await redis.ttl(Keys().module_manifest("git")) > 5
    assert (await cache.load(["git"]))["git"].manifest == GIT


async def test_an_operator_hears_that_a_module_is_too_costly(
    disabled: Disabled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence instead of an endless wait; what is in effect does not change."""
    monkeypatch.setattr(module_registration, "_PATIENCE_SECONDS", 0)
    with pytest.raises(FleetUnavailable, match="too long to judge the tools of module 'git'"):
        await disabled.operator.disable("git.log")
    assert await open_tools(disabled.redis) == ["git.log"]


async def test_a_hostile_fault_is_short(cache: ManifestCache) -> None:
    """A module may write what we write in closed tools: it closes its own, and fills no log."""
    tool = {"name": "git.push", "required_permission": f"broken: {'x' * 100_000}"}
    git = ModuleManifest.model_validate({"module_name": "git", "tools": [tool]})
    taken = await Registrar(cache, InMemoryToolRegistry).take_in({"git": git})

    assert len(str(taken.saved["git"].verdicts["git.push"].fault)) == 256


async def test_when_time_is_up_the_rest_is_told_so(
    cache: ManifestCache, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each keeps what it has; a refresh has a limit of its own, and must not die of it."""
    registrar = Registrar(cache, InMemoryToolRegistry)
    monkeypatch.setattr("toolfleet_registry.catalog.batch_registration._SECONDS_IN_ALL", -1)
    taken = await registrar.take_in({"git": GIT, "mail": MAIL})

    assert (taken.saved, sorted(taken.errors)) == ({}, ["git", "mail"])


async def test_what_is_kept_at_the_deepest_level_is_read_again(cache: ManifestCache, redis: Redis) -> None:
    """It stands a level deeper there than in the manifest that it came with."""
    registry = InMemoryToolRegistry()
    schema: dict[str, Any] = {}
    for _ in range(96):
        schema = {"not": schema}
    tool = {"name": "git.push", "version": "1", "input_schema": schema}
    for text in ("a", "b"):
        document = {"module_name": "git", "tools": [{**tool, "description": text}]}
        async with raw_module(answering(json.dumps(document).encode())) as url:
            settings = Settings(module_services={"git": url})
            status = await Catalog(settings, cache, lambda: registry).refresh()
            assert status["git"].ok

    (cached,) = (await ManifestCache(redis, ttl_seconds=100).load(["git"])).values()
    kept = cached.verdicts["git.push"].kept
    assert kept is not None
    assert kept.description == "a"


async def test_a_name_that_may_look_like_another_closes_its_tool_only(redis: Redis, cache: ManifestCache) -> None:
    """It is logged, counted and shown; whoever stores the manifest, nobody may use it."""
    twin = "git.log\ufe0f"
    git = ModuleManifest.model_validate(manifest_of("git", "log", "log\ufe0f"))
    with capture_logs() as logs:
        saved = (await Registrar(cache, InMemoryToolRegistry).take_in({"git": git})).saved["git"]
    (line,) = (line for line in logs if line["event"] == "tools_closed")
    assert "\\ufe0f" in line["tools"][twin]

    await cache.save(git)  # as another program would
    catalog = Catalog(Settings(module_services={"git": "http://git.test"}), cache)
    await catalog.load()
    for cached in (saved, (await cache.load(["git"]))["git"]):
        assert broken_tools(cached.manifest, cached.verdicts) == (twin,)
    assert catalog.statuses()["git"].closed_tools == (twin,)
    assert [tool.name for tool in catalog.tools(OWNER)] == ["git.log"]
    refusal = catalog.usable(ToolCall(tool_name=twin), OWNER)
    assert isinstance(refusal, ToolResult)
    assert (refusal.error_code, "\\ufe0f" in str(refusal.error)) == ("permission_denied", True)
