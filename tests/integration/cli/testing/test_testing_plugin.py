"""The pytest plugin as somebody else uses it: each test here is a test run in a process of its own."""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.documents import ROOT
from support.processes import is_gone
from support.programs.child_pytest import run_pytest
from toolfleet.sdk import Module
from toolfleet_cli.testing.in_process import in_process

MODULE = '''
import asyncio
from toolfleet.sdk import Context, Module, ToolError

module = Module("owls", description="Counts owls.")
events = []


@module.on_startup
async def begin():
    events.append("begin")


@module.on_shutdown
def end():
    events.append("end")


@module.tool(effect="read")
async def count(day: int, user_id: str | None = None) -> dict[str, int | str | None]:
    """How many owls were seen on a day."""
    if day > 31:
        raise ToolError("There is no such day.", effect_state="none")
    return {"owls": 5, "for": user_id}


@module.tool(effect="read")
async def watch(context: Context, until: str = "begin") -> str:
    """Watch them."""
    await context.progress(0.5, "half")
    while until not in events:
        await asyncio.sleep(0)
    return context.permission or "nobody"


app = module.app
'''
IN_PROCESS = """
from owls import events, module


def test_a_tool(toolfleet_module):
    owls = toolfleet_module(module, user_id="ada")
    assert owls.call("count", day=1).result == {"owls": 5, "for": "ada"}
    assert owls.call("owls.count", day=1, user_id="bob").result["for"] == "bob"
    assert owls.call("count", day=99).error == "There is no such day."
    assert not owls.call("count", day="x").success
    assert owls.call("watch").progress[0] == (0.5, "half")
    assert [tool.name for tool in owls.manifest().tools] == ["owls.count", "owls.watch"]
    first = owls.send("count", {"day": 1}, call_id="c-1")
    assert owls.reconcile("c-1")["result"] == first.result
    assert events == ["begin"]


def test_it_has_ended_with_its_test(toolfleet_module):
    assert events == ["begin", "end"]
    toolfleet_module(module)
    assert events == ["begin", "end", "begin"]
"""
WITH_A_LOOP = """
import pytest
from owls import module


@pytest.mark.asyncio
async def test_a_tool(toolfleet_module):
    assert toolfleet_module(module).call("count", day=1).success
"""
BROKEN = """
from toolfleet.sdk import Module

module = Module("broken")


@module.on_startup
async def begin():
    raise RuntimeError("no database")


def test_a_module_that_does_not_start(toolfleet_module):
    toolfleet_module(module)
"""
WHOLE = """
import json
import os
from pathlib import Path

import pytest
from owls import events, module
from redis import Redis
from toolfleet import Caller, ToolCall


def note(fleet):
    with Redis.from_url(fleet.settings.redis_url) as redis:
        pid = redis.info("server")["process_id"]
    with Path("pids").open("a") as file:
        file.write(f"{pid} ")


def test_the_whole_way(toolfleet_fleet):
    fleet = toolfleet_fleet(module, default_timeout=7)
    note(fleet)
    result = fleet.call("owls.count", day=1)
    assert (result.result["owls"], result.audit.attempts) == (5, 1)
    assert fleet.settings.default_timeout == 7
    assert events[-1] == "begin"
    call = ToolCall(tool_name="owls.watch", arguments={"until": "seen"})
    handle = fleet.sync.submit(call, Caller(permission="user", allowed_modules="*"))
    step = next(iter(handle.progress()))
    assert (step.fraction, step.message) == (0.5, "half")
    events.append("seen")
    assert handle.result().success


@pytest.mark.asyncio
async def test_with_a_loop_and_a_module_elsewhere(toolfleet_fleet):
    fleet = toolfleet_fleet("owls:app", with_beat=True, signing_key="k3y-" * 4 + "of-this-test-only-0123456789")
    note(fleet)
    async with fleet.agent() as agent:
        caller = Caller(permission="admin", allowed_modules="*")
        assert (await agent.call(ToolCall(tool_name="owls.watch"), caller)).result == "admin"
    assert events[-1:] != ["begin"]  # not here
"""
NO_SUCH = """
import pytest
from toolfleet import FleetError
from owls import module


def test_a_module_that_is_not_there(toolfleet_fleet):
    with pytest.raises(FleetError, match="nowhere ended at its start(.|\\n)*Could not import module"):
        toolfleet_fleet("nowhere:app")


def test_a_module_that_is_there_twice(toolfleet_fleet):
    with pytest.raises(FleetError, match="There are two modules named 'owls'."):
        toolfleet_fleet(module, "owls:app")


def test_a_wrong_setting(toolfleet_fleet):
    with pytest.raises(FleetError, match="TOOLFLEET_NO_SUCH: there is no such setting."):
        toolfleet_fleet(no_such=1)
"""


