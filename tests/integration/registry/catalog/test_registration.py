"""Taking manifests in when something goes wrong, the registry lies, or a module means harm: no disabled tool opens."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.modules.raw_modules import answering, manifest_of, offering, raw_module
from support.there import there
from toolfleet_registry.catalog import registration
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.catalog.operator import Operator, adopt_registry, operating
from toolfleet_registry.catalog.registration import Registrar
from toolfleet_registry.contracts import Caller, ModuleManifest, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.tool_definition import ToolLines
from toolfleet_registry.errors import FleetUnavailable, OperationRefused, RegistryAway
from toolfleet_registry.manifests.discovery import discover
from toolfleet_registry.manifests.manifest_cache import (
    CachedManifest,
    ManifestCache,
    broken_tools,
    read_kept,
    seen_tools,
)
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.schemas import validation
from toolfleet_registry.settings import ModuleSpec, Settings
from toolfleet_registry.specs import ToolSpec
from toolfleet_registry.store.memory import InMemoryToolRegistry
from toolfleet_registry.store.redis import RedisToolRegistry

OWNER = Caller(permission="owner", allowed_modules="*")
GIT = ModuleManifest.model_validate(manifest_of("git", "log", "push"))


class Meddled(InMemoryToolRegistry):
    """A registry in which something happens when it is asked for something."""

    def __init__(self, **when: Callable[[], None]) -> None:
        super().__init__()
        self.when = when
        self.asked = list[str]()

    def list_all(self, include_disabled: bool = False) -> Any:  # noqa: FBT002 - as in the port
        found = super().list_all(include_disabled)
        self._happen("list_all")
        return found

    def revision(self) -> str:
        self._happen("revision")
        return super().revision()

    def register_many(self, specs: Any, *, keep_enabled: bool = False) -> Any:
        self._happen("register_many")
        return super().register_many(specs, keep_enabled=keep_enabled)

    def _happen(self, what: str) -> None:
        self.asked.append(what)
        if what in self.when:
            self.when[what]()


def away() -> NoReturn:
    raise FleetUnavailable("Redis at nowhere:1 does not answer")


@pytest.fixture
def cache(redis: Redis) -> ManifestCache:
    return ManifestCache(redis, ttl_seconds=100)


@pytest.fixture
def registry() -> Meddled:
    return Meddled()


@pytest.fixture
async def registrar(cache: ManifestCache, registry: Meddled) -> Registrar:
    """One that has taken in `GIT`."""
    registrar = Registrar(cache, lambda: registry)
    await registrar.take_in({"git": GIT})
    return registrar


def lines_of(logs: list[Any], event: str) -> list[Any]:
    return [line for line in logs if line["event"] == event]


async def test_a_disabling_during_a_look_is_not_lost(
    cache: ManifestCache, registry: Meddled, registrar: Registrar
) -> None:
    """The look has read the registry before, and stores its manifest after: it notices, and judges anew."""

    def disable() -> None:
        registry.when = {}
        registry.set_enabled("git.push", False)

    registry.when = {"list_all": disable}
    saved = (await registrar.take_in({"git": GIT})).saved

    assert saved["git"].verdicts["git.push"].is_disabled
    assert (await cache.load(["git"]))["git"].verdicts["git.push"].is_disabled


async def test_a_registry_that_never_rests_holds_nobody(cache: ManifestCache, registry: Meddled) -> None:
    """After some tries what is known is stored; who changes it judges it as well."""
    switch = [False]

    def meddle() -> None:
        if registry.get("git.push"):
            registry.set_enabled("git.push", switch[0])
            switch[0] = not switch[0]

    registry.when = {"revision": meddle}

    assert (await Registrar(cache, lambda: registry).take_in({"git": GIT})).saved["git"].manifest == GIT


@pytest.mark.parametrize("moment", ["opening", "revision", "list_all", "register_many"])
async def test_without_the_registry_nothing_is_stored(cache: ManifestCache, moment: str) -> None:
    """What operators have switched off would come back else."""

    def open_registry() -> InMemoryToolRegistry:
        return away() if moment == "opening" else Meddled(**{moment: away})

    with pytest.raises(RegistryAway, match="The registry is away: Redis at nowhere:1"):
        await Registrar(cache, open_registry).take_in({"git": GIT})
    assert await cache.load(["git"]) == {}


async def test_what_is_new_gets_its_turn_first(cache: ManifestCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a look has no time for all: of very many modules every one is taken in some time."""
    known = {name: ModuleManifest.model_validate(manifest_of(name, "log")) for name in ("cvs", "svn")}
    registry = InMemoryToolRegistry()
    taker = Registrar(cache, lambda: registry)
    await taker.take_in(known)
    times = iter([0.0, 1.0])  # when it begins, and at the first turn; then time is over
    monkeypatch.setattr(registration, "_AT_ONCE", 1)
    monkeypatch.setattr(registration, "machine_clock", SimpleNamespace(monotonic=lambda: next(times, 100.0)))
    taken = await taker.take_in({**known, "git": GIT})

    assert (set(taken.saved), set(taken.errors)) == ({"git"}, {"cvs", "svn"})


