"""What a worker decides of a caller and a tool is decided once, and again from the moment at which any of it changes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest
from redis.asyncio import Redis

from support.clocks import HandClock
from support.modules.operated import Stage, staged
from support.published_call import published
from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.agents.known_profiles import KnownProfiles
from toolfleet_registry.agents.own_classes import OwnClasses
from toolfleet_registry.agents.stored_profiles import StoredProfiles
from toolfleet_registry.catalog.operator import Operator, operating
from toolfleet_registry.config.agent_profile import AgentProfile
from toolfleet_registry.contracts import Caller, PublishedCall, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.contracts.calls import collecting
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_workers import tool_cache
from toolfleet_workers.middleware import (
    ApprovalCheck,
    OwnMiddleware,
    PermissionCheck,
    PersonalDataGuard,
    ProfileCheck,
    ResultCheck,
)
from toolfleet_workers.runner import CallRunner, Proceed
from toolfleet_workers.tool_cache import ToolCache

ADA = Caller(user_id="ada", permission="user", allowed_modules="*")
BIRDS = ADA.model_copy(update={"agent": "birds"})


class Module:
    """Does what it is asked for, without a network."""

    async def execute(self, call: PublishedCall, **_: object) -> Attempt:
        return Attempt(Outcome.SUCCESS, ToolResult.ok(call.tool_name, call.caller.permission))


class Worker:
    """A worker's runner, and how often its middleware was entered."""

    def __init__(self, stage: Stage, clock: HandClock) -> None:
        own = OwnClasses(stage.settings, runs_in="worker")
        profiles = KnownProfiles(stage.settings, own=own)
        self.tools = tools = ToolCache(stage.settings, KnownModules(stage.settings), profiles=profiles, clock=clock)
        nowhere, self.entered = frozenset[str](), 0
        profile, permission = ProfileCheck(tools, profiles, nowhere), PermissionCheck(tools, nowhere)
        approval, guard = ApprovalCheck(tools, profile.rules_for), PersonalDataGuard(tools, profiles)
        layers: list[Any] = [
            profile,
            permission,
            approval,
            OwnMiddleware(tools, profiles, own),
            guard,
            ResultCheck(tools),
        ]
        self.runner = CallRunner(
            Module(),  # type: ignore[arg-type] # it is only asked to execute
            [self.counted(layer) for layer in layers],
            definitions=tools,
            wait_for=permission.wait_for,
            rules_for=profile.rules_for,
        )

    def counted(self, layer: Any) -> Any:
        """The same middleware, which is counted where a call enters it."""

        class Counted:
            decide = staticmethod(layer.decide)

            async def __call__(_, call: PublishedCall, proceed: Proceed) -> Attempt:  # noqa: N805 - the worker is `self`
                self.entered += 1
                attempt: Attempt = await layer(call, proceed)
                return attempt

        return Counted()

    async def run(self, caller: Caller, **fields: Any) -> tuple[object, ...]:
        """What becomes of a call: its terms and retries, its end, and what is noted of that."""
        call, noted = published("git.push", caller=caller, **fields), collecting()
        ticket = self.runner.ticket(call) or await self.runner.decide(call)
        result = (await self.runner.run(call, seconds=5, ticket=ticket)).result
        return ticket.terms, ticket.retry, result.error_code, result.error, result.result, noted


class Bed:
    """A worker, and a twin that forgets what it has decided before each call. They share nothing but Redis, and a clock."""

    def __init__(self, stage: Stage, operator: Operator, stored: StoredProfiles) -> None:
        self.stage, self.operator, self.stored = stage, operator, stored
        self.clock = HandClock(1000)
        self.worker, self.twin = Worker(stage, self.clock), Worker(stage, self.clock)

    async def run(self, caller: Caller) -> tuple[tuple[object, ...], tuple[object, ...]]:
        """What becomes of a call in both."""
        self.twin.tools._tickets.clear()
        ends = await self.worker.run(caller), await self.twin.run(caller)
        for each in (self.worker, self.twin):  # what was begun aside has been read
            await each.tools._copy.wait(PATIENCE_SECONDS)
        return ends


@pytest.fixture
async def bed(redis: Redis, redis_url: str) -> AsyncIterator[Bed]:
    async with staged(redis, redis_url, None) as stage, operating(stage.settings) as operator:
        with closing(StoredProfiles.of(stage.settings)) as stored:
            bed = Bed(stage, operator, stored)
            yield bed
            await bed.worker.tools.aclose()
            await bed.twin.tools.aclose()


async def put(bed: Bed, **fields: Any) -> None:
    bed.stored.put("birds", AgentProfile(**fields), by="ada")


