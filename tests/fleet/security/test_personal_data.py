"""Personal data that an agent's profile hides is nowhere: neither in Redis, nor in logs, whoever has said it."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fleet import SIGNING_KEY, TestBed, own_bed
from support.gateways.gateway_process import gateway_process
from support.gateways.mcp_requests import TASKS, asked
from support.module_server import ModuleServer, Request, holding, serve
from support.servers import redis_snapshot
from support.waiting import wait_until, wait_until_answered
from support.worker_process import WorkerProcess
from toolfleet import (
    Approver,
    Caller,
    CallHandle,
    Conversation,
    JobRefused,
    PendingInput,
    Schedule,
    ToolCall,
    ToolFleet,
    ToolResult,
)
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import ApiKeys
from toolfleet_tasks.operations.call_index import CallFilter, CallIndex
from toolfleet_tasks.resources.audit import AuditReader, Wanted

NUMBER = 40
ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
EMAILS = [f"planted.{n}@example-{n}.org" for n in range(NUMBER)]
PHONES = [f"+49 30 9018{n:04d}" for n in range(1000, 1000 + NUMBER)]
CARDS = ["4111 1111 1111 1111", "5555 5555 5555 4444", "3782 822463 10005"]
IBANS = ["DE89 3704 0044 0532 0130 00", "GB82 WEST 1234 5698 7654 32", "FR14 2004 1010 0505 0001 3M02 606"]
PLANTED = [*EMAILS, *PHONES, *CARDS, *IBANS]
AGENTS = {
    name: {"middleware": [{"name": "pii", "strategy": strategy}]}
    for name, strategy in {"redacts": "redact", "masks": "mask", "hashes": "hash", "blocks": "block"}.items()
} | {
    "quiet": {"middleware": [{"name": "pii", "apply_to": ["result", "error"]}]},
    "watched": {"middleware": [{"name": "pii"}, {"name": "human_in_the_loop", "approve_tools": ["owls.told"]}]},
    "cautious": {
        "middleware": [
            {"name": "pii", "strategy": "block", "apply_to": ["arguments"]},
            {"name": "human_in_the_loop", "approve_tools": ["owls.told"]},
        ]
    },
    "narrow": {"middleware": [{"name": "pii", "tools": ["owls.tells"]}]},
    "plain": {},
}
ASKS = ToolCall(tool_name="owls.asks", takes_input=True)
SECONDS = 30


async def told(request: Request) -> dict[str, Any]:
    return {"success": True, "result": {"heard": request["arguments"]}}


async def tells(request: Request) -> dict[str, Any]:
    return {"success": True, "result": {"people": [{"mail": one, "deep": [[one]]} for one in PLANTED]}}


async def fails(request: Request) -> dict[str, Any]:
    return {"success": False, "error": f"Nobody is called {EMAILS[0]}, nor {PHONES[1]}.", "effect_state": "none"}


async def asks(request: Request) -> dict[str, Any]:
    """Ask two things, and say what was answered."""
    if (inputs := request.get("inputs")) is None:
        said = {name: {"method": "elicitation/create", "params": {"message": f"{name} {EMAILS[3]}?"}} for name in "ab"}
        return {"input_required": {"requests": said, "state": "kept"}, "effect_state": "done"}
    return {"success": True, "result": {"state": inputs["state"], "heard": len(inputs["responses"])}}


def answers(text: str) -> dict[str, Any]:
    return {name: {"action": "accept", "content": {"x": [text]}} for name in "ab"}


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    for method, tool in {"told": told, "tells": tells, "fails": fails, "asks": asks}.items():
        module.add(method, tool, effect="once")
    with serve(module) as served:
        yield served


@pytest.fixture(scope="module")
def bed(module: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    more: dict[str, object] = {"agents": AGENTS, "signing_key": SIGNING_KEY, "log_level": "DEBUG"}
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (module,), tmp_path_factory.mktemp("logs"), more)


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


def arguments() -> dict[str, Any]:
    return {"people": [{"mail": one, "words": f"Write to {one}, please."} for one in PLANTED], EMAILS[2]: 1}


async def called(bed: TestBed, agent: str, method: str, said: dict[str, Any] | None = None) -> ToolResult:
    async with ToolFleet(settings=bed.settings) as fleet:
        caller = ADA.model_copy(update={"agent": agent})
        return await fleet.call(ToolCall(tool_name=f"owls.{method}", arguments=said or {}), caller, timeout=60)


@pytest.mark.parametrize("agent", ["redacts", "masks", "hashes"])
async def test_no_planted_value_is_anywhere(
    bed: TestBed, worker: WorkerProcess, module: ModuleServer, agent: str
) -> None:
    """Its tool is not told, its agent neither, and nobody finds it in Redis or in a log."""
    results = [
        await called(bed, agent, "told", arguments()),
        await called(bed, agent, "tells"),
        await called(bed, agent, "fails"),
    ]
    assert [result.success for result in results] == [True, True, False]
    kept = redis_snapshot.take(bed.redis_url)
    said = "\n".join(result.model_dump_json() for result in results)
    heard = json.dumps(module.calls("told")[-1])
    logs = "\n".join(path.read_text(errors="replace") for path in Path(bed.folder).iterdir())
    for where, text in {"Redis": kept, "results": said, "the module": heard, "logs": logs}.items():
        assert [one for one in PLANTED if one in text] == [], where
    assert len(module.calls("told")[-1]["arguments"]["people"]) == len(PLANTED)


async def test_the_same_value_has_the_same_hash(bed: TestBed, worker: WorkerProcess, module: ModuleServer) -> None:
    """In every process and in every spelling, so that what belongs together stays together."""
    for spelt in ("+49 30 90181000", "+49309018-1000"):
        assert (await called(bed, "hashes", "told", {"phone": spelt})).success
    one, other = (call["arguments"]["phone"] for call in module.calls("told")[-2:])
    assert one == other
    assert one.startswith("[phone:")


async def test_what_is_blocked_neither_goes_in_nor_comes_out(
    bed: TestBed, worker: WorkerProcess, module: ModuleServer
) -> None:
    """With the place and the kind; what a tool has done, it has."""
    before = len(module.requests)
    refused = await called(bed, "blocks", "told", {"people": [{"mail": EMAILS[0]}]})
    assert (refused.error_code, refused.effect_state) == ("invalid_arguments", "none")
    assert "'email'" in str(refused.error)
    assert "'/people/0/mail'" in str(refused.error)
    assert len(module.requests) == before
    kept_back = await called(bed, "blocks", "tells")
    assert (kept_back.error_code, kept_back.effect_state, kept_back.result) == ("invalid_response", "done", None)
    assert EMAILS[0] not in kept_back.model_dump_json()


async def test_a_profile_says_where_data_is_hidden(bed: TestBed, worker: WorkerProcess, module: ModuleServer) -> None:
    """Here in answers only: the tool is told what its agent has said, and the agent is not."""
    result = await called(bed, "quiet", "told", {"mail": EMAILS[0]})
    assert module.calls("told")[-1]["arguments"] == {"mail": EMAILS[0]}
    assert result.result == {"heard": {"mail": "[EMAIL]"}}


async def test_a_job_is_kept_without_it(bed: TestBed, module: ModuleServer) -> None:
    """Also while it waits for days, before any of its calls is made."""
    mail = EMAILS[7]
    async with ToolFleet(settings=bed.settings) as fleet:
        conversation = Conversation(conversation_id="c-1")
        job = await fleet.jobs.start(
            ToolCall(tool_name="owls.told", arguments={"mail": mail}),
            on_complete=[ToolCall(tool_name="owls.told", arguments={"deep": [{"mail": mail}]})],
            caller=ADA.model_copy(update={"agent": "redacts"}),
            conversation=conversation,
            schedule=Schedule(delay_seconds=3600),
        )
        kept = redis_snapshot.take(bed.redis_url)
        assert job.job_id in kept
        assert "[EMAIL]" in kept
        assert mail not in kept
        with pytest.raises(JobRefused) as refused:
            await fleet.jobs.start(
                ToolCall(tool_name="owls.told", arguments={"mail": mail}),
                caller=ADA.model_copy(update={"agent": "blocks"}),
                conversation=conversation,
            )
        assert refused.value.result.error_code == "invalid_arguments"


async def question_of(handle: CallHandle) -> PendingInput:
    stop = await handle.next_stop(SECONDS)
    assert isinstance(stop, PendingInput), stop
    return stop


def log_of(bed: TestBed) -> str:
    return "\n".join(path.read_text(errors="replace") for path in Path(bed.folder).iterdir())


@pytest.mark.parametrize("agent", ["redacts", "masks", "hashes"])
async def test_questions_and_answers_have_none(
    bed: TestBed, worker: WorkerProcess, module: ModuleServer, agent: str
) -> None:
    """What a module asks is hidden before it is stored, what it is answered before that is; its state comes back as it was."""
    answer = answers(f"My mail is {EMAILS[4]}.")
    async with ToolFleet(settings=bed.settings) as fleet:
        handle = await fleet.submit(ASKS, ADA.model_copy(update={"agent": agent}), timeout=SECONDS)
        question = await question_of(handle)
        kept = [redis_snapshot.take(bed.redis_url)]
        assert await handle.answer(answer)
        kept.append(redis_snapshot.take(bed.redis_url))
        result = await handle.result(SECONDS)
    assert result.result == {"state": "kept", "heard": 2}
    asked_for = question.requests["a"].params["message"]
    told_of = module.calls("asks")[-1]["inputs"]["responses"]
    assert asked_for.startswith("a ")
    assert asked_for.endswith("?")
    assert [set(said["content"]["x"][0]) >= set("My mail is .") for said in told_of.values()] == [True, True]
    for where, text in {"Redis": str(kept), "question": str(question), "module": str(told_of)}.items():
        assert [mail for mail in EMAILS if mail in text] == [], where


async def test_questions_and_answers_are_blocked(bed: TestBed, worker: WorkerProcess) -> None:
    """A question that may not pass ends its call, with the effect that the module names; an answer is refused, and may be given again."""
    async with ToolFleet(settings=bed.settings) as fleet:
        blocked = await fleet.call(ASKS, ADA.model_copy(update={"agent": "blocks"}), timeout=SECONDS)
        assert (blocked.success, blocked.effect_state, blocked.audit.attempts) == (False, "done", 1)
        assert "holds personal data" in str(blocked.error)
        assert EMAILS[3] not in blocked.model_dump_json()
        handle = await fleet.submit(ASKS, ADA.model_copy(update={"agent": "cautious"}), timeout=SECONDS)
        await question_of(handle)
        with pytest.raises(ValueError, match="Personal data of the kind 'email' is blocked") as refused:
            await handle.answer(answers(EMAILS[4]))
        assert EMAILS[4] not in str(refused.value)
        assert await handle.answer(answers("nobody"))
        assert (await handle.result(SECONDS)).success


async def test_a_worker_hides_answers_of_one_that_knows_no_profile(module: ModuleServer, tmp_path: Path) -> None:
    """Who begins and answers the call knows no default agent: the worker does, and looks once more."""
    with own_bed(module, tmp_path, agents=AGENTS, signing_key=SIGNING_KEY) as bed, bed.worker(default_agent="redacts"):
        async with ToolFleet(settings=bed.settings.model_copy(update={"agents": {}})) as fleet:
            mailed, where = ADA.model_copy(update={"user_id": EMAILS[9]}), Conversation(conversation_id=EMAILS[8])
            handle = await fleet.submit(ASKS, mailed, timeout=SECONDS, conversation=where)
            assert EMAILS[3] not in str(await question_of(handle))
            assert await handle.answer(answers(EMAILS[4]))
            assert (await handle.result(SECONDS)).success
        (line,) = await lines_of(bed, handle.id)
    assert module.calls("asks")[-1]["inputs"]["responses"] == answers("[EMAIL]")
    assert [name[: name.index(":")] for name in (line["user_id"], line["conversation_id"])] == [
        "[user_id",
        "[conversation_id",
    ]


async def test_a_gateway_keeps_and_logs_nothing(bed: TestBed, module: ModuleServer, worker: WorkerProcess) -> None:
    """An MCP client's first answer waits for the others without what the profile hides; the log has neither user nor conversation."""
    draft = KeyDraft(user_id=EMAILS[11], permission="user", allowed_modules="*", agent="redacts")
    with contextlib.closing(ApiKeys.of(bed.settings)) as keys:
        key = keys.create(draft, COMMAND_LINE).text
    with gateway_process(bed) as gateway:
        async with gateway.client(key) as client:
            capabilities = {"elicitation": {"form": {}}, **TASKS}
            with holding(module, "asks"):  # or the question would be its first answer
                created = (await asked(client, "tools/call", {"name": ASKS.tool_name}, capabilities))["result"]
            task: dict[str, Any] = {"taskId": created["taskId"]}
            requests: dict[str, Any] = {}

            async def has_asked() -> bool:
                state = (await asked(client, "tasks/get", task, capabilities))["result"]
                requests.update(state.get("inputRequests", {}))
                return bool(requests)

            await wait_until_answered(has_asked, "the task asks")
            kept = ""
            for name in requests:
                given = {name: {"action": "accept", "content": {"x": EMAILS[5]}}}
                await asked(client, "tasks/update", {**task, "inputResponses": given}, capabilities)
                kept = redis_snapshot.take(bed.redis_url)
                assert EMAILS[5] not in kept
            assert "[EMAIL]" in kept
            assert (await client.post(f"/conversations/{EMAILS[12]}/completions/none/ack")).status_code >= 400
            route = "/conversations/{conversation_id}/completions/{completion_id}/ack"
            await wait_until(lambda: route in gateway.process.said(), "the log has the last request")
        said = gateway.process.said()
    assert "user='[user_id:" in said.replace("user=[", "user='[")
    assert [mail for mail in EMAILS if mail in said] == []


