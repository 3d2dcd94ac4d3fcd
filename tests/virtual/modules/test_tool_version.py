"""A call that names a version of its tool is run while that version is in effect, and at no other time."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from bed.fleet import Bed, until
from support.module_server import ModuleServer, Request
from support.owls import echo
from toolfleet import Caller, CallRefused, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.catalog.operator import operating

OLD, NEW = "1.0.0", "1.1.0"
HAS_CHANGED = f"Tool 'owls.echo' has version {NEW!r} now, and the call names version {OLD!r}."
REFUSED = ("version_mismatch", HAS_CHANGED, "none", False)


class Owls(ModuleServer):
    """Echoes under a version; a call of `turn_away` waits until it `may_answer`, and is to come back then."""

    def __init__(self) -> None:
        super().__init__("owls")
        self.may_answer = asyncio.Event()
        self.add("echo", echo, effect="read", version=OLD)
        self.add("turn_away", self.turn_away, effect="once", version=OLD)
        self.add("plain", echo, effect="read")

    async def turn_away(self, _: Request) -> web.Response:
        await self.may_answer.wait()
        return web.Response(status=503, headers={"Retry-After": "0"})

    def offer(self, version: str) -> None:
        for one in self.definitions:
            if "version" in one:
                one["version"] = version


@pytest.fixture
def owls() -> Owls:
    return Owls()


@pytest.fixture
async def fleet(bed: Bed, owls: Owls) -> ToolFleet:
    """An agent; no worker yet."""
    await bed.serve(owls)
    return await bed.agent()


def naming(version: str | None, method: str = "echo", **fields: Any) -> ToolCall:
    return ToolCall(tool_name=f"owls.{method}", arguments={"a": 1}, tool_version=version, **fields)


def told(result: ToolResult | None) -> tuple[Any, ...]:
    assert result is not None
    return result.error_code, result.error, result.effect_state, result.retryable


async def until_in_effect(fleet: ToolFleet, caller: Caller, version: str) -> None:
    """Wait until this agent has heard of it."""

    async def is_so() -> bool:
        await fleet.modules.refresh()
        return version in {tool.version for tool in await fleet.tools(caller)}

    await until(is_so, f"{version} is in effect")


async def test_only_the_version_in_effect_is_called(bed: Bed, fleet: ToolFleet, owls: Owls, owner: Caller) -> None:
    """Whoever names another one, or one of a tool without any, is told so by the agent; who names none has what there is."""
    await bed.worker()
    owls.offer(NEW)
    await until_in_effect(fleet, owner, NEW)
    new, old, whichever = await fleet.call_many([naming(version) for version in (NEW, OLD, None)], owner)

    assert (new.success, whichever.success, told(old)) == (True, True, REFUSED)
    assert told(await (await fleet.submit(naming(OLD), owner)).result()) == REFUSED
    assert (
        old.hint
        == "Nothing was executed: the tool has changed, so read its current description before you call it again."
    )
    plain = await fleet.call(naming(NEW, "plain"), owner)
    assert plain.error == f"Tool 'owls.plain' has no version now, and the call names version {NEW!r}."
    long = await fleet.call(naming("\ud800" * 256), owner)
    assert (long.error_code, len(long.error or "") < 300) == ("version_mismatch", True)
    assert len(owls.requests) == 2


async def test_a_version_that_operators_went_back_to_is_the_one_in_effect(
    bed: Bed, fleet: ToolFleet, owls: Owls, owner: Caller
) -> None:
    """Whatever the module offers."""
    await bed.worker()
    owls.offer(NEW)
    await until_in_effect(fleet, owner, NEW)
    async with operating(bed.settings) as operator:
        await operator.rollback("owls.echo", OLD)
    await until_in_effect(fleet, owner, OLD)

    assert (await fleet.call(naming(OLD), owner)).success
    assert (await fleet.call(naming(NEW), owner)).error_code == "version_mismatch"


async def test_a_call_whose_version_has_changed_since_is_not_run(
    bed: Bed, fleet: ToolFleet, owls: Owls, owner: Caller
) -> None:
    """The worker looks before it runs it: a call, a link of a canvas and a repeat under a key alike."""
    handle = await fleet.submit(naming(OLD), owner, waits_for_worker=True)
    keyed = await fleet.submit(naming(OLD, idempotency_key="k"), owner, waits_for_worker=True)
    link = await fleet.canvas.signature(naming(OLD), owner)
    await asyncio.to_thread(link.apply_async)
    owls.offer(NEW)
    await until_in_effect(fleet, owner, NEW)
    await bed.worker()
    ends = [await handle.result(), await keyed.result(), await fleet.canvas.result_of(link)]

    assert [told(end) for end in ends] == [REFUSED] * 3
    assert owls.requests == []
    with pytest.raises(CallRefused, match="names version"):
        await fleet.canvas.signature(naming(OLD), owner)


async def test_a_running_worker_hears_of_a_version_before_the_next_call_that_names_one(
    bed: Bed, fleet: ToolFleet, owls: Owls, owner: Caller
) -> None:
    """Both ways: it refuses the old one and runs the new one, however recently it has looked."""
    await bed.worker()
    for before, after in ((OLD, NEW), (NEW, "2.0.0"), ("2.0.0", "2.0.1")):
        assert (await fleet.call(naming(before), owner)).success
        owls.offer(after)
        await until_in_effect(fleet, owner, after)
        refused = await fleet.call(naming(before, idempotency_key=after), owner)
        assert refused.error_code == "version_mismatch"
        assert (await fleet.call(naming(after), owner)).success


async def test_a_retry_is_held_to_the_version_too(bed: Bed, fleet: ToolFleet, owls: Owls, owner: Caller) -> None:
    """A call that was turned away comes back to a tool that has changed: it is begun once, and has done nothing."""
    await bed.worker()
    handle = await fleet.submit(naming(OLD, "turn_away"), owner)
    await until(lambda: owls.calls("turn_away"), "its first attempt is under way")
    owls.offer(NEW)
    await until_in_effect(fleet, owner, NEW)
    owls.may_answer.set()
    result = await handle.result()

    assert (result.error_code, result.effect_state, len(owls.calls("turn_away"))) == ("version_mismatch", "none", 1)


async def test_a_version_belongs_to_what_an_idempotency_key_stands_for(
    bed: Bed, fleet: ToolFleet, owls: Owls, owner: Caller
) -> None:
    """A repeat has the first call's result, also when another version is in effect by then; other versions are a conflict."""
    await bed.worker()
    first = await fleet.call(naming(OLD, idempotency_key="k"), owner)
    owls.offer(NEW)
    await until_in_effect(fleet, owner, NEW)
    again = await fleet.call(naming(OLD, idempotency_key="k"), owner)
    others = [await fleet.call(naming(one, idempotency_key="k"), owner) for one in (NEW, None)]

    assert (first.success, again.audit.call_id, again.result) == (True, first.audit.call_id, first.result)
    assert [other.error_code for other in others] == ["conflict", "conflict"]
    assert len(owls.requests) == 1
