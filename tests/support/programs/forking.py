"""A program that forks while its fleet is open; run by tests/fleet/agents/test_loops_and_forks.py.

`python forking.py`, with the settings in the environment. Prints one line of JSON for each of its ways, with its name.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable

from support.waiting import PATIENCE_SECONDS
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")
NAP = ToolCall(tool_name="owls.nap", arguments={"seconds": 1})
CHILDREN = 2  # with all of its clean-up one costs half a second of processor time
CALLS = 20


def echo(number: int) -> ToolCall:
    return ToolCall(tool_name="owls.echo", arguments={"pid": os.getpid(), "number": number})


def count(results: list[ToolResult]) -> int:
    """How many are right: a result of another process's call would tell by its number."""
    return sum(
        result.success and result.result in ("awake", {"pid": os.getpid(), "number": number})
        for number, result in enumerate(results)
    )


async def calls(fleet: ToolFleet) -> int:
    return count(await fleet.call_many([echo(number) for number in range(CALLS)], OWNER, timeout=30))


async def run_async() -> dict[str, object]:
    """Forks inside a coroutine, with calls in flight; the children go on with `asyncio.run`."""
    async with ToolFleet() as fleet:
        naps = [asyncio.create_task(fleet.call(NAP, OWNER, timeout=30)) for _ in range(CALLS)]
        await calls(fleet)
        children = [fork(lambda: asyncio.run(calls(fleet)), leave=os._exit) for _ in range(CHILDREN)]
        during = await calls(fleet)
        naps_done = count(await asyncio.gather(*naps))
        codes = await asyncio.gather(*(asyncio.to_thread(exit_code, child) for child in children))
        return {"during": during, "naps": naps_done, "after": await calls(fleet), "children": codes}


def run_sync() -> dict[str, object]:
    """Forks beside the thread that has the loop; the children end as a program ends, with all of its clean-up."""
    with ToolFleet.sync() as fleet:
        naps = [fleet.submit(NAP, OWNER, timeout=30) for _ in range(CALLS)]

        def many() -> int:
            return count(fleet.call_many([echo(number) for number in range(CALLS)], OWNER, timeout=30))

        children = [fork(many, leave=sys.exit) for _ in range(CHILDREN)]
        during, naps_done = many(), count([nap.result(2 * PATIENCE_SECONDS) for nap in naps])
        codes = [exit_code(child) for child in children]
        return {"during": during, "naps": naps_done, "after": many(), "children": codes}


async def run_cleanup() -> dict[str, object]:
    """The child cleans up its copies of the parent's connections, as asyncio does when they are collected."""

    def clean_up() -> int:
        writers = [thing for thing in gc.get_objects() if isinstance(thing, asyncio.StreamWriter)]
        for writer in writers:
            writer.close()
        return CALLS if writers else 0

    async with ToolFleet() as fleet:
        naps = [asyncio.create_task(fleet.call(NAP, OWNER, timeout=30)) for _ in range(CALLS)]
        await calls(fleet)
        children = [fork(clean_up, leave=os._exit) for _ in range(CHILDREN)]
        codes = [exit_code(child) for child in children]
        return {"during": await calls(fleet), "naps": count(await asyncio.gather(*naps)), "children": codes}


def run_preload() -> dict[str, object]:
    """As a server that loads the program once: the fleet is made before the fork, and entered after it."""
    fleet = ToolFleet()

    async def serve() -> int:
        async with fleet:
            return await calls(fleet)

    children = [fork(lambda: asyncio.run(serve()), leave=sys.exit) for _ in range(CHILDREN)]
    return {"during": asyncio.run(serve()), "children": [exit_code(child) for child in children]}


def fork(work: Callable[[], int], *, leave: Callable[[int], object]) -> int:
    """The child's exit code says how many of its calls were right."""
    if (pid := os.fork()) == 0:
        try:
            right = work()
        except BaseException as exc:  # noqa: BLE001 - nothing may get out of here into the parent's code
            sys.stderr.write(f"{exc!r}\n")
            os._exit(99)
        leave(right)
    return pid


def exit_code(pid: int) -> int:
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -99


WAYS: dict[str, Callable[[], dict[str, object]]] = {
    "preload": run_preload,
    "async": lambda: asyncio.run(run_async()),
    "cleanup": lambda: asyncio.run(run_cleanup()),
    "sync": run_sync,
}


if __name__ == "__main__":
    for name, run in WAYS.items():
        sys.stdout.write(f"{json.dumps({'way': name, **run()})}\n")
        sys.stdout.flush()  # a child would print it once more