async def test_an_approvers_edit_is_hidden_before_it_is_stored(
    bed: TestBed, module: ModuleServer, worker: WorkerProcess
) -> None:
    """Other approvers, Redis and the module see it without the address; where the profile blocks, it is refused and the call waits on."""
    boss = Approver("command line", "bob", "admin")
    async with ToolFleet(settings=bed.settings) as fleet:
        caller = ADA.model_copy(update={"agent": "watched"})
        result = await fleet.call(ToolCall(tool_name="owls.told", arguments={"mail": "nobody"}), caller)
        approval_id = result.audit.call_id
        edited = await fleet.approvals.approve(approval_id, boss, arguments={"mail": f"to {EMAILS[6]}"})
        assert (edited.state, edited.request.arguments) == ("approved", {"mail": "to [EMAIL]"})
        assert EMAILS[6] not in redis_snapshot.take(bed.redis_url)

        async def has_run() -> bool:
            return module.calls("told")[-1:] != [] and module.calls("told")[-1]["arguments"] == {"mail": "to [EMAIL]"}

        await wait_until_answered(has_run, "the approved call has run")

        cautious = ADA.model_copy(update={"agent": "cautious"})
        waiting = await fleet.call(ToolCall(tool_name="owls.told", arguments={"mail": "nobody"}), cautious)
        with pytest.raises(ValueError, match="Personal data of the kind 'email' is blocked: at '/mail'"):
            await fleet.approvals.approve(waiting.audit.call_id, boss, arguments={"mail": EMAILS[6]})
        assert (await fleet.approvals.show(waiting.audit.call_id)).state == "waiting"


