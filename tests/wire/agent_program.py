"""An agent of whichever version is on the path: makes calls of every kind, and prints how they ended, as JSON.

`owls` is the module of `support.owls`, with `limited` (one call a day) and `talk` (NDJSON); `works` that of `support.modules.works`.
It uses only what every version's agents can do. With `small` as its argument no result is large; with `leave` it makes what waits
for workers: a call and a job, which may wait for ever; with `unheard` it does not wait for completions; with `leave-accepted` calls that go on without a worker; with `load` many
calls, while workers come and go.
"""

import asyncio
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.waiting import PATIENCE_SECONDS, wait_until_equal
from toolfleet import Caller, Conversation, Poll, ToolCall, ToolFleet, ToolResult

try:
    from toolfleet_tasks.calls import prepare
except ImportError:  # as earlier versions have it
    from toolfleet_tasks import drafts as prepare  # type: ignore[attr-defined, no-redef]
try:
    service: Any = import_module("toolfleet_tasks.jobs.service")
except ImportError:  # as above
    service = SimpleNamespace()

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
GUEST = Caller(user_id="gus", permission="guest", allowed_modules="*")
_FOR_EVER = 3e9  # seconds
STATE = Poll(tool_name="works.state", arguments={"id": {"$from": "task.id"}}, interval_seconds=0.1)


def methods_of(fleet: Any) -> SimpleNamespace:
    """What this program needs of the fleet, by whichever names its version has."""
    if hasattr(fleet, "start_job"):
        found = {
            "start": fleet.start_job,
            "job": fleet.job,
            "completions": fleet.completions,
            "dead": fleet.dead_letters,
        }
    else:
        found = {"start": fleet.jobs.start, "job": fleet.jobs.get, "completions": fleet.wakeups.completions}
        found["dead"] = fleet.dead_letters.list
    return SimpleNamespace(**found)


def told(result: ToolResult) -> list[Any]:
    """What a caller acts on."""
    return [result.success, result.error_code, result.effect_state]


async def call(fleet: ToolFleet, name: str, caller: Caller = ADA, **arguments: Any) -> ToolResult:
    """A call of one of the owls' tools."""
    return await fleet.call(ToolCall(tool_name=f"owls.{name}", arguments=arguments), caller, timeout=30)


async def ends(fleet: ToolFleet) -> dict[str, Any]:
    """How calls end that meet each kind of answer."""
    names = ("echo", "fail", "fail_once", "turn_away", "garble", "garble_read", "brief_nap", "limited")
    found: dict[str, Any] = {name: told(await call(fleet, name)) for name in names}
    found["limited again"] = told(await call(fleet, "limited"))
    found["names no modules"] = told(await call(fleet, "echo", Caller(user_id="bob", permission="user")))
    found["not allowed"] = told(await call(fleet, "admin_only", GUEST))
    found["echoed"] = (await call(fleet, "echo", text="tu-whit ✓", number=1.5, nothing=None)).result
    many = await fleet.call_many([ToolCall(tool_name="owls.echo", arguments={"n": n}) for n in range(20)], ADA)
    found["many"] = [result.result["n"] for result in many]
    if "small" not in sys.argv:
        found["large"] = len((await call(fleet, "echo", text="x" * 400_000)).result["text"])
    return found


async def repeats(fleet: ToolFleet) -> dict[str, Any]:
    """What an idempotency key brings."""
    intended = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0}, idempotency_key="k")
    first, second = await fleet.call(intended, ADA), await fleet.call(intended, ADA)
    other = await fleet.call(intended.model_copy(update={"arguments": {"seconds": 0.1}}), ADA)
    return {"repeated": [*told(second), first.audit.call_id == second.audit.call_id], "conflict": told(other)}


async def handles(fleet: ToolFleet) -> dict[str, Any]:
    """What can be done with a call that is under way."""
    handle = await fleet.submit(ToolCall(tool_name="owls.nap", arguments={"seconds": 20}), ADA)
    await wait_until_equal(handle.status, "running", "it runs")
    await handle.cancel()
    talking = await fleet.submit(ToolCall(tool_name="owls.talk"), ADA)
    said = [progress.message async for progress in talking.progress()]
    return {"cancelled": told(await handle.result()), "said": said[-1:], "talked": told(await talking.result())}