async def test_many_modules_are_taken_in_with_few_questions(cache: ManifestCache, redis: Redis) -> None:
    """Some dozens at once: neither the registry nor Redis is asked for each, and each is announced."""
    manifests = {f"m{n}": ModuleManifest.model_validate(manifest_of(f"m{n}", "log")) for n in range(200)}
    asked = list[int]()

    class Counting(InMemoryToolRegistry):
        def register_many(self, specs: Any, *, keep_enabled: bool = False) -> Any:
            asked.append(len(specs))
            return super().register_many(specs, keep_enabled=keep_enabled)

    registry = Counting()
    async with redis.pubsub() as news:
        await news.subscribe(Keys().manifests_changed)
        taken = await Registrar(cache, lambda: registry).take_in(manifests)
        told = set[str]()
        while len(told) < 200:
            told.add((await anext(each async for each in news.listen() if each["type"] == "message"))["data"])

    assert taken.saved.keys() == manifests.keys() == told
    assert (len(asked), sum(asked)) == (7, 200)
    assert (await cache.counted())["added"] == 200


async def test_while_the_registry_is_away_the_last_good_tools_live_on(
    redis: Redis, cache: ManifestCache, registry: Meddled, elsewhere: Path
) -> None:
    """With what was decided about them; the status says why nothing is new, and the manifests are kept alive."""
    behaviour = [offering("git", "log", "push")]

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        await behaviour[0](head, writer)

    async with raw_module(answer) as url:
        settings = Settings(module_services={"git": url})
        catalog = Catalog(settings, cache, lambda: registry)
        await catalog.refresh()
        registry.set_enabled("git.push", False)
        await catalog.refresh()
        behaviour[0] = offering("git", "log", "push", "gc")
        registry.when = {"revision": away}
        await redis.expire(Keys().module_manifest("git"), 5)
        status = (await catalog.refresh())["git"]

    assert [tool.name for tool in catalog.tools(OWNER)] == ["git.log"]
    assert (status.ok, status.tools, status.disabled) == (False, 2, 1)
    assert status.error == "The registry is away: Redis at nowhere:1 does not answer"
    assert await redis.ttl(Keys().module_manifest("git")) > 5


async def test_what_the_registry_cannot_read_closes_its_tool_only(
    cache: ManifestCache, redis: Redis, redis_url: str
) -> None:
    """Nobody knows whether it was disabled."""
    registrar = Registrar(cache, lambda: RedisToolRegistry(redis_url, Keys()))
    await registrar.take_in({"git": GIT})
    await redis.hset(Keys().registry.tools, "git.push", "nonsense")
    saved = (await registrar.take_in({"git": GIT})).saved

    assert set(saved["git"].verdicts) == {"git.push"}
    assert "cannot be read" in str(saved["git"].verdicts["git.push"].fault)


async def test_a_later_look_is_not_overwritten(cache: ManifestCache, registry: Meddled, registrar: Registrar) -> None:
    """An operator's verdicts go to the manifest that is there when they are stored."""
    loaded = (await cache.load(["git"]))["git"]
    later = ModuleManifest.model_validate(manifest_of("git", "log", "push", "gc"))
    await ManifestCache(cache._redis, ttl_seconds=100).save(later)

    assert await cache.replace(loaded, {}) is None
    registry.set_enabled("git.push", False)
    saved = there(await registrar.rejudge(registry, "git"))
    assert saved.manifest == later
    assert saved.verdicts["git.push"].is_disabled


async def test_a_module_without_a_manifest_has_nothing_to_judge(cache: ManifestCache) -> None:
    """What was decided counts when it comes."""
    assert await Registrar(cache, InMemoryToolRegistry).rejudge(InMemoryToolRegistry(), "git") is None


