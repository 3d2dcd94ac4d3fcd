"""A worker looks at a caller's rights once more, with what it knows itself."""

import itertools

import pytest
import structlog
from redis.asyncio import Redis

from support.published_call import published
from support.workers.known_tools import FewTools
from toolfleet_registry.catalog.catalog import Catalog
from toolfleet_registry.contracts import Caller, ModuleManifest, PublishedCall, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.manifests.manifest_cache import ManifestCache, ToolOverride
from toolfleet_registry.permissions import Modules
from toolfleet_registry.policy.call_faults import resolved
from toolfleet_registry.settings import Settings
from toolfleet_workers.middleware import PermissionCheck

SUCCESS = Attempt(Outcome.SUCCESS, ToolResult.ok("owls.count", 7))
EVERYWHERE = frozenset({"owls", "cats"})


async def run(call: PublishedCall) -> Attempt:
    return SUCCESS


def asks(tool: str = "owls.count", permission: str = "guest", modules: Modules | None = "*") -> PublishedCall:
    caller = Caller(allowed_modules=modules).model_copy(update={"permission": permission})
    return published(tool, caller=caller)


def known(*, later: dict[str, str] | None = None, is_old: bool = False, **tools: str) -> FewTools:
    """Tools of owls with the permissions that they require, by name; `later`: what there is after a look."""
    found = [ToolDefinition(name=f"owls.{name}", required_permission=required) for name, required in tools.items()]
    more = [ToolDefinition(name=name, required_permission=required) for name, required in (later or {}).items()]
    return FewTools(*found, later=more, is_old=is_old, modules=EVERYWHERE)


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
    attempt = await PermissionCheck(known(count=required), EVERYWHERE)(asks(permission=permission), run)

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
    """Also of a module that nothing is known of: who does not reach it does not wait for that."""
    call, refusal = asks(permission="owner", modules=modules), "Module 'owls' is not among the caller's modules."
    attempt = await PermissionCheck(known(count="guest"), default)(call, run)
    assert (attempt is SUCCESS) == runs
    assert runs or attempt.result.error == refusal

    unknown = PermissionCheck(known(), default)
    assert (unknown.wait_for(call) is not None) == runs
    assert ((await unknown(call, run)).result.error == refusal) != runs


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (ToolOverride(is_disabled=True), "Tool 'owls.count' is disabled by an operator."),
        (
            ToolOverride(is_withheld=True),
            "Tool 'owls.count' is withheld: no operator has approved what its module offers now.",
        ),
        (ToolOverride(fault="its schema is wrong"), "Tool 'owls.count' is closed: its schema is wrong."),
        (ToolOverride(kept=ToolDefinition(name="owls.count", required_permission="owner")), None),
    ],
)
async def test_what_operators_have_closed_does_not_run(verdict: ToolOverride, reason: str | None) -> None:
    """Whoever publishes it, and whatever they may else."""
    tools = known(count="guest")
    tools.verdicts = {"owls.count": verdict}
    attempt = await PermissionCheck(tools, EVERYWHERE)(asks(permission="owner"), run)

    assert attempt.result.error == reason
    assert tools.looks == (0 if reason is None else 1)


VERDICTS = [
    None,
    ToolOverride(is_disabled=True),
    ToolOverride(is_withheld=True),
    ToolOverride(fault="wrong"),
    ToolOverride(is_disabled=False),
]


@pytest.mark.parametrize("permission", ["guest", "user", "owner", "emperor"])
@pytest.mark.parametrize("modules", ["*", frozenset({"owls"}), frozenset({"cats"}), None])
async def test_the_three_looks_agree(redis: Redis, elsewhere: object, permission: str, modules: Modules | None) -> None:
    """What is listed is what is published is what is run, with the same words, whatever is known of a tool."""
    caller = Caller(allowed_modules=modules).model_copy(update={"permission": permission})
    sent = resolved(caller, frozenset({"cats"}))  # as the agent sends it; a worker may have other settings
    for required, verdict in itertools.product(["guest", "user", "owner", "emperor"], VERDICTS):
        tools = known(count=required)
        tools.verdicts = {} if verdict is None else {"owls.count": verdict}
        settings = Settings(module_services={"owls": "http://owls.test"}, default_guest_modules=frozenset({"cats"}))
        cache = ManifestCache(redis, ttl_seconds=60)
        definition = ToolDefinition(name="owls.count", required_permission=required)
        await cache.save(ModuleManifest(module_name="owls", tools=[definition]), tools.verdicts)
        catalog = Catalog(settings, cache)
        await catalog.load()
        judged = catalog.judge(ToolCall(tool_name="owls.count"), caller)
        attempt = await PermissionCheck(tools, frozenset())(published("owls.count", caller=sent), run)

        refused = judged.error if isinstance(judged, ToolResult) else None
        assert refused == attempt.result.error
        assert bool(catalog.tools(caller)) == (refused is None)


