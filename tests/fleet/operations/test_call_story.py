"""What operators are told of a call to which something has happened: real workers, one of which is killed, and a module that goes on by itself."""

import asyncio
import signal
from pathlib import Path

from support.fleet import TestBed
from support.module_server import holding, serve
from support.owls import make_module
from support.servers.hatchery import HATCHED, Hatchery, make_hatchery
from support.waiting import wait_until, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_tasks.operations.call_index import CallIndex
from toolfleet_tasks.operations.call_story import CallStory

BOB = Caller(user_id="bob", permission="user", allowed_modules="*")


async def story_when(index: CallIndex, call_id: str, phase: str) -> CallStory:
    """Its story, once it has such a part."""
    last = list[CallStory | None]()

    async def has_it() -> bool:
        last[:] = [await index.story(call_id)]
        return last[0] is not None and any(span.phase == phase for span in last[0].spans)

    await wait_until_answered(has_it, f"the story has {phase!r}")
    assert last[0] is not None
    return last[0]


async def test_a_killed_worker_is_named_and_the_other_one(redis_url: str, tmp_path: Path) -> None:
    """While it runs, who has it; when it has ended, which worker was lost, and how long nobody had the call."""
    module = make_module()
    with serve(module):
        bed = TestBed(redis_url, (module,), tmp_path, {"visibility_timeout": 4})
        with bed.worker() as first:
            async with ToolFleet(settings=bed.settings) as fleet, CallIndex.of(bed.settings) as index:
                with holding(module, "nap"):
                    nap = ToolCall(tool_name="owls.nap", arguments={"seconds": 0})
                    handle = await fleet.submit(nap, BOB)
                    running = await story_when(index, handle.id, "attempt")
                    first.send_signal(signal.SIGKILL)
                    first.wait()
                with bed.worker():
                    result = await handle.result()
                    ended = await story_when(index, handle.id, "stored")

    assert result.success
    (attempt,) = running.spans
    assert (attempt.ends, attempt.attempt, "@" in str(attempt.worker)) == (None, 1, True)
    phases = [span.phase for span in ended.spans if span.phase not in {"claimed", "module"}]
    assert phases == ["queued", "lost", "reclaim", "attempt", "stored"]
    lost = next(span for span in ended.spans if span.phase == "lost")
    assert lost.worker == attempt.worker
    assert all(span.ends is not None and span.ends >= span.begins for span in ended.spans)


async def test_a_module_that_goes_on_is_seen_to(redis_url: str, tmp_path: Path) -> None:
    """Its request, and that the module went on with it; with how often it was asked."""
    nest: Hatchery = make_hatchery()
    with serve(nest.server):
        bed = TestBed(redis_url, (nest.server,), tmp_path, {})
        with bed.worker():
            async with ToolFleet(settings=bed.settings) as fleet, CallIndex.of(bed.settings) as index:
                calling = asyncio.create_task(fleet.call(ToolCall(tool_name="nest.hatch"), BOB))
                await wait_until(lambda: len(nest.asked) > 2, "it was asked for")
                nest.answer = HATCHED
                result = await calling
                story = await story_when(index, str(result.audit.call_id), "stored")

    assert result.success
    phases = [span.phase for span in story.spans if span.phase != "claimed"]
    assert phases == ["queued", "attempt", "accepted", "stored"]
    assert (story.polls or 0) >= 2
