"""Agents and workers of different versions at one Redis, as they are while a fleet is updated: every call ends as it should."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from support import owls
from support.module_server import ModuleServer, Request, serve
from support.versions.mixed_fleet import MixedFleet, mixed_fleet
from support.versions.releases import Release, here
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_answered, wait_until_sync
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.redis.keys import Keys

LATE_SECONDS = 2.0
KEY = "a secret of more than thirty-two characters"
SETTINGS: dict[str, dict[str, str]] = {
    "unsigned": {},
    "signed": {"signing_key": KEY},
}
# The others in the longer proofs: what is signed is also what is not, and more.
MODES = ["signed", *(pytest.param(mode, marks=pytest.mark.slow) for mode in SETTINGS if mode != "signed")]
EXPECTED: dict[str, Any] = {
    "echo": [True, None, "done"],
    "fail": [False, "module_error", "unknown"],
    "fail_once": [False, "module_error", "unknown"],
    "turn_away": [False, "busy", "none"],
    "garble": [False, "invalid_response", "unknown"],
    "garble_read": [False, "invalid_response", "unknown"],
    "brief_nap": [False, "timed_out", "unknown"],
    "limited": [True, None, "done"],
    "limited again": [False, "rate_limited", "none"],
    "not allowed": [False, "permission_denied", "none"],
    "echoed": {"text": "tu-whit ✓", "number": 1.5, "nothing": None},
    "many": list(range(20)),
    "large": 400_000,
    "repeated": [True, None, "done", True],
    "conflict": [False, "conflict", "none"],
    "cancelled": [False, "cancelled", "unknown"],
    "said": ["half"],
    "talked": [True, None, "done"],
    "job": ["completed", "job.completed", True, "completed"],
    "dead": ["owls.brief_nap", "owls.garble", "owls.garble_read", "owls.turn_away"],
}
# The agent decides which modules a user reaches who names none, and its worker alike.
NAMES_NO_MODULES = {"agent": [True, None, "done"], "worker": [False, "permission_denied", "none"]}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("newer", ["agent", "worker"])
def test_a_newer_agent_and_an_older_worker_do_as_two_alike(
    earlier: Release, own_redis: str, tmp_path: Path, newer: str, mode: str
) -> None:
    """Whichever side is updated first, each kind of call ends as it would between two of one version.

    A newer fleet's completions wait until the agent is updated.
    """
    agent, worker = (here(), earlier) if newer == "agent" else (earlier, here())
    with mixed_fleet(own_redis, tmp_path, **SETTINGS[mode]) as fleet, fleet.running(worker):
        found = fleet.agent(agent) if newer == "agent" else fleet.agent(agent, "unheard")
    if newer == "agent" and "owls.fail" in found["dead"]:  # older workers try it twice, and call it exhausted then
        found["dead"].remove("owls.fail")
    job = EXPECTED["job"] if newer == "agent" else ["completed"]
    assert found == EXPECTED | {"names no modules": NAMES_NO_MODULES[newer], "job": job}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("newer", ["agent", "worker"])
def test_workers_of_other_versions_come_and_go_under_load(
    earlier: Release, own_redis: str, tmp_path: Path, newer: str, mode: str
) -> None:
    """No call ends unexecuted: a newer agent's arguments stand apart only while all workers read that, and older agents' never do.

    What an older worker cannot read of a newer agent's, which it learns of a second later, is published again.
    """
    agent = here() if newer == "agent" else earlier
    with mixed_fleet(own_redis, tmp_path, **SETTINGS[mode]) as fleet, ThreadPoolExecutor() as pool:
        load = Load(fleet)
        with ExitStack() as old, ExitStack() as new:
            old.enter_context(fleet.worker(earlier, "old"))
            running = pool.submit(fleet.agent, agent, "load")
            try:
                load.goes_on(apart=False)
                new.enter_context(fleet.worker(here(), "new"))
                load.goes_on(apart=False)
                old.pop_all().close()
                load.goes_on(apart=newer == "agent")
                old.enter_context(fleet.worker(earlier, "old again"))
                load.goes_on(apart=False)
                new.pop_all().close()
                load.goes_on(apart=False)
            finally:
                (tmp_path / "stop").touch()
            found = running.result()

    assert found["failed"] == []
    assert (found["apart"] > 0) == (newer == "agent")


class Load:
    """What the agent's program says of its calls while it makes them."""

    def __init__(self, fleet: MixedFleet) -> None:
        self._file = fleet.folder / "load"

    def goes_on(self, *, apart: bool) -> None:
        """Wait until a hundred calls have been made of which all, or none, have their arguments apart."""
        before = self._said()

        def is_so() -> bool:
            nonlocal before
            now = self._said()
            calls, stood = now[0] - before[0], now[1] - before[1]
            if stood if not apart else not stood:
                before = now
            return calls >= 100

        wait_until_sync(is_so, f"a hundred calls are made, apart: {apart}", seconds=3 * PATIENCE_SECONDS)

    def _said(self) -> tuple[int, int]:
        words = self._file.read_text().split() if self._file.exists() else []
        return (int(words[0]), int(words[1])) if len(words) == 2 else (0, 0)


@pytest.mark.slow
def test_ends_by_an_older_worker_are_heard_of_in_time(
    earlier: Release, own_redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent listens on its reply channel, and then its fleet is rolled back: it hears of ends within two seconds all the same."""
    module, begun, ended = ModuleServer("lates"), list[str](), dict[str, float]()

    async def nap(request: Request) -> dict[str, Any]:
        begun.append(request["arguments"]["name"])
        answer = await owls.nap(request)
        ended[request["arguments"]["name"]] = time.monotonic()
        return answer

    module.add("nap", nap, effect="read")
    with serve(module), mixed_fleet(own_redis, tmp_path, [module]) as fleet, Redis.from_url(own_redis) as redis:
        for name, value in fleet.env.items():
            monkeypatch.setenv(name, value)
        heard = asyncio.run(_rolled_back(fleet, earlier, redis, begun))
    assert heard.keys() == ended.keys() - {"first"}
    assert max(heard[name] - ended[name] for name in heard) < LATE_SECONDS


async def _rolled_back(fleet: MixedFleet, earlier: Release, redis: Redis, begun: list[str]) -> dict[str, float]:
    """Publish calls while all workers are today's, and run an older one then. Returns when the agent knew of each call's end."""
    caller = Caller(user_id="ada", permission="owner", allowed_modules="*")

    async def call(agent: ToolFleet, name: str, seconds: float) -> float:
        asked = ToolCall(tool_name="lates.nap", arguments={"seconds": seconds, "name": name})
        result = await agent.call(asked, caller, timeout=PATIENCE_SECONDS)
        assert result.success, result
        return time.monotonic()

    async with ToolFleet() as agent, asyncio.timeout(2 * PATIENCE_SECONDS):
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, fleet.worker(here()))
            await wait_until_answered(lambda: agent.tools(caller), "the agent knows the tools")
            is_open = False
            while not is_open:
                begun.clear()
                calling = asyncio.create_task(call(agent, "first", 0.5))
                await wait_until(lambda: begun, "the module has the call")
                is_open = not redis.pubsub_channels(Keys().result("*"))
                await calling
            await asyncio.to_thread(stack.close)
        names = [f"nap {number}" for number in range(8)]
        calling_all = [asyncio.create_task(call(agent, name, at / 4)) for at, name in enumerate(names)]
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, fleet.worker(earlier))
            return dict(zip(names, await asyncio.gather(*calling_all), strict=True))
