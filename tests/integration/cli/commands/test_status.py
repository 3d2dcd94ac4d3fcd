"""`toolfleet status`: one screen, and all of it for programs."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from redis import Redis

from support.command import Run
from toolfleet_registry.config.run_file import ListedProcess, RunFile
from toolfleet_registry.directory.entries import ModuleEntry
from toolfleet_registry.settings import Settings, load_settings
from toolfleet_tasks.presence import LaneCapacity


@pytest.fixture
def fleet(redis_url: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """One that runs here, of which something is wrong."""
    services = {f"m{number}": "http://127.0.0.1:1" for number in range(20)}
    values = {"redis_url": redis_url, "module_services": services, "slow_modules": ["m1"]}
    processes = {"redis": ListedProcess(pid=1, state="ready"), "m0": ListedProcess(pid=2, state="dead")}
    RunFile(pid=os.getpid(), settings=values, processes=processes).write(elsewhere)
    settings = load_settings()
    asyncio.run(LaneCapacity(settings.model_copy(update={"lane": "fast"}), count=7).note())
    return settings


def test_it_is_one_screen(run: Run, fleet: Settings, redis_url: str) -> None:
    """Lanes, processes, counts, queues and modules in trouble; of many modules the first."""
    with Redis.from_url(redis_url) as redis:
        redis.lpush("tools.m1", "x")
        redis.hset(fleet.keys.breaker("m1"), "failures", 3)
        redis.expire(fleet.keys.breaker("m1"), 60)
        redis.zadd(fleet.keys.dead_order, {"x": 1})
    said = run("status").out
    lines = [line.split() for line in said.splitlines()]

    assert ["Lane", "fast", "1", "worker,", "7", "slots,", "19", "modules"] in lines
    assert ["Lane", "slow", "no", "worker,", "1", "module"] in lines
    assert ["Processes", "1", "of", "2", "ready,", "m0", "dead"] in lines
    assert ["Dead", "letters", "1"] in lines
    assert ["tools.m1", "slow", "open", "0", "1", "-"] in lines
    assert "m1" in said
    assert "3 calls in a row without an answer" in said
    assert "5 modules more: --json has all." in said
    assert len(lines) < 40


@pytest.mark.usefixtures("no_workers")
def test_it_says_what_the_fleet_on_this_machine_goes_on_without(run: Run, redis_url: str, elsewhere: Path) -> None:
    """Each module that no process serves, what the process does and how to see why; and lines that are not in effect."""
    states = {"owls": "starting", "crows": "dead", "larks": "dead", "larks-2": "ready"}
    processes = {
        name: ListedProcess(pid=1, state=state, module=name.partition("-")[0]) for name, state in states.items()
    }
    line = "[hosts.jays]: There is no tool folder jays."
    values = {"redis_url": redis_url}
    RunFile(pid=os.getpid(), settings=values, processes=processes, not_applied={"jays": line}).write(elsewhere)
    found = json.loads(run("status", "--json").out)

    dead = "its process is dead: `toolfleet logs crows` shows why, `toolfleet restart crows` gives it another try"
    assert [(one["module"], one["trouble"], one["error"]) for one in found["troubles"]] == [
        ("crows", "not ready", dead),
        ("owls", "not ready", "its process is starting: `toolfleet logs owls` shows why"),
    ]
    assert found["not_applied"] == [line]
    assert f"Not applied  {line}" in " ".join(run("status").out.split(" ")).replace("\n", " ")
    said = " ".join(run("doctor").out.split())
    assert f"ERROR manifests: {line}" in said
    assert f"Module crows is not ready. {dead.capitalize()}." in said
    assert run("call", "jays.sing", "--timeout", "5").err.startswith(f"unknown_module: Unknown module: jays. {line}")


def test_a_removed_module_is_none_of_its_lane(run: Run, fleet: Settings, redis_url: str) -> None:
    """It waits for no worker, though what still comes for it is ended."""
    removed = ModuleEntry(module="m99", url="http://127.0.0.1:1", slow=True, removed_at=1.0)
    with Redis.from_url(redis_url) as redis:
        redis.hset(fleet.keys.modules, "m99", removed.text())
    lanes = json.loads(run("status", "--json").out)["lanes"]

    assert {lane["lane"]: len(lane["modules"]) for lane in lanes} == {"fast": 19, "slow": 1}


def test_it_has_a_form_for_programs(run: Run, fleet: Settings) -> None:
    """Everything, whatever the screen leaves out."""
    found = json.loads(run("status", "--json").out)

    assert len(found["troubles"]) == 20
    assert found["processes"]["m0"] == {"pid": 2, "state": "dead", "module": None}
    assert found["lanes"][0]["slots"] == 7
    assert found["queues"] == []
    assert found["dead_letters"] == 0
