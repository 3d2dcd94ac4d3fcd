"""The catalog: what exists, who may use it, and what is said to those who may not."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from redis.asyncio import Redis

from support.modules.raw_modules import Behaviour, answering, manifest_of, noting, offering, raw_module, writing
from toolfleet_registry.catalog.catalog import Catalog, Judged
from toolfleet_registry.contracts import Caller, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.manifests.manifest_cache import ManifestCache
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import load_settings
from toolfleet_registry.store.memory import InMemoryToolRegistry

OWNER = Caller(permission="owner", allowed_modules="*")
NOWHERE = "http://127.0.0.1:1"
_SCHEDULER = "TOOLFLEET_SCHEDULER=true, for agents, gateways, workers and beat alike, has the fleet offer it."

GIT = manifest_of("git", "log", "push", "pull", "gc", "root_only")
for _tool, _permission in zip(GIT["tools"], ["guest", "admin", "user", "owner", "superuser"], strict=True):
    _tool["required_permission"] = _permission
MAIL = manifest_of("mail", "send")
# Sorts before git's tools by the whole name, and after them by the module's.
GIT_LFS = manifest_of("git-lfs", "fetch")


def catalog_of(redis: Redis, **services: str) -> Catalog:
    settings = load_settings(
        module_services={name.replace("__", "-"): url for name, url in services.items()},
        discovery_timeout_seconds=5,
        default_guest_modules=["git"],
    )
    registry = InMemoryToolRegistry()
    return Catalog(settings, ManifestCache(redis, ttl_seconds=settings.manifest_ttl_seconds), lambda: registry)


async def put(redis: Redis, *manifests: dict[str, Any], age: float = 0) -> None:
    for manifest in manifests:
        value = json.dumps({**manifest, "discovered_at": time.time() - age})
        await redis.set(Keys().module_manifest(manifest["module_name"]), value, ex=50)


async def loaded(redis: Redis, manifest: dict[str, Any]) -> Catalog:
    """One of the module alone."""
    await put(redis, manifest)
    catalog = catalog_of(redis, **{manifest["module_name"]: NOWHERE})
    await catalog.load()
    return catalog


@pytest.fixture
async def catalog(redis: Redis, elsewhere: object) -> Catalog:
    """Filled with git, git-lfs and mail; `calendar` is in the settings, and nobody has ever reached it."""
    await put(redis, GIT, GIT_LFS, MAIL)
    catalog = catalog_of(redis, mail=NOWHERE, git=NOWHERE, git__lfs=NOWHERE, calendar=NOWHERE)
    await catalog.load()
    return catalog


def names(tools: list[ToolDefinition]) -> list[str]:
    return [tool.name for tool in tools]


@pytest.mark.parametrize(
    ("caller", "expected"),
    [
        (Caller(permission="guest"), ["git.log"]),  # the default guest modules
        (Caller().model_copy(update={"permission": "nonsense"}), ["git.log"]),  # counts as guest
        (Caller(permission="user"), ["git-lfs.fetch", "git.log", "git.pull", "mail.send"]),  # all modules
        (Caller(permission="user", allowed_modules=frozenset({"git"})), ["git.log", "git.pull"]),
        (Caller(permission="admin", allowed_modules=frozenset({"git"})), ["git.log", "git.pull", "git.push"]),
        # Never the closed one.
        (Caller(permission="owner"), ["git-lfs.fetch", "git.gc", "git.log", "git.pull", "git.push", "mail.send"]),
        (Caller(permission="user", allowed_modules=frozenset({"mail"})), ["mail.send"]),
        (Caller(permission="owner", allowed_modules=frozenset()), []),
        (Caller(permission="owner", allowed_modules=frozenset({"calendar", "other"})), []),
        (Caller(allowed_modules="*"), ["git-lfs.fetch", "git.log", "mail.send"]),
    ],
)
async def test_a_caller_sees_what_it_may_use(catalog: Catalog, caller: Caller, expected: list[str]) -> None:
    """By level and by module, sorted by name, the same each time."""
    assert names(catalog.tools(caller)) == expected
    assert names(catalog.tools(caller)) == expected


async def test_a_listing_is_the_callers_own(catalog: Catalog) -> None:
    """What somebody does to one listing is in no other."""
    catalog.tools(OWNER).clear()
    assert catalog.tools(OWNER)


@pytest.mark.parametrize("name", ["git.log", "git.push", "mail.send", "git-lfs.fetch"])
async def test_a_good_call_gets_its_definition(catalog: Catalog, name: str) -> None:
    """The tool's own definition, from which the call is routed."""
    judged = catalog.judge(ToolCall(tool_name=name, arguments={"a": [1, None]}), OWNER)
    assert isinstance(judged, Judged)
    assert judged.tool.name == name
    assert judged.arguments == {"a": [1, None]}


