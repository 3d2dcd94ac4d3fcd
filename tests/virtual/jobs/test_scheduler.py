"""The module `scheduler`: a model makes, sees and ends its user's jobs, as tools like any others."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from bed.fleet import Bed
from support.fleet import SIGNING_KEY
from support.module_server import ModuleServer
from toolfleet import Caller, Conversation, ToolCall, ToolFleet, ToolResult

TALK = Conversation(conversation_id="talk-1", platform="chat", platform_channel_id="7")
ADA, BOB = (Caller(user_id=name, permission="admin", allowed_modules="*") for name in ("ada", "bob"))
SOON = "in an hour"


@pytest.fixture
async def fleet(bed: Bed, owls: ModuleServer) -> ToolFleet:
    bed.given.update(scheduler=True, jobs_per_user=3, signing_key=SIGNING_KEY)
    await bed.serve(owls)
    await bed.worker()
    return await bed.agent()


async def asked(fleet: ToolFleet, method: str, caller: Caller = ADA, **arguments: Any) -> ToolResult:
    if arguments.get("at") == SOON:
        arguments["at"] = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat()
    call = ToolCall(tool_name=f"scheduler.{method}", arguments=arguments)
    return await fleet.call(call, caller, conversation=TALK)


async def made(fleet: ToolFleet, caller: Caller = ADA, **arguments: Any) -> str:
    result = await asked(fleet, "add_job", caller, **arguments)
    assert result.success, result
    return str(result.result["job_id"])


async def test_a_model_makes_a_job_and_sees_it(fleet: ToolFleet) -> None:
    """It is in the list, by itself, and where the conversation's own fields say."""
    result = await asked(fleet, "add_job", tool_name="owls.echo", arguments={"status": "running"}, name="the owls")
    assert result.success, result
    job = result.result
    assert (job["state"], job["tool_name"], job["name"]) == ("waiting", "owls.echo", "the owls")

    listed = await asked(fleet, "list_jobs")
    looked = await asked(fleet, "get_job", job_id=job["job_id"])
    known = await fleet.jobs.get(job["job_id"], ADA)

    assert [each["job_id"] for each in listed.result["jobs"]] == [job["job_id"]]
    assert looked.result["job_id"] == job["job_id"]
    assert known is not None
    assert known.conversation_id == "talk-1"


async def test_a_job_is_its_users_alone(fleet: ToolFleet) -> None:
    """Another user neither sees it nor ends it."""
    job_id = await made(fleet, at=SOON, message="Water the plants.")
    looked, cancelled = [await asked(fleet, each, BOB, job_id=job_id) for each in ("get_job", "cancel_job")]

    assert (await asked(fleet, "list_jobs", BOB)).result == {"jobs": []}
    assert [(each.error_code, each.effect_state) for each in (looked, cancelled)] == [("invalid_arguments", "none")] * 2
    assert "scheduler.list_jobs shows" in str(looked.error)
    assert (await asked(fleet, "get_job", job_id=job_id)).result["state"] == "waiting"


async def test_a_job_can_be_cancelled_again_and_again(fleet: ToolFleet) -> None:
    """The second time it stays as it is."""
    job_id = await made(fleet, at=SOON, message="Water the plants.")
    states = [(await asked(fleet, "cancel_job", job_id=job_id)).result["state"] for _ in range(2)]

    assert states == ["cancelled", "cancelled"]
    assert (await asked(fleet, "list_jobs")).result == {"jobs": []}
    assert [job["state"] for job in (await asked(fleet, "list_jobs", ended=True)).result["jobs"]] == ["cancelled"]


async def test_a_model_ends_a_workflow_of_its_user(fleet: ToolFleet) -> None:
    """All of its jobs and no others; another user's of that name stay, and are not counted."""
    jobs = [await made(fleet, delay_seconds=60, message="Look.", workflow_id="release") for _ in range(2)]
    other = await made(fleet, delay_seconds=60, message="Look.")
    await made(fleet, BOB, delay_seconds=60, message="Look.", workflow_id="release")
    listed = await asked(fleet, "list_jobs", workflow_id="release")
    ended = [await asked(fleet, "cancel_workflow", workflow_id="release") for _ in range(2)]

    assert {job["job_id"] for job in listed.result["jobs"]} == set(jobs)
    assert {job["workflow_id"] for job in listed.result["jobs"]} == {"release"}
    assert [each.result for each in ended] == [{"cancelled": 2}, {"cancelled": 0}]
    assert [job["job_id"] for job in (await asked(fleet, "list_jobs")).result["jobs"]] == [other]
    assert len((await asked(fleet, "list_jobs", BOB, workflow_id="release")).result["jobs"]) == 1


