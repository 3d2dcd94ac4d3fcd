"""A worker looks at a caller's rights once more, with what it knows itself."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
import structlog
from redis.asyncio import Redis

from support.http_executor import executor_for
from support.published_call import published
from support.silent_server import silent_server
from support.waiting import wait_until
from toolfleet_registry.catalog import Catalog
from toolfleet_registry.contracts import Caller, ModuleManifest, PublishedCall, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.keys import Keys
from toolfleet_registry.manifests import ManifestCache
from toolfleet_registry.outcomes import Attempt, Outcome
from toolfleet_registry.permissions import Modules
from toolfleet_registry.settings import Settings
from toolfleet_registry.verdicts import SeenTool, Verdict, seen_tools
from toolfleet_workers.known_tools import KnownTools
from toolfleet_workers.middleware.permission import PermissionCheck
from toolfleet_workers.ports import free_port
from toolfleet_workers.runner import CallRunner

SUCCESS = Attempt(Outcome.SUCCESS, ToolResult.ok("owls.count", 7))
EVERYWHERE = frozenset({"owls", "cats"})


async def run(call: PublishedCall) -> Attempt:
    return SUCCESS


def asks(tool: str = "owls.count", permission: str = "guest", modules: Modules | None = "*") -> PublishedCall:
    return published(tool, caller=Caller(permission=permission, allowed_modules=modules))


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Known:
    """What a worker knows, without Redis: `later` is what it learns when it looks."""

    def __init__(self, *, later: dict[str, str] | None = None, is_old: bool = False, **tools: str) -> None:
        self.tools = {f"owls.{name}": required for name, required in tools.items()}
        self.later = later or {}
        self.verdicts: dict[str, Verdict] = {}
        self.looks = 0
        self.is_old = is_old

    def find(self, tool_name: str) -> SeenTool | None:
        if (required := self.tools.get(tool_name)) is None:
            return None
        definition = ToolDefinition(name=tool_name, required_permission=required)
        (tool,) = seen_tools(ModuleManifest(module_name="owls", tools=[definition]), self.verdicts)
        return tool

    async def refresh(self, *, reads_all: bool = True) -> None:
        self.looks += 1
        self.is_old = False
        self.tools |= self.later


@pytest.mark.parametrize(
    ("required", "permission", "runs"),
    [
        ("guest", "guest", True),
        ("admin", "admin", True),
        ("admin", "owner", True),
        ("admin", "user", False),
        ("guest", "emperor", True),  # an unknown caller's level is a guest's
        ("user", "emperor", False),
        ("emperor", "owner", False),  # an unknown tool's level closes it
    ],
)
async def test_a_caller_must_have_what_the_tool_asks_for(required: str, permission: str, runs: bool) -> None:
    """By the same rule as when tools are listed and calls published."""
    attempt = await PermissionCheck(Known(count=required), EVERYWHERE)(asks(permission=permission), run)

    assert (attempt is SUCCESS) == runs
    if not runs:
        result = attempt.result
        assert attempt.outcome is Outcome.PERMANENT
        assert (result.error_code, result.effect_state, result.retryable) == ("permission_denied", "none", False)


@pytest.mark.parametrize(
    ("modules", "default", "runs"),
    [
        ("*", frozenset[str](), True),
        (frozenset({"owls"}), frozenset[str](), True),
        (frozenset({"cats"}), EVERYWHERE, False),
        (frozenset[str](), EVERYWHERE, False),
        (None, frozenset({"owls"}), True),  # a caller that does not say reaches the guests' modules
        (None, frozenset({"cats"}), False),
    ],
)
async def test_a_caller_must_reach_the_module(modules: Modules | None, default: frozenset[str], runs: bool) -> None:
    """Also of a module that nothing is known of."""
    for known in (Known(count="guest"), Known()):
        attempt = await PermissionCheck(known, default)(asks(permission="owner", modules=modules), run)

        assert (attempt is SUCCESS) == runs
        assert runs or attempt.result.error == "Module 'owls' is not among the caller's modules."


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (Verdict(is_disabled=True), "Tool 'owls.count' is disabled by an operator."),
        (
            Verdict(is_withheld=True),
            "Tool 'owls.count' is withheld: no operator has approved what its module offers now.",
        ),
        (Verdict(fault="its schema is wrong"), "Tool 'owls.count' is closed: its schema is wrong."),
        (Verdict(kept=ToolDefinition(name="owls.count", required_permission="owner")), None),
    ],
)
async def test_what_operators_have_closed_does_not_run(verdict: Verdict, reason: str | None) -> None:
    """Whoever publishes it, and whatever they may else."""
    known = Known(count="guest")
    known.verdicts = {"owls.count": verdict}
    attempt = await PermissionCheck(known, EVERYWHERE)(asks(permission="owner"), run)

    assert attempt.result.error == reason
    assert known.looks == (0 if reason is None else 1)


VERDICTS = [
    None,
    Verdict(is_disabled=True),
    Verdict(is_withheld=True),
    Verdict(fault="wrong"),
    Verdict(is_disabled=False),
]


@pytest.mark.parametrize("permission", ["guest", "user", "owner", "emperor"])
@pytest.mark.parametrize("modules", ["*", frozenset({"owls"}), frozenset({"cats"}), None])
async def test_the_three_looks_agree(redis: Redis, elsewhere: object, permission: str, modules: Modules | None) -> None:
    """What is listed is what is published is what is run, with the same words, whatever is known of a tool."""
    caller = Caller(permission=permission, allowed_modules=modules)
    for required, verdict in itertools.product(["guest", "user", "owner", "emperor"], VERDICTS):
        known = Known(count=required)
        known.verdicts = {} if verdict is None else {"owls.count": verdict}
        settings = Settings(module_services={"owls": "http://owls.test"}, default_guest_modules=frozenset({"cats"}))
        cache = ManifestCache(redis, ttl_seconds=60)
        definition = ToolDefinition(name="owls.count", required_permission=required)
        await cache.save(ModuleManifest(module_name="owls", tools=[definition]), known.verdicts)
        catalog = Catalog(settings, cache)
        await catalog.load()
        judged = catalog.judge(ToolCall(tool_name="owls.count"), caller)
        attempt = await PermissionCheck(known, frozenset({"cats"}))(published("owls.count", caller=caller), run)

        refused = judged.error if isinstance(judged, ToolResult) else None
        assert refused == attempt.result.error
        assert bool(catalog.tools(caller)) == (refused is None)


async def test_nothing_is_decided_on_old_knowledge() -> None:
    """After a pause a worker looks before it runs a call; once."""
    known = Known(count="guest", later={"owls.count": "admin"}, is_old=True)
    check = PermissionCheck(known, EVERYWHERE)

    assert (await check(asks(), run)).result.error_code == "permission_denied"
    assert await check(asks(permission="owner"), run) is SUCCESS
    assert known.looks == 1


async def test_what_is_known_is_not_looked_up() -> None:
    """A call that may run costs no look."""
    known = Known(count="guest")
    await PermissionCheck(known, EVERYWHERE)(asks(), run)

    assert known.looks == 0


async def test_before_it_refuses_it_looks_again() -> None:
    """A tool that has become free for all is not refused for what it was."""
    known = Known(count="admin", later={"owls.count": "guest"})

    assert await PermissionCheck(known, EVERYWHERE)(asks(), run) is SUCCESS


async def test_a_new_tool_is_looked_up_before_it_runs() -> None:
    """What is not known yet is not open for that."""
    attempt = await PermissionCheck(Known(later={"owls.count": "admin"}), EVERYWHERE)(asks(), run)

    assert attempt.result.error == "Tool 'owls.count' needs 'admin'; caller is 'guest'."


async def test_a_tool_that_nobody_knows_fails_open_and_is_counted() -> None:
    """Its agent has looked, too. The log names each tool once."""
    check = PermissionCheck(Known(), EVERYWHERE)
    with structlog.testing.capture_logs() as lines:
        for tool in ("owls.count", "owls.count", "cats.purr"):
            assert await check(asks(tool), run) is SUCCESS

    assert check.unknown == 3
    assert [line["unknown_tool"] for line in lines] == ["owls.count", "cats.purr"]


async def test_what_a_module_asks_for_is_not_shown_at_length() -> None:
    """A refusal stays short, whatever is in the manifest."""
    attempt = await PermissionCheck(Known(count="x" * 10**6), EVERYWHERE)(asks(permission="owner"), run)

    assert "is closed" in str(attempt.result.error)
    assert len(str(attempt.result.error)) < 400


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def known(redis_url: str, clock: Clock) -> AsyncIterator[KnownTools]:
    services = {"owls": "http://owls.test", "cats": "http://cats.test"}
    known = KnownTools(Settings(redis_url=redis_url, module_services=services), clock=clock)
    yield known
    await known.aclose()


def required(known: KnownTools, name: str) -> str:
    tool = known.find(name)
    assert tool is not None
    return tool.definition.required_permission


async def anew(known: KnownTools) -> bool:
    """Whether there was a look, as before a decision."""
    is_old = known.is_old
    if is_old:
        await known.refresh(reads_all=False)
    return is_old


async def offer(redis: Redis, module: str, **tools: str) -> None:
    """Put a manifest into Redis: method -> what it asks for."""
    definitions = [
        ToolDefinition(name=f"{module}.{name}", required_permission=required) for name, required in tools.items()
    ]
    await ManifestCache(redis, ttl_seconds=60).save(ModuleManifest(module_name=module, tools=definitions))


async def test_the_first_question_looks_at_redis(known: KnownTools, redis: Redis) -> None:
    """All modules of the settings are read at once."""
    await offer(redis, "owls", count="admin")
    await offer(redis, "cats", purr="guest")

    assert known.find("owls.count") is None
    await known.refresh()
    assert (required(known, "owls.count"), required(known, "cats.purr")) == ("admin", "guest")


async def test_a_change_is_seen_when_it_is_looked_for(known: KnownTools, redis: Redis, clock: Clock) -> None:
    """But Redis is asked once a second at most, however many calls are denied."""
    await offer(redis, "owls", count="admin", fly="guest")
    await known.refresh()
    await offer(redis, "owls", count="guest")
    await known.refresh()
    assert required(known, "owls.count") == "admin"

    clock.now += 1
    await known.refresh()
    assert required(known, "owls.count") == "guest"
    assert known.find("owls.fly") is None  # no longer offered


async def test_what_is_old_is_read_anew_aside(known: KnownTools, redis: Redis, clock: Clock) -> None:
    """After a minute a question begins a look, and is answered at once with what was known."""
    await offer(redis, "owls", count="admin")
    await known.refresh()
    await offer(redis, "owls", count="guest")
    clock.now += 61

    assert required(known, "owls.count") == "admin"
    await known.refresh()
    assert required(known, "owls.count") == "guest"


async def test_a_change_is_heard_of_within_seconds(known: KnownTools, redis: Redis, clock: Clock) -> None:
    """A question begins a look aside, which asks for one number; and reads all only if that has changed."""
    await offer(redis, "owls", count="admin")
    await known.refresh()
    clock.now += 3
    before = await looks(redis)
    known.find("owls.count")
    await wait_until(lambda: known._look is None or known._look.done(), "the look is over")
    assert await looks(redis) == before

    await offer(redis, "owls", count="guest")
    clock.now += 3
    assert required(known, "owls.count") == "admin"
    await wait_until(lambda: required(known, "owls.count") == "guest", "the change is known")
    assert await looks(redis) == before + 1


async def test_an_idle_worker_looks_before_it_decides(known: KnownTools, redis: Redis, clock: Clock) -> None:
    """What changed while nobody asked is known before the next call; it costs one number if nothing has."""
    await offer(redis, "owls", count="guest")
    assert (await anew(known), required(known, "owls.count")) == (True, "guest")
    await offer(redis, "owls", count="admin")

    clock.now += 1
    assert not await anew(known)
    clock.now += 5
    assert (await anew(known), required(known, "owls.count")) == (True, "admin")

    before = await looks(redis)
    clock.now += 5
    assert (await anew(known), await looks(redis)) == (True, before)


async def test_what_an_operator_closes_is_known(known: KnownTools, redis: Redis, clock: Clock) -> None:
    """From the verdicts beside the manifest."""
    manifest = ModuleManifest(module_name="owls", tools=[ToolDefinition(name="owls.count")])
    cache = ManifestCache(redis, ttl_seconds=60)
    await cache.save(manifest)
    assert await PermissionCheck(known, EVERYWHERE)(asks(), run) is SUCCESS
    loaded = (await cache.load(["owls"]))["owls"]
    await cache.replace(loaded, {"owls.count": Verdict(is_disabled=True)})
    clock.now += 61

    attempt = await PermissionCheck(known, EVERYWHERE)(asks(), run)
    assert attempt.result.error == "Tool 'owls.count' is disabled by an operator."


async def test_what_was_known_stays_known(known: KnownTools, redis: Redis, clock: Clock) -> None:
    """A manifest that has expired, or a Redis that was emptied, opens nothing."""
    await offer(redis, "owls", count="admin")
    await known.refresh()
    await redis.delete(Keys().module_manifest("owls"))
    clock.now += 61
    await known.refresh()

    assert required(known, "owls.count") == "admin"


async def test_many_questions_are_one_look(known: KnownTools, redis: Redis) -> None:
    """However many calls begin at once."""
    before = await looks(redis)
    for _ in range(100):
        known.find("owls.count")
    await asyncio.gather(*(known.refresh() for _ in range(100)))

    assert await looks(redis) == before + 1


async def looks(redis: Redis) -> int:
    """How often manifests were ever read from this Redis."""
    return int((await redis.info("commandstats")).get("cmdstat_mget", {"calls": 0})["calls"])


async def test_a_redis_that_is_away_delays_one_look_and_opens(clock: Clock) -> None:
    """The failure is logged, and the next look is ten seconds later."""
    known = KnownTools(
        Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0", module_services={"owls": "http://owls.test"}),
        clock=clock,
    )
    with structlog.testing.capture_logs() as lines:
        for seconds in (0, 2, 7):
            clock.now += seconds
            assert await PermissionCheck(known, EVERYWHERE)(asks(), run) is SUCCESS
        assert [line["event"] for line in lines].count("manifests_not_read") == 1
        clock.now += 2
        await known.refresh()
    assert [line["event"] for line in lines].count("manifests_not_read") == 2
    await known.aclose()


async def test_a_redis_that_is_silent_delays_few_calls_and_those_a_second() -> None:
    """Whoever comes while a look hangs waits for the rest of that second, not for one of his own."""
    async with silent_server() as server:
        url = f"{server.url.replace('http', 'redis')}0"
        known = KnownTools(Settings(redis_url=url, module_services={"owls": "http://owls.test"}))
        check = PermissionCheck(known, EVERYWHERE)
        async with asyncio.timeout(4):  # a look gives up after five
            for _ in range(10):
                assert await check(asks(), run) is SUCCESS
            await known.aclose()


async def test_the_runner_closes_it(redis_url: str) -> None:
    """Whatever holds connections beside the executor ends with the runner."""
    known = KnownTools(Settings(redis_url=redis_url, module_services={"owls": "http://owls.test"}))
    async with executor_for("http://owls.test") as executor:
        runner = CallRunner(executor, [PermissionCheck(known, EVERYWHERE)], closing=[known])
        known.find("owls.count")
        await runner.aclose()

    assert [task for task in asyncio.all_tasks() if task.get_name() == "toolfleet-known-tools"] == []