async def test_nothing_is_decided_on_old_knowledge() -> None:
    """After a pause a worker looks before it runs a call; once."""
    tools = known(count="guest", later={"owls.count": "admin"}, is_old=True)
    check = PermissionCheck(tools, EVERYWHERE)

    assert (await check(asks(), run)).result.error_code == "permission_denied"
    assert await check(asks(permission="owner"), run) is SUCCESS
    assert tools.looks == 1


async def test_what_is_known_is_not_looked_up() -> None:
    """A call that may run costs no look."""
    tools = known(count="guest")
    await PermissionCheck(tools, EVERYWHERE)(asks(), run)

    assert tools.looks == 0


async def test_before_it_refuses_it_looks_again() -> None:
    """A tool that has become free for all is not refused for what it was."""
    tools = known(count="admin", later={"owls.count": "guest"})

    assert await PermissionCheck(tools, EVERYWHERE)(asks(), run) is SUCCESS


async def test_a_new_tool_is_looked_up_before_it_runs() -> None:
    """What is not known yet is not open for that."""
    attempt = await PermissionCheck(known(later={"owls.count": "admin"}), EVERYWHERE)(asks(), run)

    assert attempt.result.error == "Tool 'owls.count' needs 'admin'; caller is 'guest'."


async def test_a_tool_that_nobody_knows_is_not_run_and_is_counted() -> None:
    """It waits; run all the same it is `busy`, for that is no answer. The log names each tool once."""
    check = PermissionCheck(known(), EVERYWHERE)
    with structlog.testing.capture_logs() as lines:
        for tool in ("owls.count", "owls.count", "cats.purr"):
            assert check.wait_for(asks(tool)) == 0.25
        attempt = await check(asks(), run)

    assert check.unknown == 4
    assert [line["unknown_tool"] for line in lines if "unknown_tool" in line] == ["owls.count", "cats.purr"]
    assert (attempt.outcome, attempt.result.error_code) == (Outcome.NOT_SENT, "busy")


async def test_a_tool_that_there_surely_is_not_is_refused_for_good() -> None:
    """Nobody waits for it."""
    tools = known()
    tools.lacking = frozenset({"owls.count"})
    check = PermissionCheck(tools, EVERYWHERE)

    assert check.wait_for(asks()) is None
    attempt = await check(asks(), run)
    assert (attempt.outcome, attempt.result.error) == (Outcome.PERMANENT, "Unknown tool: owls.count")
    assert attempt.result.error_code == "unknown_tool"


async def test_a_call_of_no_module_is_left_to_what_would_run_it() -> None:
    """It knows no way there, and says so in its own words."""
    check = PermissionCheck(known(), EVERYWHERE)

    assert check.wait_for(asks("wolves.howl")) is None
    assert await check(asks("wolves.howl"), run) is SUCCESS


async def test_what_a_module_asks_for_is_not_shown_at_length() -> None:
    """A refusal stays short, whatever is in the manifest."""
    attempt = await PermissionCheck(known(count="x" * 10**6), EVERYWHERE)(asks(permission="owner"), run)

    assert "is closed" in str(attempt.result.error)
    assert len(str(attempt.result.error)) < 400


@pytest.mark.parametrize(
    ("version", "later", "named", "runs"),
    [
        ("1.0.0", None, "1.0.0", True),
        ("1.0.0", None, "1.0", False),  # letter for letter
        ("1.0.0", "1.1.0", "1.0.0", False),  # it has changed since this worker looked last
        ("1.0.0", "1.1.0", "1.1.0", True),
        ("1.0.0", "1.1.0", None, True),
    ],
)
async def test_a_call_is_run_only_under_the_version_that_it_names(
    version: str, later: str | None, named: str | None, runs: bool
) -> None:
    """Which is looked up anew for each such call, and for no other."""
    now, then = (ToolDefinition(name="owls.count", version=each) for each in (version, later or version))
    tools = FewTools(now, later=[then], modules=EVERYWHERE)
    attempt = await PermissionCheck(tools, EVERYWHERE)(published("owls.count", tool_version=named), run)

    assert (attempt is SUCCESS) == runs
    assert tools.looks == (named is not None)
    if not runs:
        result = attempt.result
        assert (attempt.outcome, result.error_code, result.effect_state) == (
            Outcome.PERMANENT,
            "version_mismatch",
            "none",
        )


async def test_who_may_not_use_a_tool_does_not_hear_of_its_version() -> None:
    """The refusal is the one that everybody gets."""
    call = asks(permission="guest", modules=frozenset({"owls"})).model_copy(update={"tool_version": "2"})
    attempt = await PermissionCheck(known(count="admin"), EVERYWHERE)(call, run)

    assert attempt.result.error_code == "permission_denied"