@pytest.mark.parametrize(
    ("wish", "code", "text"),
    [
        ({"tool_name": "owls.nothing"}, "unknown_tool", "owls.nothing"),
        ({"tool_name": "hawks.echo"}, "unknown_module", "hawks"),
        ({"tool_name": "scheduler.list_jobs"}, None, "scheduler.list_jobs"),
        ({"tool_name": "owls.echo", "on_complete": {"tool_name": "scheduler.add_job"}}, None, "scheduler.add_job"),
        ({"tool_name": "owls.echo", "until": "a["}, "invalid_arguments", ""),
        ({"cron": "0 0 31 2 *", "message": "never"}, "invalid_arguments", "never comes due"),
        ({"at": "2020-01-01T00:00:00Z", "message": "late"}, "invalid_arguments", "in the past"),
        ({"at": SOON, "delay_seconds": 9, "message": "hi"}, "invalid_arguments", "not both"),
        ({"delay_seconds": 4e9, "message": "late"}, "invalid_arguments", "more than"),
        ({"at": SOON, "max_runs": 2, "message": "hi"}, "invalid_arguments", "rounds of `cron`"),
        ({"at": SOON, "message": "hi", "workflow_id": ""}, "invalid_arguments", "workflow_id"),
        ({"message": "when?"}, "invalid_arguments", "`at` or `cron`"),
    ],
)
async def test_a_job_that_could_not_run_is_refused_with_a_reason(
    fleet: ToolFleet, wish: dict[str, Any], code: str | None, text: str
) -> None:
    """One sentence, of which a model can make a better call; and nothing has happened."""
    result = await asked(fleet, "add_job", **wish)

    assert not result.success
    assert result.effect_state == "none"
    assert text in str(result.error)
    assert code is None or result.error_code == code
    assert (await asked(fleet, "list_jobs", ended=True)).result == {"jobs": []}


async def test_a_job_calls_no_tool_that_its_creator_may_not_call(bed: Bed, owls: ModuleServer) -> None:
    """Whoever may make jobs gets no further rights by that."""
    bed.given.update(scheduler=True, scheduler_permission="user")
    await bed.serve(owls)
    await bed.worker()
    bob = Caller(user_id="bob", permission="user", allowed_modules="*")
    open_fleet = await bed.agent()
    refused = await asked(open_fleet, "add_job", bob, tool_name="owls.admin_only")
    allowed = await asked(open_fleet, "add_job", bob, tool_name="owls.echo")

    assert refused.error_code == "permission_denied"
    assert "owls.admin_only" in str(refused.error)
    assert allowed.success


async def test_only_who_may_use_the_module_makes_jobs(fleet: ToolFleet) -> None:
    """By default that is an admin; others do not see the tools."""
    user = Caller(user_id="eve", permission="user", allowed_modules="*")
    result = await asked(fleet, "add_job", user, tool_name="owls.echo")

    assert result.error_code == "permission_denied"
    assert not [tool for tool in await fleet.tools(user) if tool.name.startswith("scheduler.")]


async def test_a_user_has_so_many_jobs(fleet: ToolFleet) -> None:
    """The fourth of three is `busy`; another user has room."""
    for _ in range(3):
        await made(fleet, at=SOON, message="Water the plants.")
    result = await asked(fleet, "add_job", at=SOON, message="Water the plants.")

    assert (result.error_code, result.effect_state, result.retryable) == ("busy", "none", True)
    await made(fleet, BOB, at=SOON, message="Water the plants.")


async def test_a_model_cannot_say_which_conversation_is_woken(fleet: ToolFleet) -> None:
    """What it writes under those names is left out; the conversation's own stand there."""
    job_id = await made(fleet, at=SOON, message="hi", conversation_id="another", platform="mail")
    known = await fleet.jobs.get(job_id, ADA)

    assert known is not None
    assert known.conversation_id == "talk-1"