def refusal(catalog: Catalog, call: ToolCall, caller: Caller = OWNER) -> ToolResult:
    result = catalog.judge(call, caller)
    assert isinstance(result, ToolResult)
    assert not result.success
    assert result.effect_state == "none"
    assert not result.retryable
    result.model_dump_json()  # goes to a model: it can always be written
    return result


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("xyz", "invalid_tool_name", "Invalid tool name format: xyz. Expected 'module.tool_name'."),
        ("", "invalid_tool_name", "Invalid tool name format: . Expected 'module.tool_name'."),
        (".push", "invalid_tool_name", "Invalid tool name format: .push. Expected 'module.tool_name'."),
        ("git.", "invalid_tool_name", "Invalid tool name format: git.. Expected 'module.tool_name'."),
        ("git.a b", "invalid_tool_name", "Invalid tool name format: git.a b. Expected 'module.tool_name'."),
        ("git.\ud800", "invalid_tool_name", "Invalid tool name format: git.?. Expected 'module.tool_name'."),
        ("xyz.push", "unknown_module", "Unknown module: xyz"),
        ("scheduler.add_job", "unknown_module", f"Unknown module: scheduler. {_SCHEDULER}"),
        ("git.xyz", "unknown_tool", "Unknown tool: git.xyz"),
        ("git.push.force", "unknown_tool", "Unknown tool: git.push.force"),
        ("Git.push", "unknown_module", "Unknown module: Git"),
    ],
)
async def test_a_name_that_is_no_tool_is_refused(catalog: Catalog, name: str, code: str, text: str) -> None:
    """The texts are those that agents know."""
    result = refusal(catalog, ToolCall(tool_name=name))
    assert (result.error_code, result.error) == (code, text)
    assert result.tool_name == name.replace("\ud800", "?")


async def test_a_refusal_repeats_little_of_a_long_name(catalog: Catalog) -> None:
    """A model's megabyte of nonsense is not sent back to it as an error."""
    result = refusal(catalog, ToolCall(tool_name="x" * 1_000_000))
    assert len(result.error or "") < 400


@pytest.mark.parametrize(
    ("name", "caller", "text"),
    [
        ("git.push", Caller(permission="user"), "Tool 'git.push' needs 'admin'; caller is 'user'."),
        ("git.pull", Caller(), "Tool 'git.pull' needs 'user'; caller is 'guest'."),
        ("git.root_only", OWNER, "Tool 'git.root_only' is closed: it needs the unknown permission 'superuser'."),
        ("mail.send", Caller(), "Module 'mail' is not among the caller's modules."),
        # Whether the tool exists is not said.
        ("mail.xyz", Caller(), "Module 'mail' is not among the caller's modules."),
    ],
)
async def test_a_call_that_is_not_allowed_is_refused(catalog: Catalog, name: str, caller: Caller, text: str) -> None:
    """The text says what is missing; arguments are not looked at."""
    result = refusal(catalog, ToolCall(tool_name=name, arguments="nonsense"), caller)
    assert (result.error_code, result.error) == ("permission_denied", text)


@pytest.mark.parametrize(
    ("name", "caller", "hint"),
    [
        ("git.pus", OWNER, "Did you mean git.push?"),
        ("git.pus", Caller(permission="user"), None),  # push needs an admin
        ("git.pul", Caller(permission="user"), "Did you mean git.pull?"),
        ("git.pul", Caller(permission="guest"), None),
        ("git.root_onl", OWNER, None),  # closed for everybody
        ("git.gargantuan" * 10, OWNER, None),
        ("calendar.add", OWNER, "Module 'calendar' is not reachable now; its tools may be there later."),
    ],
)
async def test_a_hint_names_only_what_the_caller_may_use(
    catalog: Catalog, name: str, caller: Caller, hint: str | None
) -> None:
    """Near names help a model that misspells; they tell nobody what else there is."""
    result = refusal(catalog, ToolCall(tool_name=name), caller)
    assert result.error_code == "unknown_tool"
    assert result.hint == hint


