"""Taking manifests in when something goes wrong: the registry is away, changes meanwhile, or holds nonsense."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from support.modules.raw_modules import answering, manifest_of, offering, raw_module
from toolfleet_registry.catalog import batch_registration
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.catalog.registration import Registrar
from toolfleet_registry.config.module_settings import ModuleSpec
from toolfleet_registry.contracts import Caller, ModuleManifest
from toolfleet_registry.contracts.tool_definition import ToolLines
from toolfleet_registry.errors import FleetUnavailable, RegistryAway
from toolfleet_registry.manifests.discovery import discover
from toolfleet_registry.manifests.manifest_cache import ManifestCache, read_kept
from toolfleet_registry.manifests.overrides import seen_tools
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
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


def away() -> None:
    raise FleetUnavailable("Redis at nowhere:1 does not answer")


@pytest.fixture
def cache(redis: Redis) -> ManifestCache:
    return ManifestCache(redis, ttl_seconds=100)


async def test_a_disabling_during_a_look_is_not_lost(cache: ManifestCache) -> None:
    """The look has read the registry before, and stores its manifest after: it notices, and judges anew."""
    registry = Meddled()
    registrar = Registrar(cache, lambda: registry)
    await registrar.take_in({"git": GIT})

    def disable() -> None:
        registry.when = {}
        registry.set_enabled("git.push", False)

    registry.when = {"list_all": disable}
    saved = (await registrar.take_in({"git": GIT})).saved

    assert saved["git"].verdicts["git.push"].is_disabled
    assert (await cache.load(["git"]))["git"].verdicts["git.push"].is_disabled


async def test_a_registry_that_never_rests_holds_nobody(cache: ManifestCache) -> None:
    """After some tries what is known is stored; who changes it judges it as well."""
    registry = Meddled()
    switch = [False]

    def meddle() -> None:
        if registry.get("git.push"):
            registry.set_enabled("git.push", switch[0])
            switch[0] = not switch[0]

    registry.when = {"revision": meddle}

    assert (await Registrar(cache, lambda: registry).take_in({"git": GIT})).saved["git"].manifest == GIT


@pytest.mark.parametrize("moment", ["revision", "list_all", "register_many"])
async def test_without_the_registry_nothing_is_stored(cache: ManifestCache, moment: str) -> None:
    """What operators have switched off would come back else."""
    registry = Meddled(**{moment: away})

    with pytest.raises(RegistryAway, match="The registry is away: Redis at nowhere:1"):
        await Registrar(cache, lambda: registry).take_in({"git": GIT})
    assert await cache.load(["git"]) == {}


async def test_what_is_new_gets_its_turn_first(cache: ManifestCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a look has no time for all: of very many modules every one is taken in some time."""
    known = {name: ModuleManifest.model_validate(manifest_of(name, "log")) for name in ("cvs", "svn")}
    registry = InMemoryToolRegistry()
    taker = Registrar(cache, lambda: registry)
    await taker.take_in(known)
    times = iter([0.0, 1.0])  # when it begins, and at the first turn; then time is over
    monkeypatch.setattr(batch_registration, "_AT_ONCE", 1)
    monkeypatch.setattr(batch_registration, "machine_clock", SimpleNamespace(monotonic=lambda: next(times, 100.0)))
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
        while len(told) < 200 and (message := await news.get_message(timeout=5)) is not None:
            told |= {message["data"]} if message["type"] == "message" else set()

    assert taken.saved.keys() == manifests.keys() == told
    assert (len(asked), sum(asked)) == (7, 200)
    assert (await cache.counted())["added"] == 200


async def test_a_registry_that_does_not_open_is_away(cache: ManifestCache) -> None:
    """From the first moment."""

    def open_registry() -> InMemoryToolRegistry:
        raise FleetUnavailable("Redis at nowhere:1 does not answer")

    with pytest.raises(RegistryAway):
        await Registrar(cache, open_registry).take_in({"git": GIT})


async def test_while_the_registry_is_away_the_last_good_tools_live_on(redis: Redis, elsewhere: Path) -> None:
    """With what was decided about them; the status says why nothing is new, and the manifests are kept alive."""
    registry = Meddled()
    behaviour = [offering("git", "log", "push")]

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        await behaviour[0](head, writer)

    async with raw_module(answer) as url:
        settings = Settings(module_services={"git": url})
        catalog = Catalog(settings, ManifestCache(redis, ttl_seconds=100), lambda: registry)
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


async def test_what_the_registry_cannot_read_closes_its_tool_only(redis: Redis, redis_url: str) -> None:
    """Nobody knows whether it was disabled."""
    cache = ManifestCache(redis, ttl_seconds=100)
    registrar = Registrar(cache, lambda: RedisToolRegistry(redis_url, Keys()))
    await registrar.take_in({"git": GIT})
    await redis.hset(Keys().registry.tools, "git.push", "nonsense")
    saved = (await registrar.take_in({"git": GIT})).saved

    assert set(saved["git"].verdicts) == {"git.push"}
    assert "cannot be read" in str(saved["git"].verdicts["git.push"].fault)


async def test_a_later_look_is_not_overwritten(cache: ManifestCache) -> None:
    """An operator's verdicts go to the manifest that is there when they are stored."""
    registry = Meddled()
    registrar = Registrar(cache, lambda: registry)
    await registrar.take_in({"git": GIT})
    loaded = (await cache.load(["git"]))["git"]
    later = ModuleManifest.model_validate(manifest_of("git", "log", "push", "gc"))
    await ManifestCache(cache._redis, ttl_seconds=100).save(later)

    assert await cache.replace(loaded, {}) is None
    registry.set_enabled("git.push", False)
    saved = await registrar.rejudge(registry, "git")
    assert saved is not None
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

    lines = [line for line in logs if line["event"] == "tools_changed"]
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
        saved = (
            await Registrar(cache, InMemoryToolRegistry).take_in({"git": ModuleManifest.model_validate(manifest)})
        ).saved

    assert list(saved["git"].verdicts) == ["git.push"]
    (line,) = (line for line in logs if line["event"] == "tools_closed")
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

    (line,) = (line for line in logs if line["event"] == "tools_closed")
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

    async with asyncio.timeout(60):
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
