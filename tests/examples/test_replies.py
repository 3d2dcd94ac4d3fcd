"""What a module that remembers its replies answers to the question what became of a call."""

import asyncio
import json
import re
import shlex
from typing import Any

import httpx
import pytest

from modules.replies import Replies
from modules.service import ModuleBusy, ToolError, create_app
from support.example_modules import EXAMPLES, Module, in_process
from support.http_executor import executor_for
from support.published_call import published
from toolfleet_registry.contracts import ModuleManifest, ToolDefinition
from toolfleet_registry.outcomes import Outcome

README = (EXAMPLES / "modules" / "README.md").read_text()


class Owls:
    def __init__(self) -> None:
        self.hanging = asyncio.Event()

    async def count(self) -> Any:
        return {"owls": 5}

    async def refuse(self) -> Any:
        raise ToolError("Owls sleep by day.")

    async def opaque(self) -> Any:
        return {1, 2}

    async def turn_away(self) -> Any:
        raise ModuleBusy(retry_after_seconds=3)

    async def hang(self) -> Any:
        self.hanging.set()
        await asyncio.sleep(3600)


@pytest.fixture
def tools() -> Owls:
    return Owls()


@pytest.fixture
def owls(tools: Owls) -> Module:
    names = [name for name in vars(Owls) if not name.startswith("_")]
    manifest = ModuleManifest(module_name="owls", tools=[ToolDefinition(name=f"owls.{name}") for name in names])
    return in_process("owls", create_app(manifest, tools, replies=Replies(most=2)))


async def execute(module: Module, tool: str, call_id: str | None) -> httpx.Response:
    headers = {} if call_id is None else {"Idempotency-Key": call_id}
    async with module.client() as client:
        return await client.post("/execute", json={"tool_name": f"{module.name}.{tool}"}, headers=headers)


async def reconcile(module: Module, call_id: str) -> dict[str, Any]:
    async with module.client() as client:
        answer: dict[str, Any] = (await client.post("/reconcile", json={"call_id": call_id})).json()
        return answer


@pytest.mark.parametrize("tool", ["count", "refuse", "opaque"])
async def test_a_reply_can_be_had_again(owls: Module, tool: str) -> None:
    """A success, a refusal and a result that could not be sent: the answer is the reply, with the call's id."""
    reply = (await execute(owls, tool, "c1")).json()

    assert await reconcile(owls, "c1") == {**reply, "call_id": "c1", "state": "done"}


async def test_a_call_that_runs_says_so_and_one_that_was_stopped_is_unknown(owls: Module, tools: Owls) -> None:
    """What a tool had done when its caller went away, the service does not know."""
    request = asyncio.create_task(execute(owls, "hang", "c1"))
    await asyncio.wait_for(tools.hanging.wait(), 20)
    assert (await reconcile(owls, "c1"))["state"] == "running"

    request.cancel()
    await asyncio.wait({request}, timeout=20)
    assert await reconcile(owls, "c1") == {"call_id": "c1", "state": "unknown"}


async def test_what_is_not_remembered_is_unknown(owls: Module) -> None:
    """A call that was never seen, that named no id, that was turned away, or that is too long ago."""
    await execute(owls, "count", None)
    await execute(owls, "turn_away", "c1")
    for call_id in ("c1", "c9"):
        assert await reconcile(owls, call_id) == {"call_id": call_id, "state": "unknown"}

    for call_id in ("c2", "c3", "c4"):
        await execute(owls, "count", call_id)
    assert [(await reconcile(owls, call_id))["state"] for call_id in ("c2", "c3", "c4")] == ["unknown", "done", "done"]


async def test_a_module_that_remembers_nothing_has_no_such_route() -> None:
    """The route is optional, and its absence says so."""
    module = in_process("owls", create_app(ModuleManifest(module_name="owls", tools=[]), Owls()))
    async with module.client() as client:
        assert (await client.post("/reconcile", json={"call_id": "c1"})).status_code == httpx.codes.NOT_FOUND


async def test_the_fleet_finds_out_what_a_program_printed(code_executor: Module) -> None:
    """A call whose reply was lost is asked for, and its result is there."""
    call = published("research.run_python", call_id="c-lost")
    async with code_executor.client() as client:
        body = {"tool_name": "code_executor.run_python", "arguments": {"code": "print(7)"}}
        await client.post("/execute", json=body, headers={"Idempotency-Key": "c-lost"})
    async with executor_for(code_executor.url) as executor:
        attempt = await executor.reconcile(call, seconds=10)

    assert attempt is not None
    assert attempt.outcome is Outcome.SUCCESS
    assert attempt.result.result["stdout"] == "7\n"


async def test_the_question_by_hand_gets_the_answer_that_is_shown(code_executor: Module) -> None:
    """The command of the README, sent to the module, and its reply."""
    shown = re.search(r"^\$ (curl [^\n]*/reconcile [^\n]*)\n(\{.*?\})\n```", README, re.MULTILINE)
    assert shown
    assert await reconcile(code_executor, json.loads(shlex.split(shown[1])[-1])["call_id"]) == json.loads(shown[2])