async def test_a_module_that_serves_nothing_is_no_wrong_name(redis: Redis, elsewhere: object) -> None:
    """The hint names what says why: another name from the list would not help."""
    fault = {"file": "git", "error_type": "ServerAway", "message": "Its server cannot be served."}
    catalog = await loaded(redis, {**manifest_of("git"), "load_errors": [fault]})
    result = refusal(catalog, ToolCall(tool_name="git.log"))
    assert (result.error_code, result.hint) == (
        "unknown_tool",
        "Module 'git' serves no tools now; `toolfleet tools list --errors` says why.",
    )


async def test_a_module_has_as_many_tools_as_it_lists(redis: Redis, elsewhere: object) -> None:
    """What passes on a method of a protocol, or keeps a former name, counts for nothing."""
    hidden = {**GIT["tools"][0], "name": "git.mcp.prompts.get", "listed": False}
    catalog = await loaded(redis, {**GIT, "tools": [*GIT["tools"], hidden]})
    assert catalog.statuses()["git"].tools == len(GIT["tools"])


@pytest.mark.parametrize("arguments", [None, [], "{}", '{"query": "o', {"x": float("nan")}, {1: 2}, {"x": b""}])
async def test_arguments_that_are_no_json_object_are_refused(catalog: Catalog, arguments: Any) -> None:
    """What exactly is found in them is a matter of their own tests."""
    result = refusal(catalog, ToolCall(tool_name="git.log", arguments=arguments))
    assert result.error_code == "invalid_arguments"
    assert "rguments" in (result.error or "")


async def test_ten_thousand_tools_are_listed_and_found(redis: Redis, elsewhere: object) -> None:
    """Listings of the same kind of caller are made once."""
    modules = [manifest_of(f"m{n}", *(f"tool{i}" for i in range(1000))) for n in range(10)]
    await put(redis, *modules)
    catalog = catalog_of(redis, **{manifest["module_name"]: NOWHERE for manifest in modules})
    await catalog.load()
    listed = catalog.tools(OWNER)
    assert len(listed) == 10_000
    assert names(listed) == sorted(names(listed))
    for _ in range(1000):
        assert len(catalog.tools(OWNER)) == 10_000
        assert isinstance(catalog.judge(ToolCall(tool_name="m7.tool500"), OWNER), Judged)
    hint = refusal(catalog, ToolCall(tool_name="m7.tool")).hint or ""
    assert hint.count(" or m7.tool") == 2


async def test_many_kinds_of_callers_are_not_kept_for_ever(catalog: Catalog) -> None:
    """Each set of allowed modules has its own listing; old ones make room."""
    for n in range(1000):
        assert names(catalog.tools(Caller(allowed_modules=frozenset({"git", f"m{n}"})))) == ["git.log"]
    assert len(catalog._state.tools._listings) <= 256


Switch = Callable[[str, Behaviour], None]
"""Changes what a running module does."""
Fleet = Callable[..., AbstractAsyncContextManager[tuple[Catalog, Switch]]]


@pytest.fixture
def running(redis: Redis, elsewhere: object) -> Fleet:
    @contextlib.asynccontextmanager
    async def run(**behaviours: Behaviour) -> AsyncGenerator[tuple[Catalog, Switch]]:
        def serve(name: str) -> Behaviour:
            async def behave(head: bytes, writer: asyncio.StreamWriter) -> None:
                await behaviours[name](head, writer)

            return behave

        async with contextlib.AsyncExitStack() as stack:
            urls = {name: await stack.enter_async_context(raw_module(serve(name))) for name in behaviours}
            yield catalog_of(redis, **urls), behaviours.__setitem__

    return run


async def test_a_full_cache_is_used_and_nobody_asked(redis: Redis, running: Fleet) -> None:
    """A process starts with what others have found."""
    await put(redis, GIT, age=100)
    asked = list[bytes]()
    async with running(git=noting(asked, writing(b"")), mail=noting(asked, writing(b""))) as (catalog, _):
        await catalog.ensure()
        assert "git.push" in names(catalog.tools(OWNER))
        status = catalog.statuses()["git"]
        assert (status.ok, status.tools, status.closed_tools, status.error) == (True, 5, ("git.root_only",), None)
        assert status.age_seconds == pytest.approx(100, abs=30)
        assert catalog.statuses()["mail"].error == "no manifest yet"
    assert not asked