async def jobs(fleet: ToolFleet) -> dict[str, Any]:
    """How a job ends, and what its conversation hears."""
    begin, where = ToolCall(tool_name="works.begin"), Conversation(conversation_id="c-1", platform="chat")
    job = await methods_of(fleet).start(begin, STATE, conversation=where, caller=ADA, deadline=60)
    if sys.argv[1:] == ["unheard"]:

        async def state() -> str | None:
            over = await methods_of(fleet).job(job.job_id, ADA)
            return None if over is None else str(over.state)

        await wait_until_equal(state, "completed", "the job is completed")
        return {"job": ["completed"]}
    wake = await anext(aiter(methods_of(fleet).completions("c-1")))
    over = await methods_of(fleet).job(job.job_id, ADA)
    assert over is not None
    return {"job": [over.state, wake.type, wake.wake_id == job.job_id, wake.result["status"]]}


async def leave() -> None:
    """What nobody has begun when the agent goes. Left with the fleet, it would be taken back: this process just ends."""
    prepare._LONGEST_TIMEOUT = _FOR_EVER
    service.LONGEST_SECONDS = _FOR_EVER
    fleet = await ToolFleet().__aenter__()
    waiting = ToolCall(tool_name="owls.echo", arguments={"text": "✓"}, idempotency_key="waiting")
    handle = await fleet.submit(waiting, ADA, timeout=_FOR_EVER)
    begin, where = ToolCall(tool_name="works.begin"), Conversation(conversation_id="c-2", platform="chat")
    job = await methods_of(fleet).start(begin, STATE, conversation=where, caller=ADA, deadline=_FOR_EVER)
    await wait_until_equal(handle.status, "queued", "it waits")
    json.dump({"job": job.job_id}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


async def leave_accepted() -> None:
    """Calls with which their module `nest` goes on: nobody waits for them any more, and they may take for ever."""
    prepare._LONGEST_TIMEOUT = _FOR_EVER
    fleet = await ToolFleet().__aenter__()
    found = dict[str, str]()
    for key, tool in (("kept", "nest.hatch"), ("elsewhere", "nest.plainly")):
        handle = await fleet.submit(ToolCall(tool_name=tool, idempotency_key=key), ADA, timeout=_FOR_EVER)
        await wait_until_equal(handle.status, "running", "it runs")
        found[key] = handle.id
    json.dump(found, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


def apart() -> list[Any]:
    """One entry for each call that is sealed with its arguments apart; an earlier version has no such form."""
    found = list[Any]()
    try:
        seal: Any = import_module("toolfleet_tasks.messages.signing").Seal
    except ImportError:
        return found
    usual = seal.seal_apart

    def seal_apart(self: Any, call: Any) -> Any:
        found.append(call.call_id)
        return usual(self, call)

    seal.seal_apart = seal_apart
    return found


async def load() -> None:
    """Calls, twenty at a time, until there is a file `stop`; the file `load` says how many have ended, and how many stood apart."""
    sealed, failed, numbers = apart(), list[Any](), iter(range(10**9))

    async def calls(fleet: ToolFleet) -> None:
        while not Path("stop").exists():
            number = next(numbers)
            result = await call(fleet, "echo", n=number)
            if result.result != {"n": number}:
                failed.append([number, result.error])
            Path("load").write_text(f"{number} {len(sealed)}")

    async with ToolFleet() as fleet:
        await asyncio.gather(*(calls(fleet) for _ in range(20)))
    json.dump({"failed": failed[:10], "calls": next(numbers), "apart": len(sealed)}, sys.stdout)


async def everything() -> None:
    """What a caller does with tools and jobs, one after the other."""
    found: dict[str, Any] = {}
    async with asyncio.timeout(3 * PATIENCE_SECONDS), ToolFleet() as fleet:
        for part in (ends, repeats, handles, jobs):
            found |= await part(fleet)
        found["dead"] = sorted(letter.tool_name for letter in await methods_of(fleet).dead())
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    programs = {"leave": leave, "leave-accepted": leave_accepted, "load": load}
    asyncio.run(programs.get("".join(sys.argv[1:]), everything)())