async def test_an_approvers_reason_is_hidden_before_it_is_stored(bed: TestBed, worker: WorkerProcess) -> None:
    """It is what the model and other approvers read; where the profile blocks, the decision counts without its reason."""
    boss = Approver("command line", "bob", "admin")
    async with ToolFleet(settings=bed.settings) as fleet:
        for agent, said in (("watched", "ask [EMAIL]"), ("cautious", "(left out: it has personal data)")):
            caller = ADA.model_copy(update={"agent": agent})
            waiting = await fleet.call(ToolCall(tool_name="owls.told", arguments={"mail": "nobody"}), caller)
            decided = await fleet.approvals.reject(waiting.audit.call_id, boss, reason=f"ask {EMAILS[6]}")
            assert (decided.state, decided.journal[-1].reason, decided.votes[-1].reason) == ("rejected", said, said)
        assert EMAILS[6] not in redis_snapshot.take(bed.redis_url)


async def lines_of(bed: TestBed, *call_ids: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    async def are_there() -> bool:
        async with AuditReader.of(bed.settings) as reader:
            latest = (await reader.page(10_000)).lines
        found[:] = [line for line in latest[::-1] if line.get("call_id") in call_ids]
        return len(found) == len(call_ids)

    await wait_until_answered(are_there, "the lines are written")
    return found


USER, PLACE = "zoe.planted@example-zoe.org", "mail of zoe.planted@example-zoe.org"


async def test_identifiers_are_hidden_in_audit_and_log(
    bed: TestBed, worker: WorkerProcess, module: ModuleServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """One user has one name there, under every profile that hides and for every tool, also in refusals; the module is told the real one."""
    where, results = Conversation(conversation_id=PLACE), list[ToolResult]()
    async with ToolFleet(settings=bed.settings) as fleet:
        for agent in ("redacts", "masks", "hashes", "blocks", "narrow"):
            zoe = Caller(user_id=USER, permission="owner", allowed_modules="*", agent=agent)
            for name, said in (("owls.told", {}), ("owls.nothing", {}), ("owls.told", 7)):
                call = ToolCall(tool_name=name, arguments=said)
                results.append(await fleet.call(call, zoe, conversation=where, timeout=SECONDS))
            guest = zoe.model_copy(update={"permission": "guest", "allowed_modules": frozenset()})
            results.append(await fleet.call(ToolCall(tool_name="owls.told"), guest, conversation=where))
        assert [result.success for result in results] == [True, False, False, False] * 5
        assert {call["user_id"] for call in module.calls("told") if call["user_id"] != "ada"} == {USER}
    lines = await lines_of(bed, *(result.audit.call_id for result in results))
    ((user, place),) = {(line["user_id"], line["conversation_id"]) for line in lines}
    assert (user[:9], len(user), place[:17], len(place)) == ("[user_id:", 26, "[conversation_id:", 34)
    assert {"user_id", "conversation_id"} & set().union(*(line["decisions"] for line in lines)) == set()
    assert [one for one in (USER, PLACE) if one in log_of(bed) + str(capfd.readouterr())] == []

    async with CallIndex.of(bed.settings) as index:
        for wanted in (
            CallFilter(user=USER),
            CallFilter(user=user),
            CallFilter(conversation=PLACE),
            CallFilter(user=USER, conversation=place),
        ):
            assert (await index.find(wanted)).found == len(results)
        assert (await index.find(CallFilter(user="ada@example.org"))).found == 0


async def test_identifiers_stay_without_such_a_profile(bed: TestBed, worker: WorkerProcess) -> None:
    """Also where a profile hides, one that is no personal data stays as it is; a search finds both kinds of lines."""
    async with ToolFleet(settings=bed.settings) as fleet:
        ids = list[str]()
        for agent, user in (("plain", USER), ("quiet", USER), ("redacts", "ada-7")):
            caller = Caller(user_id=user, permission="owner", allowed_modules="*", agent=agent)
            ids.append((await fleet.call(ToolCall(tool_name="owls.told"), caller, timeout=SECONDS)).audit.call_id)
    assert [line["user_id"] for line in await lines_of(bed, *ids)] == [USER, USER, "ada-7"]
    async with CallIndex.of(bed.settings) as index, AuditReader.of(bed.settings) as reader:
        both, plain = await index.find(CallFilter(user=USER)), await reader.page(100, Wanted(user=USER))
    assert {"redacts", "plain"} <= {listed.line.get("agent") for listed in both.calls}
    assert {line.get("agent") for line in plain.lines} == {"plain", "quiet"}