async def test_an_empty_cache_leads_to_discovery_once(redis: Redis, running: Fleet) -> None:
    """Ten that start at the same time look once; what is found is in the cache for all."""
    asked = list[bytes]()
    async with running(git=noting(asked, offering("git", "push"))) as (catalog, _):
        await asyncio.gather(*(catalog.ensure() for _ in range(10)))
        await catalog.ensure()
        assert names(catalog.tools(OWNER)) == ["git.push"]
    assert len(asked) == 1
    assert json.loads(await redis.get("module_manifest:git") or "")["module_name"] == "git"


async def test_a_fleet_without_any_living_module_is_asked_once(running: Fleet) -> None:
    """Nothing found is an answer, too: the next call does not wait for another look."""
    asked = list[bytes]()
    async with running(git=noting(asked, writing(b""))) as (catalog, _):
        await catalog.ensure()
        await catalog.ensure()
        assert catalog.tools(OWNER) == []
        assert not catalog.statuses()["git"].ok
    assert len(asked) == 1


async def test_without_redis_ensure_can_be_tried_again(elsewhere: object) -> None:
    """It raises `FleetUnavailable`, and does not take it for an empty fleet."""
    async with Redis.from_url("redis://127.0.0.1:1") as nowhere:
        catalog = catalog_of(nowhere, git=NOWHERE)
        for _ in range(2):
            with pytest.raises(FleetUnavailable):
                await catalog.ensure()


async def test_a_module_that_fails_keeps_its_tools(redis: Redis, running: Fleet) -> None:
    """Its last good manifest lives on with its age, the failure is shown, and the others are fresh."""
    await put(redis, GIT, age=1000)
    async with running(git=answering(b"", status="500 Oops"), mail=offering("mail", "send")) as (catalog, _):
        statuses = await catalog.refresh()

        assert names(catalog.tools(OWNER)) == ["git.gc", "git.log", "git.pull", "git.push", "mail.send"]
    git = statuses["git"]
    assert (git.ok, git.error, git.tools) == (False, "answered with status 500", 5)
    assert git.age_seconds == pytest.approx(1000, abs=30)
    assert statuses["mail"].ok
    assert statuses["mail"].age_seconds == pytest.approx(0, abs=30)
    assert await redis.ttl("module_manifest:git") > 3000


async def test_what_a_module_offers_now_replaces_what_it_offered(running: Fleet) -> None:
    """Tools that are gone are unknown, and new ones are there, in one step."""
    async with running(git=offering("git", "push", "pull")) as (catalog, switch):
        await catalog.refresh()
        switch("git", offering("git", "pull", "log"))
        await catalog.refresh()
        assert names(catalog.tools(OWNER)) == ["git.log", "git.pull"]
        assert refusal(catalog, ToolCall(tool_name="git.push")).error_code == "unknown_tool"


async def test_a_module_that_was_never_reached_has_no_tools(running: Fleet) -> None:
    """Its status says why."""
    async with running(git=writing(b"")) as (catalog, _):
        git = (await catalog.refresh())["git"]
    assert (git.ok, git.tools, git.age_seconds) == (False, 0, None)
    assert git.error


async def test_a_module_cannot_take_over_anothers_tools(running: Fleet) -> None:
    """Neither by its name nor by its tools; the other one stays."""
    async with running(git=offering("git", "push"), evil=offering("git", "push")) as (catalog, _):
        statuses = await catalog.refresh()
        assert statuses["git"].ok
        assert "is that of module 'git'" in (statuses["evil"].error or "")
        assert names(catalog.tools(OWNER)) == ["git.push"]


async def test_another_process_s_look_is_taken_over(redis: Redis, running: Fleet) -> None:
    """Loading replaces the tools, and an older failure is forgotten once a later look was good."""
    async with running(git=writing(b"")) as (catalog, _):
        assert not (await catalog.refresh())["git"].ok
        await put(redis, GIT, age=500)  # an older look than our failed one
        await catalog.load()
        assert not catalog.statuses()["git"].ok
        assert "git.push" in names(catalog.tools(OWNER))
        await put(redis, GIT, age=-1)
        await catalog.load()
        assert catalog.statuses()["git"].ok