async def test_a_change_is_one_line_in_the_log(cache: ManifestCache) -> None:
    """Named up to a number; a warning only if somebody should look."""
    registry = InMemoryToolRegistry()
    registrar = Registrar(cache, lambda: registry)
    many = ModuleManifest.model_validate(manifest_of("git", *(f"tool{number}" for number in range(100))))
    with capture_logs() as logs:
        await registrar.take_in({"git": many})
        await registrar.take_in({"git": many})
        registry.pin("git", {})
        await registrar.take_in({"git": many.model_copy(update={"tools": [*many.tools, GIT.tools[0]]})})

    lines = lines_of(logs, "tools_changed")
    assert [(line["changes"], line["withheld"], line["log_level"]) for line in lines] == [
        ({"added": 100}, 0, "info"),
        ({"added": 1}, 1, "warning"),
    ]
    assert len(lines[0]["tools"]["added"]) == 20


async def test_a_broken_schema_closes_its_tool_only(cache: ManifestCache) -> None:
    """And is named in a warning, with what is wrong with it."""
    manifest = manifest_of("git", "log", "push")
    manifest["tools"][1]["input_schema"] = {"type": "object", "properties": {"a": {"type": "strin"}}}
    with capture_logs() as logs:
        git = ModuleManifest.model_validate(manifest)
        saved = (await Registrar(cache, InMemoryToolRegistry).take_in({"git": git})).saved

    assert list(saved["git"].verdicts) == ["git.push"]
    (line,) = lines_of(logs, "tools_closed")
    assert line["tools"] == {"git.push": saved["git"].verdicts["git.push"].fault}


async def test_a_wrong_definition_is_told_once_and_as_it_is(cache: ManifestCache) -> None:
    """By whoever asks the module, and not again by whoever registers its tools."""
    document = manifest_of("git", "log", "push")
    document["tools"][0]["parameters"] = [{"name": "a", "type": "string", "enum": "abc"}]
    async with raw_module(answering(json.dumps(document).encode())) as git:
        with capture_logs() as logs:
            found = (await discover({"git": git}, timeout_seconds=10, max_bytes=2**20))["git"]
            assert isinstance(found, ModuleManifest)
            await Registrar(cache, InMemoryToolRegistry).take_in({"git": found})

    (line,) = lines_of(logs, "tools_closed")
    fault = "its definition is wrong at parameters.0.enum: Input should be a valid list"
    assert line["tools"] == {"git.log": fault}


async def test_verdicts_that_cannot_be_read_close_their_module(cache: ManifestCache, redis: Redis) -> None:
    """They may say that a tool is disabled."""
    await cache.save(GIT)
    key = Keys().module_manifest("git")
    good = str(await redis.get(key))[:-1]
    for nonsense in ('["x"]', '{"git.push": {"is_off": true}}', '{"git.push": {"kept": {"name": "git.log"}}}'):
        await redis.set(key, f'{good}, "verdicts": {nonsense}}}', ex=50)
        with capture_logs() as logs:
            assert await ManifestCache(redis, ttl_seconds=100).load(["git"]) == {}
        assert [line["event"] for line in logs] == ["manifest_cache_unreadable"]


async def test_many_looks_at_once_lose_no_word_of_an_operator(redis: Redis, redis_url: str) -> None:
    """Each with connections of its own, of a module whose tools come and go, while its tools are disabled one by one."""

    def registrar() -> Registrar:
        return Registrar(ManifestCache(redis, ttl_seconds=100), lambda: RedisToolRegistry(redis_url, Keys()))

    always = [f"tool{number}" for number in range(8)]
    manifests = [
        ModuleManifest.model_validate(manifest_of("git", *always, *more)) for more in ((), ("gc",), ("x", "y"))
    ]
    await registrar().take_in({"git": manifests[0]})

    async def preview(manifest: ModuleManifest) -> None:
        own = registrar()
        for _ in range(6):
            await own.take_in({"git": manifest})

    async def disable() -> None:
        own = registrar()
        async with own.registry() as registry:
            for name in always:
                await asyncio.to_thread(registry.set_enabled, f"git.{name}", False)
                await own.rejudge(registry, "git")

    await asyncio.gather(*(preview(manifest) for manifest in manifests), disable())

    (cached,) = (await ManifestCache(redis, ttl_seconds=100).load(["git"])).values()
    assert {name for name, verdict in cached.verdicts.items() if verdict.is_disabled} == {
        f"git.{name}" for name in always
    }