def write(folder: Path, name: str, text: str) -> None:
    (folder / "owls.py").write_text(MODULE)
    (folder / f"test_{name}.py").write_text(text)


def test_a_module_is_called_in_process(tmp_path: Path) -> None:
    """Without a plugin for asyncio, without sockets; the module starts and stops around each test."""
    write(tmp_path, "in_process", IN_PROCESS)
    outcome = run_pytest(tmp_path, "-p", "no:asyncio", "-W", "error")

    assert outcome.counts == {"passed": 2}, outcome.said


@pytest.mark.usual
def test_it_ends_whatever_a_tool_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback that ends the process ends nothing; a tool that blocks the loop is left behind, and said."""
    monkeypatch.setattr("toolfleet_cli.testing.in_process._MARGIN_SECONDS", 0.2)
    monkeypatch.setattr("toolfleet_cli.testing.in_process._STOP_SECONDS", 0.2)
    module, go = Module("owls"), threading.Event()

    @module.tool
    async def leave() -> str:
        asyncio.get_running_loop().call_soon(sys.exit)
        await asyncio.sleep(0)
        return "stays"

    @module.tool
    async def block() -> None:
        go.wait()

    with ExitStack() as stack:
        owls = stack.enter_context(in_process(module))
        assert owls.call("leave").result == "stays"
        with pytest.raises(TimeoutError, match=r"within 0.3 s: a tool blocks its event loop"):
            owls.send("block", {}, seconds=0.1)
        with pytest.raises(TimeoutError, match="blocks its event loop"):
            stack.close()
        go.set()


@pytest.mark.usual
def test_a_module_never_seems_to_have_started_that_has_not() -> None:
    """However the threads take turns, the error of its startup is raised before the test goes on."""
    module = Module("broken", key="")

    @module.on_startup
    def begin() -> None:
        raise RuntimeError("no database")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            with pytest.raises(RuntimeError, match="no database"), in_process(module):
                pytest.fail("it has not started")
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.timeout(240)
def test_a_whole_fleet_runs_in_a_test_and_ends_with_it(tmp_path: Path) -> None:
    """A module object of the test's process, or one that is imported elsewhere; signed calls; settings; no process stays.

    In the same run: a test with a loop calls its module, the guide's tests pass, and a test fails with the reason why its fleet or
    its module cannot start.
    """
    for name, text in {"whole": WHOLE, "no_such": NO_SUCH, "with_a_loop": WITH_A_LOOP, "broken": BROKEN}.items():
        write(tmp_path, name, text)
    shutil.copy(ROOT / "tests/fundamentals/programs/tools/test_a_module.py", tmp_path / "test_guide.py")
    outcome = run_pytest(tmp_path)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]

    assert outcome.counts == {"failed": 1, "passed": 8}, outcome.said
    assert "RuntimeError: no database" in outcome.said
    assert [is_gone(pid) for pid in pids] == [True, True]


@pytest.mark.slow
def test_a_wheel_brings_no_warnings(tmp_path: Path) -> None:
    """Pytest looks into the packages of a plugin's wheel, and is told to leave ours alone: also where they are in use."""
    packages = ("toolfleet", *(f"toolfleet_{room}" for room in ("cli", "modules", "registry", "tasks", "workers")))
    wheel = tmp_path / "toolfleet-1.dist-info"  # as pip unpacks it
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: toolfleet\nVersion: 1\n")
    (wheel / "entry_points.txt").write_text("[pytest11]\ntoolfleet = toolfleet_cli.testing.plugin\n")
    (wheel / "RECORD").write_text("".join(f"{name}/__init__.py,,\n" for name in packages))
    write(tmp_path, "in_process", IN_PROCESS)
    code = f"import sys, pytest, {', '.join(packages)}; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error"]
    env = {**os.environ, "PYTHONPATH": "."}
    said = subprocess.check_output(command, cwd=tmp_path, env=env, text=True, stderr=subprocess.STDOUT)

    assert ("2 passed" in said, "PytestAssertRewriteWarning" in said) == (True, False)


@pytest.mark.usual
def test_the_plugin_costs_next_to_nothing_where_nobody_uses_it() -> None:
    """It is loaded by every pytest of an environment that has Toolfleet: nothing heavy comes with it."""
    heavy = {
        *("celery", "kombu", "pydantic", "redis", "httpx", "starlette", "uvicorn"),
        *("toolfleet", "toolfleet_modules", "toolfleet_registry", "toolfleet_tasks", "toolfleet_workers"),
    }
    code = f"import sys, toolfleet_cli.testing.plugin; print({heavy!r} & set(sys.modules))"

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