async def test_what_is_older_than_a_setting_is_stale(redis: Redis, elsewhere: object) -> None:
    """Its tools stay, and its status says so; of what has no age nobody can say it. Others may share the Redis."""
    await put(redis, GIT, age=890)
    await put(redis, manifest_of("crow", "caw"))
    await put(redis, MAIL, age=910)
    await redis.set(Keys().module_manifest("git-lfs"), json.dumps(GIT_LFS), ex=50)
    catalog = catalog_of(redis, mail=NOWHERE, git=NOWHERE, git__lfs=NOWHERE)
    await catalog.load()

    stale = {module: status.is_stale for module, status in catalog.statuses().items()}
    assert stale == {"git": False, "git-lfs": False, "mail": True}
    assert {"mail.send", "crow.caw"} & {*names(catalog.tools(OWNER))} == {"mail.send"}


async def test_a_deprecated_tool_is_listed_with_its_successor(redis: Redis, elsewhere: object) -> None:
    """First thing in its description; it can be called as before, and its definition is the module's own."""
    manifest = manifest_of("git", "log", "push", "gc")
    manifest["tools"][1] |= {"deprecated": True, "successor": "git.push2"}
    manifest["tools"][2] |= {"deprecated": True, "description": ""}
    catalog = await loaded(redis, manifest)

    described = {tool.name: tool.description for tool in catalog.tools(OWNER)}
    judged = catalog.judge(ToolCall(tool_name="git.push"), OWNER)
    assert described["git.push"] == "Deprecated: use 'git.push2' instead. push it"
    assert described["git.gc"] == "Deprecated."
    assert described["git.log"] == "log it"
    assert isinstance(judged, Judged)
    assert judged.tool.description == "push it"


async def test_a_search_finds_what_the_caller_may_use(catalog: Catalog) -> None:
    """By the same rule as a listing, in the tools of the moment."""
    assert names(await catalog.search("push pull", OWNER)) == ["git.pull", "git.push"]
    assert names(await catalog.search("push pull", Caller(permission="user"))) == ["git.pull"]
    assert names(await catalog.search("send", Caller())) == []
    assert names(await catalog.search("root", OWNER)) == []  # closed for everybody
    assert len(await catalog.search("", OWNER, limit=2)) == 2


async def test_what_the_core_tells_a_module_need_not_come_from_the_model(redis: Redis, elsewhere: object) -> None:
    """A required platform is there before the arguments are judged; what the tool has no room for is told nevertheless."""
    wake = manifest_of("scheduler", "wake")
    wake["tools"][0]["input_schema"] = {
        "properties": {"platform": {"type": "string"}, "text": {"type": "string"}},
        "required": ["platform", "text"],
        "additionalProperties": False,
    }
    catalog = await loaded(redis, wake)
    caller = Caller(permission="owner", allowed_modules="*")
    call = ToolCall(tool_name="scheduler.wake", arguments={"text": "up"})

    judged = catalog.judge(call, caller, {"platform": "chat", "platform_thread_id": "9"})

    assert isinstance(judged, Judged)
    assert judged.arguments == {"text": "up", "platform": "chat", "platform_thread_id": "9"}
    assert isinstance(catalog.judge(call, caller, {"platform": 9}), ToolResult)
    assert isinstance(catalog.judge(call, caller), ToolResult)


async def test_what_the_core_tells_is_judged_wherever_the_schema_speaks_of_it(redis: Redis, elsewhere: object) -> None:
    """Behind a reference as well."""
    wake = manifest_of("scheduler", "wake")
    wake["tools"][0]["input_schema"] = {
        "$ref": "#/$defs/where",
        "$defs": {"where": {"properties": {"platform": {"type": "integer"}}, "required": ["platform"]}},
    }
    catalog = await loaded(redis, wake)
    caller = Caller(permission="owner", allowed_modules="*")
    call = ToolCall(tool_name="scheduler.wake", arguments={})

    assert isinstance(catalog.judge(call, caller, {"platform": "chat"}), ToolResult)
    judged = catalog.judge(call, caller, {"platform": 9, "conversation_id": "c"})
    assert isinstance(judged, Judged)
    assert judged.arguments == {"platform": 9, "conversation_id": "c"}