async def test_lines_of_settings_are_kept_with_the_manifest(cache: ManifestCache) -> None:
    """As workers have them; an agent's own look keeps them, a module cannot write them, and a worker without them ends them."""
    lines = {"git": ModuleSpec(effects={"log": "read", "nothing": "read"}, permission="admin")}
    forged = GIT.model_copy(update={"lines": ToolLines(effects={"push": "read"})})
    registry = InMemoryToolRegistry()
    worker, agent, plain = (Registrar(cache, lambda: registry, each) for each in (lines, None, {}))

    assert (await agent.take_in({"git": forged})).saved["git"].manifest.lines is None
    with capture_logs() as logs:
        saved = (await worker.take_in({"git": forged})).saved["git"]
    assert saved.manifest.lines == ToolLines(effects={"log": "read", "nothing": "read"}, permission="admin")
    assert [log["names"] for log in logs if log["event"] == "settings_name_no_tool"] == [["nothing"]]
    assert (await agent.take_in({"git": GIT})).saved["git"].manifest.lines == saved.manifest.lines
    (read,) = (await cache.load(["git"])).values()
    assert {tool.access.required_permission for tool in seen_tools(read.manifest, read.verdicts)} == {"admin"}
    assert read_kept("git", registry.kept_manifests(["git"])["git"]).manifest.lines == saved.manifest.lines  # type: ignore[union-attr]
    assert not read.verdicts  # what settings say is no change of the tools
    assert (await plain.take_in({"git": GIT})).saved["git"].manifest.lines is None


MAIL = ModuleManifest.model_validate(manifest_of("mail", "send"))


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
    registration = there(await asyncio.to_thread(disabled.registry.get, "git.push"))
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


@pytest.mark.usefixtures("registrar")
async def test_a_look_that_others_overtake_for_ever_keeps_the_last_good(
    cache: ManifestCache, redis: Redis, registry: Meddled
) -> None:
    """After some tries; its module says so."""

    class Overtaken(ManifestCache):
        async def succeed(self, successors: Any) -> list[CachedManifest | None]:
            await cache.save(GIT)
            return await super().succeed(successors)

    later = ModuleManifest.model_validate(manifest_of("git", "log", "push", "gc"))
    overtaken = Overtaken(redis, ttl_seconds=100)
    taken = await Registrar(overtaken, lambda: registry).take_in({"git": later, "mail": MAIL})

    assert list(taken.errors) == ["git"]
    assert (await cache.load(["git"]))["git"].manifest == GIT


async def test_another_registry_overrules_nobody_until_it_is_adopted(
    cache: ManifestCache, redis: Redis, redis_url: str, elsewhere: Path
) -> None:
    """Neither a process's look, nor an operator's word, if it is set up otherwise; the last good manifests live on. Once adopted, it is the right one."""
    async with raw_module(offering("git", "log", "push")) as url:
        fleet = Settings(redis_url=redis_url, module_services={"git": url}, registry_url=f"sqlite:///{elsewhere}/a.db")
        await Catalog(fleet, cache).refresh()
        async with operating(fleet) as operator:
            await operator.disable("git.push")
        for registry_url in (None, "sqlite://", f"sqlite:///{elsewhere}/b.db"):
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

        await adopt_registry(other)
        assert [(await Catalog(each, cache).refresh())["git"].ok for each in (other, fleet)] == [True, False]


async def test_a_defect_that_one_module_brings_out_hides_no_other(
    registrar: Registrar, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its last good manifest, and says what is wrong."""
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
    cache: ManifestCache, registrar: Registrar, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps its last good manifest, if even a longer turn is not enough; the others have been stored by then."""
    await redis.expire(Keys().module_manifest("git"), 5)
    seen = list[str]()
    clock = [0.0]

    def slow(tool: ToolDefinition) -> None:
        seen.append(tool.name)
        clock[0] += 3 if tool.name.startswith("git.") else 0

    monkeypatch.setattr(validation, "schema_fault", slow)
    monkeypatch.setattr("toolfleet_registry.catalog.registration.time.thread_time", lambda: clock[0])
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
    monkeypatch.setattr(registration, "_PATIENCE_SECONDS", 0)
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
    monkeypatch.setattr("toolfleet_registry.catalog.registration._SECONDS_IN_ALL", -1)
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
    kept = there(cached.verdicts["git.push"].kept)
    assert kept.description == "a"


async def test_a_name_that_may_look_like_another_closes_its_tool_only(redis: Redis, cache: ManifestCache) -> None:
    """It is logged, counted and shown; whoever stores the manifest, nobody may use it."""
    twin = "git.log\ufe0f"
    git = ModuleManifest.model_validate(manifest_of("git", "log", "log\ufe0f"))
    with capture_logs() as logs:
        saved = (await Registrar(cache, InMemoryToolRegistry).take_in({"git": git})).saved["git"]
    (line,) = lines_of(logs, "tools_closed")
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
