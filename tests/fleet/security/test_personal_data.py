"""Personal data that an agent's profile hides is nowhere: neither in Redis, nor in logs, whoever has said it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fleet import SIGNING_KEY, TestBed
from support.module_server import ModuleServer, Request, serve
from support.servers import redis_snapshot
from support.worker_process import WorkerProcess
from toolfleet import Caller, Conversation, JobRefused, Schedule, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.redis_server import redis_server

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
} | {"quiet": {"middleware": [{"name": "pii", "apply_to": ["result", "error"]}]}}


async def told(request: Request) -> dict[str, Any]:
    return {"success": True, "result": {"heard": request["arguments"]}}


async def tells(request: Request) -> dict[str, Any]:
    return {"success": True, "result": {"people": [{"mail": one, "deep": [[one]]} for one in PLANTED]}}


async def fails(request: Request) -> dict[str, Any]:
    return {"success": False, "error": f"Nobody is called {EMAILS[0]}, nor {PHONES[1]}.", "effect_state": "none"}


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    for method, tool in {"told": told, "tells": tells, "fails": fails}.items():
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
