"""Tasks of MCP servers: the module accepts the call, and says where it is until it has ended."""

from pathlib import Path
from typing import Any

import pytest

from support.hosts.mcp_server import HostedServer, hosted_nest, hosted_server, http_nest
from toolfleet_modules.sdk.client import ModuleResult
from toolfleet_registry.contracts.inputs import CallInputs

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_task_is_followed_to_its_end(tmp_path: Path, transport: str) -> None:
    """It is running until the server says that it has completed, and then its result is the call's."""
    async with hosted_nest(transport, tmp_path) as served:
        accepted = await served.call("brood")
        assert (accepted.success, bool(accepted.handle)) == (False, True)

        running = await served.client.status(accepted.call_id, accepted.handle)
        assert (running["state"], running["message"], running["poll_after_seconds"]) == ("running", "warm", 0.1)
        (tmp_path / "hatched").touch()
        done = await served.client.status(accepted.call_id, accepted.handle)
        assert (done["state"], done["success"], done["result"]) == ("done", True, "three chicks")
        assert served.noted().count("brood ") == 1


async def test_a_task_that_nobody_wants_is_cancelled(tmp_path: Path) -> None:
    """And one that the server knows no more is unknown, never undone."""
    async with hosted_nest("stdio", tmp_path) as served:
        first, second = await served.call("brood"), await served.call("brood")
        ended = await served.client.status(first.call_id, first.handle, cancel=True)
        assert (ended["state"], ended["success"], ended["effect_state"]) == ("done", False, "unknown")

        assert (await served.settled("die")).effect_state == "unknown"
        assert (await served.settled("echo")).success
        assert (await served.client.status(second.call_id, second.handle))["state"] == "unknown"


async def test_a_task_that_ends_as_it_is_cancelled_has_ended_by_itself(tmp_path: Path) -> None:
    """A server may refuse to cancel one that has ended, and still knows how."""
    async with hosted_nest("http", tmp_path) as served:
        call = await served.call("brood")
        (tmp_path / "hatched").touch()
        ended = await served.client.status(call.call_id, call.handle, cancel=True)

        assert (ended["state"], ended["success"], ended.get("result")) == ("done", True, "three chicks")
        assert updates(served) == ["cancel task-0"]


async def test_an_older_server_makes_no_tasks(tmp_path: Path) -> None:
    """Its calls end as they always did."""
    async with hosted_nest("http --old", tmp_path) as served:
        assert (await served.call("brood")).success


async def tended(served: HostedServer, text: str = "") -> ModuleResult:
    """A call whose server makes a task of it that asks."""
    return await served.client.send("nest.tend", {"text": text}, user_id="ada", takes_input=True)


async def where(served: HostedServer, call: ModuleResult, inputs: CallInputs | None = None) -> dict[str, Any]:
    """Where it is, asked for as the fleet does whose caller can answer."""
    return await served.client.status(call.call_id, call.handle, takes_input=True, inputs=inputs)


def answer(asked: dict[str, Any], name: str, number: int = 1) -> CallInputs:
    requests = asked["input_required"]["requests"]
    responses = {key: {"action": "accept", "content": {"name": name}} for key in requests}
    return CallInputs(round=number, responses=responses, state=asked["input_required"]["state"])


def updates(served: HostedServer) -> list[str]:
    return [line for line in served.noted() if line.startswith(("tend", "update", "cancel"))]


async def test_a_task_that_asks_gets_its_answers(tmp_path: Path) -> None:
    """Each question comes once, and each answer is given once, however often both are heard; the tool is called once."""
    async with hosted_nest("http", tmp_path) as served:
        call = await tended(served, "2")
        first = [await where(served, call) for _ in range(2)][-1]
        (request,) = first["input_required"]["requests"].values()
        assert (first["state"], request["method"], request["params"]["message"]) == (
            "input_required",
            "elicitation/create",
            "Who?",
        )
        ada = answer(first, "Ada")
        assert (await where(served, call, ada))["state"] == "running"
        second = [await where(served, call, ada) for _ in range(2)][-1]
        assert list(second["input_required"]["requests"]) == ["who-2"]
        bob = answer(second, "Bob", 2)
        assert (await where(served, call, bob))["state"] == "running"
        done = [await where(served, call, bob) for _ in range(2)][-1]

        assert (done["state"], done["success"], done["result"]) == ("done", True, "Hello Ada and Bob")
        assert updates(served) == ["tend 2", "update task-0 who-1 Ada", "update task-0 who-2 Bob"]


async def test_an_answer_outlives_the_host(tmp_path: Path) -> None:
    """The state names the task: another host delivers it, also where the call comes to it as if it were begun."""
    notes = tmp_path / "notes"
    async with http_nest(notes) as http:
        async with hosted_server(http, notes) as served:
            call = await tended(served)
            ada = answer(await where(served, call), "Ada")
        async with hosted_server(http, notes) as served:
            assert (await served.settled("echo")).success
            again = await served.client.send("nest.tend", {"text": ""}, user_id="ada", takes_input=True, inputs=ada)
            foreign = await served.client.send("nest.tend", {"text": ""}, user_id="eve", takes_input=True, inputs=ada)
            assert (again.handle, foreign.handle, foreign.success) == (call.handle, "", False)
            assert (await where(served, call, ada))["state"] == "running"
            assert (await where(served, call, ada))["result"] == "Hello Ada"
        assert updates(served) == ["tend ", "update task-0 who-1 Ada"]


async def test_an_answer_that_was_delivered_is_no_fault(tmp_path: Path) -> None:
    """A server that still shows the question is given the answer again, and may refuse it."""
    async with hosted_nest("http", tmp_path) as served:
        call = await tended(served, "slow")
        ada = answer(await where(served, call), "Ada")
        assert (await where(served, call, ada))["state"] == "running"
        done = await where(served, call, ada)

        assert (done["state"], done["result"]) == ("done", "Hello Ada")
        assert updates(served) == ["tend slow", *["update task-0 who-1 Ada"] * 2]


async def test_what_a_server_refuses_is_asked_anew(tmp_path: Path) -> None:
    """An answer that it does not take leaves its question open."""
    async with hosted_nest("http", tmp_path) as served:
        call = await tended(served)
        refused = answer(await where(served, call), "nobody")
        again = await where(served, call, refused)
        assert (again["state"], list(again["input_required"]["requests"])) == ("input_required", ["who-1"])
        ada = answer(again, "Ada", 2)
        assert (await where(served, call, ada))["state"] == "running"
        assert (await where(served, call, ada))["result"] == "Hello Ada"


async def test_a_task_that_asks_nobody_is_ended(tmp_path: Path) -> None:
    """Where whoever called takes no input; to ask what became of the call ends nothing."""
    async with hosted_nest("http", tmp_path) as served:
        call = await tended(served)
        became = await served.client.reconcile(call.call_id)
        assert (became["state"], became["handle"], updates(served)) == ("running", call.handle, ["tend "])
        ended = await served.client.status(call.call_id, call.handle)

        assert (ended["state"], ended["success"], ended["effect_state"]) == ("done", False, "unknown")
        assert "cannot be asked" in ended["error"]
        assert updates(served) == ["tend ", "cancel task-0"]
