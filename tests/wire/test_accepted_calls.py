"""Calls with which their modules go on, in a fleet that is being updated: workers that know of none leave them to those that do."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from support.module_server import serve
from support.servers import redis_snapshot
from support.servers.hatchery import AT_WORK, HATCHED, Hatchery, make_hatchery
from support.versions.mixed_fleet import MixedFleet, mixed_fleet
from support.versions.releases import Release, here
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import Caller, ToolCall, ToolFleet
from wire.keep import FIXTURES, MODES

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
SECONDS = 60


@pytest.fixture
def nest() -> Iterator[Hatchery]:
    nest = make_hatchery()
    with serve(nest.server):
        yield nest


def settings_of(monkeypatch: pytest.MonkeyPatch, fleet: MixedFleet) -> None:
    """Have this process be an agent of the fleet."""
    for name, value in fleet.env.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
@pytest.mark.parametrize("is_asking", [False, True], ids=["between two questions", "during one"])
@pytest.mark.parametrize("mode", MODES)
async def test_older_workers_neither_begin_nor_end_them(
    earlier: Release,
    own_redis: str,
    tmp_path: Path,
    nest: Hatchery,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    is_asking: bool,
) -> None:
    """However often they get one that has lost its worker, it goes on, and ends with what its module says, once."""
    settings = {**MODES[mode], "visibility_timeout": "4"}
    nest.server.memory = lambda _: {"state": "none"}  # nobody of them may ask, and believe that
    with mixed_fleet(own_redis, tmp_path, [nest.server], **settings) as fleet:
        settings_of(monkeypatch, fleet)
        async with ToolFleet() as agent:
            with fleet.worker(here(), "new") as doomed:
                calls = [ToolCall(tool_name=name) for name in ("nest.hatch", "nest.warm")]
                handles = [await agent.submit(call, ADA, timeout=120) for call in calls]
                await wait_until(partial(nest.has_begun, 2), "both have begun", seconds=SECONDS)
                nest.hangs = is_asking
                count = len(nest.asked)
                await wait_until(lambda: len(nest.asked) >= count + 2, "both are asked for", seconds=SECONDS)
                doomed.process.kill()
                doomed.process.wait(PATIENCE_SECONDS)
            nest.hangs = False
            with fleet.worker(earlier, "old") as old:
                for handle in handles:
                    told = handle.id
                    seen = partial(_is_put_off, old.log, told)
                    await wait_until(seen, "it was put off again and again", seconds=SECONDS)
                assert {await handle.status() for handle in handles} == {"running"}
                with fleet.worker(here(), "newer"):
                    nest.answer = HATCHED
                    results = [await handle.result(SECONDS) for handle in handles]
    assert [(result.success, result.result) for result in results] == [(True, "an owl")] * 2
    assert (len(nest.begun), [result.audit.attempts for result in results]) == (2, [1, 1])


def _is_put_off(log: Path, call_id: str) -> bool:
    lines = log.read_text(errors="replace").splitlines()
    return sum("tool_call_put_off" in line and call_id in line for line in lines) >= 3


@pytest.mark.parametrize("mode", MODES)
async def test_what_was_written_of_them_is_read_and_gone_on_with(
    own_redis: str, tmp_path: Path, nest: Hatchery, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Records of that version: one call is asked for until it has ended; the other's process is gone, and it is unknown."""
    text = (FIXTURES / f"2-{mode}-accepted.json").read_text()
    redis_snapshot.restore(own_redis, text)
    nest.answer = {**AT_WORK, "poll_after_seconds": 0.1}  # or it would be asked again when its record says: after 30 s
    with mixed_fleet(own_redis, tmp_path, [nest.server], **MODES[mode]) as fleet, fleet.worker(here()):
        settings_of(monkeypatch, fleet)
        async with ToolFleet() as agent:
            await wait_until(lambda: nest.asked, "it is asked for")
            nest.answer = HATCHED
            kept = await agent.call(ToolCall(tool_name="nest.hatch", idempotency_key="kept"), ADA, timeout=SECONDS)
            lost_call = ToolCall(tool_name="nest.plainly", idempotency_key="elsewhere")
            lost = await agent.call(lost_call, ADA, timeout=SECONDS)

    assert (kept.success, kept.result, kept.audit.attempts) == (True, "an owl", 1)
    assert (lost.error_code, lost.effect_state) == ("outcome_unknown", "unknown")
    assert (nest.begun, {question["call_id"] for question in nest.asked}) == ([], {kept.audit.call_id})


@pytest.mark.parametrize("mode", MODES)
def test_the_records_have_every_field(mode: str) -> None:
    """What is kept of accepted calls has what this version writes: whoever changes that keeps the older one readable."""
    found = json.loads((FIXTURES / f"2-{mode}-accepted.json").read_text())
    records = [entry["value"] for key, entry in found.items() if key.startswith("toolfleet:call:")]
    fields = {"accepted", "ask_at", "parked", "v", "token", "lease", "as", "granted", "begun", "so_far"}

    assert [fields - set(record) for record in records] == [set(), set()]
    assert sorted(record.get("replica", "") for record in records) == ["", "gone-1"]
    assert {(record["as"], record["v"], record["so_far"]) for record in records} == {("busy", "2", "unknown")}