LIMITED: Any = ({"name": "tool_call_limit", "run_limit": 3},)
Change = Callable[[Bed], Awaitable[object]]
CHANGES: dict[str, Change] = {
    "disabled": lambda bed: bed.operator.disable("git.push"),
    "enabled": lambda bed: bed.operator.enable("git.push"),
    "pinned": lambda bed: bed.operator.pin("git"),
    "changed while pinned": lambda bed: bed.stage.change("push", daily_limit=7, output_schema={"type": "integer"}),
    "unpinned": lambda bed: bed.operator.unpin("git"),
    "as before": lambda bed: bed.stage.change("push", daily_limit=0, output_schema=None),
    "for admins": lambda bed: bed.stage.change("push", required_permission="admin"),
    "for users": lambda bed: bed.stage.change("push", required_permission="user"),
    "approved by people": lambda bed: bed.stage.change("push", approval=True),
    "approved by nobody": lambda bed: bed.stage.change("push", approval=False),
    "gone": lambda bed: bed.stage.offer("log"),
    "back": lambda bed: bed.stage.offer("log", "push"),
    "a profile": lambda bed: put(bed, tools=("git.*",)),
    "a narrowed profile": lambda bed: put(bed, tools=("git.log",)),
    "a limited profile": lambda bed: put(bed, tools=("git.*",), middleware=LIMITED),
    "a lower profile": lambda bed: put(bed, permission_at_most="guest", tools=("git.*",)),
}


async def test_a_change_counts_from_the_moment_at_which_it_is_known(bed: Bed) -> None:
    """After each of them a call ends as in a worker that has decided nothing yet, at every moment."""
    seen = set[tuple[object, object]]()
    for what, change in CHANGES.items():
        for caller in (ADA, BIRDS):
            await bed.run(caller)
        await change(bed)
        for _ in range(6):
            for caller in (ADA, BIRDS):
                warm, cold = await bed.run(caller)
                assert warm == cold, (what, caller.agent)
                seen.add((caller.agent, warm[2]))
            bed.clock.now += 0.5

    codes = {None, "permission_denied", "approval_denied", "invalid_response", "unknown_tool"}
    assert {code for agent, code in seen if agent is None} == codes
    assert {code for agent, code in seen if agent == "birds"} >= {None, "permission_denied"}


async def test_an_idle_worker_reads_before_it_goes_by_what_it_has_decided(bed: Bed) -> None:
    """It has not heard of the change, as nobody has asked it."""
    assert (await bed.worker.run(ADA))[2] is None
    await bed.operator.disable("git.push")
    bed.clock.now += 5

    assert (await bed.worker.run(ADA))[2] == "permission_denied"


async def test_a_plain_call_is_not_decided_again(bed: Bed) -> None:
    """It enters no middleware that has nothing to say of it, and what was decided is noted all the same."""
    first, worker = await bed.worker.run(ADA), bed.worker
    worker.entered = 0
    again = await worker.run(ADA.model_copy(update={"user_id": "bob", "allowed_modules": frozenset({"git"})}))
    third = await worker.run(ADA.model_copy(update={"allowed_modules": frozenset({"git", "owls"})}))

    assert first == again == third
    assert again[-1] == {"permission": "allowed"}
    assert (worker.entered, len(worker.tools._tickets)) == (0, 2)


@pytest.mark.parametrize("modules", [frozenset({"owls"}), None])
async def test_a_caller_that_does_not_reach_the_module_is_refused(bed: Bed, modules: frozenset[str] | None) -> None:
    """Whatever others may, and each time."""
    await bed.worker.run(ADA)
    elsewhere = ADA.model_copy(update={"allowed_modules": modules})
    ends = {(await bed.worker.run(elsewhere))[2] for _ in range(3)}

    assert ends == {"permission_denied"}
    assert len(bed.worker.tools._tickets) == 1


async def test_a_call_that_names_a_version_is_looked_at_each_time(bed: Bed) -> None:
    """The version in effect may have changed just now."""
    await bed.worker.run(ADA)
    assert (await bed.worker.run(ADA, tool_version="2"))[2] == "version_mismatch"
    await bed.stage.change("push", version="2")
    bed.clock.now += 0.2  # so often it is asked at most

    assert (await bed.worker.run(ADA, tool_version="2"))[2] is None


async def test_those_used_last_are_kept(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there is room for."""
    monkeypatch.setattr(tool_cache, "_MOST_TICKETS", 2)
    for permission in ("user", "admin", "user", "owner"):
        await bed.worker.run(ADA.model_copy(update={"permission": permission}))

    assert [key[1] for key in bed.worker.tools._tickets] == ["user", "owner"]  # type: ignore[index] # its parts
