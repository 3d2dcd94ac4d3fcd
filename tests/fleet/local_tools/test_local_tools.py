"""Tools that are functions of our own, in a whole fleet: real workers import them, and agents never do."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.command import run
from support.fleet import TestBed
from support.module_server import ModuleServer
from support.programs.fork_server import start
from support.waiting import PATIENCE_SECONDS, wait_until_answered
from toolfleet import Caller, ModuleStatus, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.environment import environment_of, worker_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.catalog.operator import operating
from toolfleet_registry.settings import Settings

MODULE = "owl_program"
OWLS = 'async def owls() -> str:\n    """Count owls."""\n    return "five"\n\n\ntools = [owls]\n'


@pytest.fixture
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        more = {"local_tools": f"{MODULE}:tools", "discovery_timeout_seconds": 2}
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), more)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The file that workers import, in a folder of its own."""
    return tmp_path / f"{MODULE}.py"


def path_to(program: Path) -> dict[str, str]:
    """Where a worker finds it. A test's programs differ in length: by that Python knows that its bytecode is of another one."""
    return {"PYTHONPATH": str(program.parent)}


@asynccontextmanager
async def agent_of(bed: TestBed) -> AsyncGenerator[ToolFleet]:
    """An agent that names no local tools, as it need not."""
    async with ToolFleet(settings=Settings(redis_url=bed.redis_url)) as agent:
        yield agent


async def call(agent: ToolFleet, owner: Caller, name: str, **arguments: Any) -> ToolResult:
    return await agent.call(ToolCall(tool_name=name, arguments=arguments), owner, timeout=30)


async def until(agent: ToolFleet, is_so: Callable[[ModuleStatus], bool]) -> ModuleStatus:
    """Wait until that is said of the local tools."""
    found: list[ModuleStatus] = []

    async def is_said() -> bool:
        found.extend(filter(None, [(await agent.modules.refresh()).get("local")]))
        return bool(found) and is_so(found[-1])

    await wait_until_answered(is_said, "it is said of the local tools")
    return found[-1]


async def test_agents_know_what_workers_have_said(
    bed: TestBed, program: Path, owner: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts anew says at once what it has, for its program may have changed: nobody has to ask.

    No agent imports them, not even where its settings name them, it could, and no worker is there any more: it reads the manifest.
    """
    program.write_text(OWLS)
    with bed.worker(env=path_to(program)):
        async with agent_of(bed) as agent:
            await until(agent, lambda local: local.ok)
    monkeypatch.syspath_prepend(program.parent)
    async with ToolFleet(settings=bed.settings) as agent:
        assert (await agent.modules.refresh())["local"].ok
        assert "local.owls" in {tool.name for tool in await agent.tools(owner)}
    assert MODULE not in sys.modules
    program.write_text(OWLS.replace("Count owls.", "Count larks."))
    with bed.worker(env=path_to(program)):
        async with agent_of(bed) as agent:

            async def is_described() -> bool:
                return "Count larks." in {tool.description for tool in await agent.tools(owner)}

            await wait_until_answered(is_described, "the agent knows the new program")


async def test_tools_that_cannot_be_imported_end_no_worker(bed: TestBed, program: Path, owner: Caller) -> None:
    """Everything else is served; the list of modules, the status and the log say what is wrong, and where. Mended, they are imported."""
    program.write_text("tools = [\n")
    where = f"SyntaxError: '[' was never closed ({program}, line 1)"
    with bed.worker(env=path_to(program)) as worker:
        async with agent_of(bed) as agent:
            assert (await call(agent, owner, "owls.echo", text="hu")).success
            assert not (await until(agent, lambda local: where in str(local.error))).ok
            (row,) = (row for row in await said(bed, "modules", "list", "--json") if row["module"] == "local")
            assert (row["state"], where in row["error"]) == ("failed", True)
            troubles = (await said(bed, "status", "--json"))["troubles"]
            assert [one["error"] for one in troubles if one["module"] == "local"] == [row["error"]]
            assert "local_tools_not_imported" in worker.said()
            assert where in worker.said()

            program.write_text(OWLS)
            assert (await until(agent, lambda local: local.ok)).tools == 1
            assert (await call(agent, owner, "local.owls")).result == "five"


async def said(bed: TestBed, *words: str) -> Any:
    ended = await asyncio.to_thread(run, *words, env=environment_of(Settings(redis_url=bed.redis_url)))
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


async def test_a_worker_that_cannot_import_them_leaves_their_calls_to_others(
    bed: TestBed, program: Path, owner: Caller
) -> None:
    """Whichever worker a call comes to first, it is run by one that can, once."""
    program.write_text(OWLS)
    with bed.worker(env=path_to(program)):
        async with agent_of(bed) as agent:
            await until(agent, lambda local: local.ok)
            program.write_text("1/0\n")
            with bed.worker(env=path_to(program)) as broken:
                results = await asyncio.gather(*(call(agent, owner, "local.owls") for _ in range(40)))
                assert "ZeroDivisionError" in broken.said()
    assert [result.result for result in results] == ["five"] * 40


async def test_a_worker_may_insist_on_all_of_its_tools(bed: TestBed, program: Path) -> None:
    """It ends with what is wrong, as one sentence, before it has begun."""
    program.write_text("tools = [\n")
    env = {**environment_of(bed.settings), **path_to(program), "TOOLFLEET_LOCAL_TOOLS_REQUIRED": "true"}
    log = program.with_suffix(".log")
    with log.open("wb") as output:
        worker = start(worker_command("all"), env=env, output=output)
    assert await asyncio.to_thread(worker.wait, PATIENCE_SECONDS) != 0
    words = log.read_text()
    assert f"cannot be imported: SyntaxError: '[' was never closed ({program}, line 1)" in words
    assert "Traceback" not in words


async def test_changed_code_of_pinned_tools_waits_for_an_approval(bed: TestBed, program: Path, owner: Caller) -> None:
    """Under the same signature and docstring, and while a worker with the code of before is still there."""
    program.write_text(OWLS)
    env = path_to(program)
    async with AsyncExitStack() as stack:
        first = stack.enter_context(ExitStack())
        first.enter_context(bed.worker(env=env))
        agent = await stack.enter_async_context(agent_of(bed))
        operator = await stack.enter_async_context(operating(bed.settings))
        await until(agent, lambda local: local.ok)
        await operator.pin("local")
        assert (await call(agent, owner, "local.owls")).result == "five"

        program.write_text(OWLS.replace('"five"', '"six"'))
        stack.enter_context(bed.worker(env=env))
        results = await asyncio.gather(*(call(agent, owner, "local.owls") for _ in range(20)))
        assert {result.result for result in results} <= {"five", None}
        assert {(one.error_code, one.effect_state) for one in results if not one.success} <= {
            ("permission_denied", "none")
        }
        first.close()
        await until(agent, lambda local: local.withheld == 1)
        (difference,) = await operator.differences("local")
        assert difference.fields().keys() == {"code_digest"}
        assert (await call(agent, owner, "local.owls")).error_code == "permission_denied"

        await operator.approve("local.owls")

        async def is_six() -> bool:
            return bool((await call(agent, owner, "local.owls")).result == "six")

        await wait_until_answered(is_six, "the agent hears of the approval")
