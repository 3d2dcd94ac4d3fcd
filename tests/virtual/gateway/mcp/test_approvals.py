"""Calls that people have to approve, of MCP clients of both eras: who may decide is asked, and nobody else."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp.client.context import ClientRequestContext

from bed.fleet import Bed, Gateway, until
from support.fleet import SIGNING_KEY
from support.gateways.mcp_clients import ERAS, Era, mcp_client
from support.gateways.mcp_requests import TASKS, asked
from support.module_server import ModuleServer
from support.owls import echo
from toolfleet import Approver, ToolFleet
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import ApiKeys

Json = dict[str, Any]
FEED: Json = {"name": "bank.pay", "arguments": {"n": 1}}
FORMS: Json = {"elicitation": {"form": {}}}
BOTH: Json = {**FORMS, **TASKS}
BOSS = Approver("command line", "bob", "owner")
WAITS: Json = {"name": "human_in_the_loop", "approve_tools": ["bank.pay"], "expires_seconds": 600}
AGENTS: Json = {
    "trusted": {"middleware": [{**WAITS, "self_approval": True, "approvers": {"permission": "user"}}]},
    "strict": {"middleware": [WAITS]},
    "pair": {"middleware": [{**WAITS, "self_approval": True, "quorum": 2, "approvers": {"permission": "user"}}]},
}
KEYS: dict[str, KeyDraft] = {
    "ada": KeyDraft(user_id="ada", permission="user", allowed_modules="*", agent="trusted"),
    "eve": KeyDraft(user_id="eve", permission="user", allowed_modules="*", agent="trusted"),
    "sam": KeyDraft(user_id="sam", permission="owner", allowed_modules="*", agent="strict"),
    "pat": KeyDraft(user_id="pat", permission="user", allowed_modules="*", agent="pair"),
}


def says(decision: str, reason: str = "") -> Json:
    return {"action": "accept", "content": {"decision": decision, **({"reason": reason} if reason else {})}}


@dataclass(frozen=True)
class Bank:
    """Two gateways, and who has which key."""

    pair: tuple[Gateway, Gateway]
    keys: dict[str, str]
    module: ModuleServer

    def client(self, who: str, number: int = 0) -> httpx.AsyncClient:
        return self.pair[number].client(self.keys[who])


@pytest.fixture
def module() -> ModuleServer:
    module = ModuleServer("bank")
    module.add("pay", echo, effect="once")
    return module


@pytest.fixture
def given() -> dict[str, Any]:
    return {"agents": AGENTS, "signing_key": SIGNING_KEY}


@pytest.fixture
def bank(bed: Bed, gateways: tuple[Gateway, Gateway], module: ModuleServer) -> Bank:
    with contextlib.closing(ApiKeys.of(bed.settings)) as keys:
        made = {who: keys.create(draft, COMMAND_LINE).text for who, draft in KEYS.items()}
    return Bank(gateways, made, module)


@pytest.fixture
async def fleet(bed: Bed, bank: Bank) -> ToolFleet:
    return await bed.agent()


async def waiting_id(fleet: ToolFleet) -> str:
    """The one call that waits."""
    found = list[str]()

    async def is_there() -> bool:
        found[:] = [
            each.approval_id for each in await fleet.approvals.list() if each.state == "waiting" and each.place == ""
        ]
        return bool(found)

    await until(is_there, "a call waits")
    (one,) = found
    return one


async def task_of(client: httpx.AsyncClient, task_id: str, capabilities: Json = BOTH) -> Json:
    result: Json = (await asked(client, "tasks/get", {"taskId": task_id}, capabilities))["result"]
    return result


async def ended(client: httpx.AsyncClient, task_id: str) -> Json:
    found: Json = {}

    async def has_ended() -> bool:
        found.update(await task_of(client, task_id))
        return found["status"] not in {"working", "input_required"}

    await until(has_ended, "the task has ended")
    return found


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_task_asks_who_may_decide_and_goes_on(bank: Bank, decision: str) -> None:
    """It requires input until its client has voted, at any gateway; an approved one ends as its call does, a rejected one with the reason."""
    async with bank.client("ada") as here, bank.client("ada", 1) as there:
        created = (await asked(here, "tools/call", FEED, BOTH))["result"]
        task_id = created["taskId"]
        assert (created["resultType"], created["status"]) == ("task", "working")
        assert "permission 'user'" in created["statusMessage"]
        waits = await task_of(there, task_id)
        ((key, request),) = waits["inputRequests"].items()
        assert (waits["status"], request["method"]) == ("input_required", "elicitation/create")
        assert '"n": 1' in request["params"]["message"]
        assert bank.module.requests == []

        answer = {"taskId": task_id, "inputResponses": {key: says(decision, "Because.")}}
        for _ in range(2):  # a repeat changes nothing
            assert (await asked(there, "tasks/update", answer, BOTH))["result"]["resultType"] == "complete"
        end = (await ended(here, task_id))["result"]
        assert end["isError"] == (decision == "reject")
        assert len(bank.module.calls("pay")) == (decision == "approve")
        assert ("Because." in end["content"][0]["text"]) == (decision == "reject")


async def test_a_task_that_others_decide_is_working(bank: Bank, fleet: ToolFleet) -> None:
    """Its client is told who may, and until when, and is asked nothing; neither is one that cannot show a form."""
    async with bank.client("sam") as sam, bank.client("ada") as ada:
        created = (await asked(sam, "tools/call", FEED, BOTH))["result"]
        waits = await task_of(sam, created["taskId"])
        assert (waits["status"], "inputRequests" in waits) == ("working", False)
        assert "'admin' or more, but not who asks" in waits["statusMessage"]
        forged = {f"approval-{(await fleet.approvals.show(created['taskId'])).request.binding}": says("approve")}
        await asked(sam, "tasks/update", {"taskId": created["taskId"], "inputResponses": forged}, BOTH)
        assert (await fleet.approvals.show(created["taskId"])).state == "waiting"
        assert "error" in await asked(
            ada, "tasks/update", {"taskId": created["taskId"], "inputResponses": forged}, BOTH
        )

        await fleet.approvals.approve(created["taskId"], BOSS)
        assert not (await ended(sam, created["taskId"]))["result"]["isError"]
        other = (await asked(ada, "tools/call", FEED, TASKS))["result"]
        assert (await task_of(ada, other["taskId"], TASKS))["status"] == "working"
        await asked(ada, "tasks/cancel", {"taskId": other["taskId"]}, TASKS)
        assert (await fleet.approvals.show(other["taskId"])).place == "done"
        assert len(bank.module.calls("pay")) == 1


async def test_an_answer_about_other_arguments_counts_for_nothing(bank: Bank, fleet: ToolFleet) -> None:
    """Of a task that was edited since, and of a request; the client is asked about what the call is by then."""
    async with bank.client("pat") as client:
        task_id = (await asked(client, "tools/call", FEED, BOTH))["result"]["taskId"]
        before = next(iter((await task_of(client, task_id))["inputRequests"]))
        seen = (await fleet.approvals.show(task_id)).request.binding
        await fleet.approvals.approve(task_id, BOSS, arguments={"n": 2}, seen=seen)
        await asked(client, "tasks/update", {"taskId": task_id, "inputResponses": {before: says("approve")}}, BOTH)
        ((key, request),) = (await task_of(client, task_id))["inputRequests"].items()
        assert (key != before, '"n": 2' in request["params"]["message"]) == (True, True)
        await asked(client, "tasks/update", {"taskId": task_id, "inputResponses": {key: says("approve")}}, BOTH)
        assert not (await ended(client, task_id))["result"]["isError"]

        first = (await asked(client, "tools/call", FEED, FORMS))["result"]
        edited = await waiting_id(fleet)
        seen = (await fleet.approvals.show(edited)).request.binding
        await fleet.approvals.approve(edited, BOSS, arguments={"n": 3}, seen=seen)
        second = (await asked(client, "tools/call", again(first, says("approve")), FORMS))["result"]
        assert '"n": 3' in second["inputRequests"]["approval"]["params"]["message"]
        third = (await asked(client, "tools/call", again(second, says("approve")), FORMS))["result"]
        assert third["resultType"] == "complete"
        assert [call["arguments"] for call in bank.module.calls("pay")] == [{"n": 2}, {"n": 3}]


def again(first: Json, answer: Json) -> Json:
    """The request once more, with the answer to what it was answered."""
    return {**FEED, "inputResponses": {"approval": answer}, "requestState": first["requestState"]}


async def test_a_request_asks_who_may_decide(bank: Bank, fleet: ToolFleet) -> None:
    """In rounds, at any gateway; the same answer once more brings the same result, and nothing runs twice."""
    async with bank.client("ada") as here, bank.client("ada", 1) as there:
        first = (await asked(here, "tools/call", FEED, FORMS))["result"]
        assert first["resultType"] == "input_required"
        results = [(await asked(one, "tools/call", again(first, says("approve")), FORMS)) for one in (there, here)]
        assert [each["result"]["structuredContent"] for each in results] == [{"n": 1}] * 2
        assert len(bank.module.calls("pay")) == 1

        refused = (await asked(here, "tools/call", FEED, FORMS))["result"]
        result = (await asked(here, "tools/call", again(refused, {"action": "decline"}), FORMS))["result"]
        assert result["_meta"]["toolfleet/error"]["error_code"] == "approval_denied"
        assert len(bank.module.calls("pay")) == 1
        assert await fleet.approvals.list() == [] or (await fleet.approvals.list())[0].state != "waiting"


async def test_a_state_is_its_callers_alone(bank: Bank, fleet: ToolFleet) -> None:
    """Another user's answer with it is refused, and so is a state that was changed; the call goes on waiting."""
    async with bank.client("ada") as ada, bank.client("eve") as eve:
        first = (await asked(ada, "tools/call", FEED, FORMS))["result"]
        call_id = await waiting_id(fleet)
        stolen = again(first, says("approve"))
        assert (await asked(eve, "tools/call", stolen, FORMS))["error"]["code"] == types.INVALID_PARAMS
        for wrong in ({"requestState": first["requestState"][:-4] + "AAAA"}, {"arguments": {"n": 9}}):
            answer = await asked(ada, "tools/call", {**stolen, **wrong}, FORMS)
            assert answer["error"]["code"] == types.INVALID_PARAMS
        for no_answer in ({"action": "accept"}, says("perhaps"), {"action": "accept", "content": {"decision": True}}):
            answer = await asked(ada, "tools/call", again(first, no_answer), FORMS)
            assert answer["error"]["code"] == types.INVALID_PARAMS
        assert (await fleet.approvals.show(call_id)).votes == ()
        left = (await asked(ada, "tools/call", again(first, {"action": "cancel"}), FORMS))["result"]
        assert left["_meta"]["toolfleet/approvalRequired"]["approval_id"] == call_id
        await cancel(ada, call_id)
        late = (await asked(ada, "tools/call", stolen, FORMS))["result"]
        assert late["_meta"]["toolfleet/error"]["error_code"] == "cancelled"
        assert bank.module.requests == []


