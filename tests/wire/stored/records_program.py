"""Fills a Redis with records of jobs, approvals, modules, keys, profiles and tools, as processes of today's version write them."""

import asyncio
import json
from contextlib import AsyncExitStack

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from support.workers.job_racers import job_records
from toolfleet_registry.access import KeyMaker
from toolfleet_registry.agents.stored_profiles import StoredProfiles
from toolfleet_registry.api_keys import ApiKeys
from toolfleet_registry.contracts.calls import ApprovedCall
from toolfleet_registry.contracts.jobs import JobSpec
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.requests import ReloadRequests
from toolfleet_registry.functions.passed_methods import ServerChange
from toolfleet_registry.redis.keys import GatewayKeys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.factory import open_store
from toolfleet_registry.watching import ServerChanges
from toolfleet_tasks.approvals.records import ApprovalChange, ApprovalRecords
from toolfleet_tasks.dead_letters.kept_wakes import KeptWakes
from toolfleet_tasks.dead_letters.store import DeadStore
from toolfleet_tasks.jobs.completion import EndNote, JobEvent
from toolfleet_tasks.jobs.records import Found, JobChange, JobRecords
from toolfleet_tasks.jobs.state_machine import JobPosition
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.presence import note_load
from toolfleet_tasks.redis_connection import PipelinedConnection
from wire.keep import MODES
from wire.stored.samples.approval_forms import ASKED, CALL, JOURNAL, VOTE
from wire.stored.samples.directory_forms import DIRECTORY_FORMS, ENTRY, FILLED_ENTRY
from wire.stored.samples.gateway_forms import FILLED_KEY, GATEWAY_FORMS, PROFILE
from wire.stored.samples.job_forms import AT, JOB_FORMS

MAKER = KeyMaker("command line", None, "owner", "*", "admin", acts_for_others=True)
LEFT: JobSpec = JOB_FORMS[0].samples["filled"]
ENDED: JobSpec = JOB_FORMS[0].samples["hooked"].model_copy(update={"job_id": "job-2"})
DROPPED = "job-2.notify"
POSITION: JobPosition = JOB_FORMS[1].samples["filled"]
END: EndNote = JOB_FORMS[2].samples["filled"]
SPEC = GATEWAY_FORMS[3].samples["plain"]
ANSWER = DIRECTORY_FORMS[2].samples["plain"]
CHANGES = (ServerChange("prompts"), ServerChange("resource", "owl://1"))
APPROVED = ApprovedCall(call_id="call-2", binding=ASKED.binding, by=("key k1",), at=AT + 5)


def settings_of(url: str, mode: str) -> Settings:
    """Those of a fleet of that mode."""
    return Settings(redis_url=url, signing_key=MODES[mode].get("signing_key"))


async def write_records(url: str, mode: str) -> None:
    """All of them."""
    settings = settings_of(url, mode)
    async with AsyncExitStack() as stack:
        await _jobs(await stack.enter_async_context(job_records(url, signing_key=settings.signing_key)))
        connection = PipelinedConnection(connection_factory(url), name="approvals")
        connection.start()
        stack.push_async_callback(connection.aclose)
        await _approvals(ApprovalRecords(connection, settings))
        redis = await stack.enter_async_context(AsyncRedis.from_url(url))
        await _modules(redis, settings)
        store = DeadStore(redis, settings.keys)
        assert await KeptWakes(store, settings.keys, seal_of(settings, purpose="job")).drop_waiting(
            DROPPED, "olga (key k1)"
        )
    await asyncio.to_thread(_registry, settings)
    with Redis.from_url(url) as client:
        note_load(client, settings, "host:7", {"owls": 2, "works": 0})


async def _jobs(records: JobRecords) -> None:
    """One that is polled, and one that has ended and told of it."""
    left = await records.create(LEFT, POSITION, limit=9)
    ended = await records.create(ENDED, JobPosition(state="waiting", due_at=AT), limit=9)
    assert isinstance(left, Found)
    assert isinstance(ended, Found)
    assert await records.move(left, JobChange(POSITION, due_at=AT + 1, poll_values={"id": "t-1"}))
    events = [
        JobEvent("continue", "job-2", records.sealed("{}")),
        JobEvent("completion", "job-2", records.sealed("{}"), "c-1"),
        JobEvent("call", "call-2", '{"call":"…"}'),
        JobEvent(
            "notify", DROPPED, records.sealed(json.dumps({"wake_id": DROPPED, "kind": "notify", "job_id": "job-2"}))
        ),
    ]
    assert await records.move(ended, JobChange(JobPosition(state="completed"), end=END, events=events))


async def _approvals(records: ApprovalRecords) -> None:
    """One that was edited and has a vote, and one that has enough, and is settled."""
    for call_id in ("call-1", "call-2"):
        call, asked = CALL.model_copy(update={"call_id": call_id}), ASKED.model_copy(update={"approval_id": call_id})
        assert await records.request(call, asked, intention=None) is None
        await records.keep_asked("ada", f"key of {call_id}", asked)
        found = await records.read(call_id)
        assert found is not None
        vote = VOTE.model_copy(update={"approval_id": call_id})
        is_enough = call_id == APPROVED.call_id
        given = JOURNAL.model_copy(update={"what": "approved", "before": None, "after": None, "delivery": None})
        change = ApprovalChange(
            "approved" if is_enough else "waiting",
            asked,
            call,
            [vote],
            [JOURNAL, given],
            APPROVED if is_enough else None,
        )
        assert await records.decide(found, change) == "taken"
    await records.settle("call-2")


async def _modules(redis: AsyncRedis, settings: Settings) -> None:
    directory, reloads = ModuleDirectory(redis, settings), ReloadRequests(redis, settings.keys)
    assert await directory.replace("owls", "", ENTRY)
    await directory.feed([FILLED_ENTRY.model_copy(update={"module": "nest", "removed_at": None})])
    await reloads.answer(0, await reloads.ask(), "host-1", ANSWER)
    await ServerChanges(redis, GatewayKeys(settings.keys)).tell("owls", CHANGES)


def _registry(settings: Settings) -> None:
    keys, profiles, store = ApiKeys.of(settings), StoredProfiles.of(settings), open_store(settings)
    keys.create(FILLED_KEY, MAKER)
    profiles.put("research", PROFILE, by="command line")
    profiles.put("research", PROFILE.model_copy(update={"middleware": ()}), by="key k1")
    profiles.rollback("research", 1, by="key k1")
    store.register(SPEC)
    store.register(SPEC.model_copy(update={"version": "1.3"}))
    store.rollback(SPEC.tool_name, "1.2")
    store.set_enabled(SPEC.tool_name, False)
    store.pin("owls", {SPEC.tool_name: "a" * 64})
    for each in (keys, profiles, store):
        each.close()
