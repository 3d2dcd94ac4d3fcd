"""Hosts that go on with calls by themselves, and are gone before these have ended."""

from contextlib import AsyncExitStack

from bed import clock
from bed.fleet import Bed, until
from support.hosts.announced_host import announced
from support.modules.listed_modules import until_listed
from support.servers.hatchery import HATCHED, make_hatchery
from toolfleet import Caller, ToolCall

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")


async def test_a_call_whose_host_has_left_ends_at_once(bed: Bed) -> None:
    """One for once is unknown, never undone; one that may be repeated is begun anew elsewhere. No deadline is waited for."""
    first, second = make_hatchery(), make_hatchery()
    second.answer = HATCHED
    await bed.serve(first.server, second.server)
    bed.given["module_services"] = {}
    await bed.worker()
    fleet = await bed.agent()
    before = clock.monotonic()
    async with AsyncExitStack() as stack:
        async with announced(bed.redis.url, "a", module="nest", url=first.server.url):
            await until_listed(fleet, ADA, "nest")
            once = await fleet.submit(ToolCall(tool_name="nest.hatch"), ADA, timeout=600)
            read = await fleet.submit(ToolCall(tool_name="nest.warm"), ADA, timeout=600)
            await until(lambda: len({question["handle"] for question in first.asked}) == 2, "both go on")
            await stack.enter_async_context(announced(bed.redis.url, "b", module="nest", url=second.server.url))
        lost, found = await once.result(), await read.result()

    assert clock.monotonic() - before < 60
    assert (lost.error_code, lost.effect_state, lost.audit.attempts) == ("outcome_unknown", "unknown", 1)
    assert (found.success, found.result, found.audit.attempts) == (True, "an owl", 2)
    assert (len(first.begun), len(second.begun)) == (2, 1)