async def cancel(client: httpx.AsyncClient, call_id: str) -> None:
    await asked(client, "tools/call", {"name": "call_cancel", "arguments": {"call_id": call_id}})


async def test_who_may_not_decide_waits(bank: Bank, fleet: ToolFleet) -> None:
    """For as long as a client waits; then it has the call's id, by which its tools know the call. Taken back, it is withdrawn."""
    async with bank.client("sam") as client:
        result = (await asked(client, "tools/call", FEED, FORMS))["result"]
        call_id = result["_meta"]["toolfleet/callId"]
        assert (result["isError"], result["_meta"]["toolfleet/running"]) == (True, True)
        assert "approval_required" in result["content"][0]["text"]

        async def own(name: str, **more: Any) -> Json:
            asks = {"name": name, "arguments": {"call_id": call_id, **more}}
            found: Json = (await asked(client, "tools/call", asks, FORMS))["result"]
            return found

        state = await own("call_status")
        assert state["structuredContent"]["state"] == "waiting_approval"
        assert state["structuredContent"]["approval"]["approval_id"] == call_id
        assert "approval_required" in (await own("call_wait", seconds=0))["content"][0]["text"]
        await own("call_cancel")
        assert (await fleet.approvals.show(call_id)).place == "done"

    async with bank.client("sam") as client:
        running = asyncio.create_task(asked(client, "tools/call", FEED, FORMS))
        await fleet.approvals.approve(await waiting_id(fleet), BOSS)
        assert (await running)["result"]["structuredContent"] == {"n": 1}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("who", ["ada", "sam"])
async def test_the_sdks_client_is_asked_by_policy_only(bank: Bank, fleet: ToolFleet, era: Era, who: str) -> None:
    """Whoever may decide is asked once, and the call ends with their answer; an owner whose own calls others approve is not."""
    questions = list[str]()

    async def answer(_: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action="accept", content={"decision": "approve"})

    async with mcp_client(bank.pair[0], era, key=bank.keys[who], elicitation_callback=answer) as client:
        result = await client.call_tool("bank.pay", {"n": 1})
    assert (result.is_error, len(questions)) == (who == "sam", int(who == "ada"))
    assert len(bank.module.calls("pay")) == int(who == "ada")
    if who == "sam":
        await fleet.approvals.reject(await waiting_id(fleet), BOSS)


async def test_an_older_clients_question_ends_when_others_decide(bank: Bank, fleet: ToolFleet) -> None:
    """Its call goes on at once, whatever its person says later."""
    is_asked = asyncio.Event()

    async def never(_: ClientRequestContext, __: types.ElicitRequestParams) -> types.ElicitResult:
        is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with mcp_client(bank.pair[0], "legacy", key=bank.keys["ada"], elicitation_callback=never) as client:
        running = asyncio.create_task(client.call_tool("bank.pay", {"n": 1}))
        await is_asked.wait()
        await fleet.approvals.approve(await waiting_id(fleet), BOSS)
        assert not (await running).is_error
    assert len(bank.module.calls("pay")) == 1
