"""Records in Redis as each version has left them: today's processes read all of them, and go on with them."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from support.servers import redis_snapshot
from support.workers.job_racers import job_records
from toolfleet_registry.access import KeyDraft
from toolfleet_registry.agents.stored_profiles import StoredProfiles
from toolfleet_registry.api_keys import ApiKeys
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.requests import ReloadRequests
from toolfleet_registry.redis.keys import GatewayKeys, Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.factory import open_store
from toolfleet_registry.watching import ServerChanges
from toolfleet_tasks.approvals.feed import EVENT_KINDS
from toolfleet_tasks.approvals.records import ApprovalChange, ApprovalRecords, StoredApproval
from toolfleet_tasks.dead_letters.kept_wakes import KeptWakes
from toolfleet_tasks.dead_letters.store import DeadStore
from toolfleet_tasks.jobs.records import JobChange
from toolfleet_tasks.jobs.state_machine import JobPosition
from toolfleet_tasks.messages.signing import seal_of
from toolfleet_tasks.operations.call_story import parts_of
from toolfleet_tasks.presence import read_loads
from toolfleet_tasks.redis_connection import PipelinedConnection
from wire.keep import MODES
from wire.stored.keep_records import RECORDS
from wire.stored.records_program import (
    ANSWER,
    CHANGES,
    DROPPED,
    END,
    ENDED,
    LEFT,
    MAKER,
    POSITION,
    SPEC,
    settings_of,
    write_records,
)
from wire.stored.samples.approval_forms import ASKED, CALL, JOURNAL
from wire.stored.samples.directory_forms import ENTRY, FILLED_ENTRY
from wire.stored.samples.gateway_forms import FILLED_KEY, PROFILE
from wire.stored.samples.job_forms import AT

KEPT = [path.stem for path in sorted(RECORDS.glob("*.json"))]


@pytest.fixture(params=KEPT)
def mode(request: pytest.FixtureRequest, redis_url: str) -> str:
    """The mode of the fleet whose records are in Redis now."""
    redis_snapshot.restore(redis_url, (RECORDS / f"{request.param}.json").read_text())
    return str(request.param.rpartition("-")[2])


@pytest.fixture
def settings(mode: str, redis_url: str) -> Settings:
    return settings_of(redis_url, mode)


@pytest.fixture
async def approvals(settings: Settings) -> AsyncIterator[ApprovalRecords]:
    connection = PipelinedConnection(connection_factory(str(settings.redis_url)), name="approvals")
    connection.start()
    yield ApprovalRecords(connection, settings)
    await connection.aclose()


async def test_jobs_are_read_and_moved(mode: str, redis_url: str) -> None:
    """A job under way has its values and its place, and goes on; one that has ended has its end."""
    async with job_records(redis_url, signing_key=MODES[mode].get("signing_key")) as records:
        left, ended = await records.get("job-1"), await records.get("job-2")
        assert left is not None
        assert ended is not None

        known = LEFT.model_copy(update={"asked_by": left.spec.asked_by})  # version 3 had none
        assert (left.spec, left.poll_values) == (known, {"id": "t-1"})
        assert left.place == POSITION.model_copy(update={"by": left.place.by})
        assert (ended.place.state, ended.end, ended.spec.hook) == ("completed", END, ENDED.hook)
        assert await records.move(left, JobChange(JobPosition(state="waiting", due_at=AT), due_at=AT)) is not None


async def test_what_became_of_wakeups_and_calls_is_read(redis_url: str, settings: Settings) -> None:
    """A job that keeps it says who dropped its wake-up, and a call when people had approved it; records of before say nothing."""
    async with AsyncRedis.from_url(redis_url) as redis:
        kept = KeptWakes(DeadStore(redis, settings.keys), settings.keys, seal_of(settings, purpose="job"))
        found = (await kept.outcomes(["job-2"])).get("job-2", ())
        read: Any = redis.hget(settings.keys.call("call-2"), "trail")
        trail: bytes | None = await read
        is_kept = await redis.hexists(settings.keys.job("job-2"), "outcomes")

    assert [(each.wake_id, each.end, each.by) for each in found] == [(DROPPED, "dropped", "olga (key k1)")] * is_kept
    assert [part.kind for part in parts_of(trail.decode() if trail else None)] == ["approved"] * is_kept


async def test_approvals_are_read_and_decided(approvals: ApprovalRecords) -> None:
    """The request, the call, votes and journal are as they were written, and the next vote counts."""
    waiting, over = await _read(approvals, "call-1"), await _read(approvals, "call-2")

    later = {name: getattr(waiting.call, name) for name in ("asked_by", "artifacts")}  # versions 3 and 5 had none
    call = CALL.model_copy(update=later)
    assert (waiting.request, waiting.call, waiting.state, waiting.revision) == (ASKED, call, "waiting", 2)
    assert ([vote.by for vote in waiting.votes], waiting.journal[0]) == (["key k1"], JOURNAL)
    assert (over.state, over.place, [vote.by for vote in over.votes]) == ("approved", "published", ["key k1"])
    assert await approvals.asked("ada", "key of call-1") == "call-1"
    pages = [await approvals.page(settled=each, limit=9, offset=0) for each in (True, False)]
    assert [each.approval_id for page in pages for each in page] == ["call-2", "call-1"]
    change = ApprovalChange("rejected", waiting.request, waiting.call, waiting.votes, waiting.journal)
    assert await approvals.decide(waiting, change) == "taken"


async def test_events_of_approvals_have_kinds_that_are_known(mode: str, redis: AsyncRedis) -> None:
    """Whoever comes again hears of all of them."""
    assert mode in MODES
    entries: Any = await redis.xrange("toolfleet:approvals-events")

    assert {fields["kind"] for _, fields in entries} <= set(EVENT_KINDS)
    assert [fields["id"] for _, fields in entries][:1] == ["call-1"]


async def test_the_directory_of_modules_is_read(settings: Settings, redis: AsyncRedis) -> None:
    """Modules that were added, those of settings, and what hosts said to a request to reload."""
    listing = await ModuleDirectory(redis, settings).read()
    answers = await ReloadRequests(redis, settings.keys).answers(1)

    nest = FILLED_ENTRY.model_copy(update={"module": "nest", "removed_at": None})
    assert (listing.stored, listing.ignored) == ({"owls": ENTRY, "nest": nest}, {})
    assert answers == [ANSWER]


async def test_changes_of_servers_are_read(mode: str, redis: AsyncRedis) -> None:
    """A gateway hears what a host has told; of a kind that came later it hears nothing, and goes on."""
    assert mode in MODES
    keys = GatewayKeys(Keys())
    await redis.xadd(keys.mcp_changes, {"module": "owls", "kind": "colours", "uri": ""})
    await ServerChanges(redis, keys).tell("nest", CHANGES[:1])

    read = await ServerChanges(redis, keys).after("0-0")
    assert (read.changes, read.are_lost) == ((*(("owls", each) for each in CHANGES), ("nest", CHANGES[0])), False)


def test_keys_and_profiles_are_read_and_changed(settings: Settings) -> None:
    """A key has all its bounds, and others can be made beside it; a profile has its versions, and gets another."""
    keys, profiles = ApiKeys.of(settings), StoredProfiles.of(settings)
    (record,) = keys.records()
    assert KeyDraft.model_validate(record.key.model_dump(include=set(KeyDraft.model_fields))) == KeyDraft(
        **FILLED_KEY.model_dump(include=set(KeyDraft.model_fields))
    )
    assert keys.create(FILLED_KEY, MAKER).key.user_id == "ada"

    versions = profiles.versions("research")
    assert sorted((each.version, each.by, each.rolled_back_from) for each in versions) == [
        (1, "command line", None),
        (2, "key k1", None),
        (3, "key k1", 1),
    ]
    found = profiles.read()["research"]
    assert not isinstance(found, str)
    assert found.profile == PROFILE
    assert profiles.remove("research", by="key k2", expected=3).version == 4
    keys.close()
    profiles.close()


def test_the_registry_is_read_and_changed(settings: Settings) -> None:
    """What an operator has decided holds: a version that was rolled back to, a disabled tool, a pin; and events are told in order."""
    store = open_store(settings)
    (tool,) = store.list_all(include_disabled=True)

    assert (tool.spec, tool.enabled, tool.rolled_back_from) == (SPEC, False, "1.3")
    assert store.pins() == {"owls": {SPEC.tool_name: "a" * 64}}
    assert {each.spec.version for each in store.versions(SPEC.tool_name)} == {"1.2", "1.3"}
    assert [event.kind for event in store.events()] == ["registered", "changed", "rolled_back", "disabled"]
    assert store.set_enabled(SPEC.tool_name, True).enabled
    store.close()


def test_notes_of_load_are_read(mode: str, redis_url: str) -> None:
    """A note counts while it is young; words that came later are passed over."""
    assert mode in MODES
    with Redis.from_url(redis_url) as client:
        found = client.hgetall(Keys().worker_loads).items()
    notes = {name: note for name, note in found if isinstance(name, bytes) and isinstance(note, bytes)}
    (note,) = notes.values()
    at = int(note.split()[0])

    assert read_loads(notes, now=at + 5) == {"owls": 2, "works": 0}
    assert read_loads({b"host:7": note + b" owls.slots=red colour=red"}, now=at) == {"owls": 2, "works": 0}


@pytest.mark.parametrize("name", MODES)
async def test_what_is_written_has_a_shape_that_was_kept(name: str, redis_url: str) -> None:
    """Whoever adds a key, a field of a hash or of a stream, or changes a type, adds a fixture: see `keep_records.py`."""
    await write_records(redis_url, name)
    shapes = [_shape(path.read_text()) for path in RECORDS.glob(f"*-{name}.json")]

    assert _shape(redis_snapshot.take(redis_url)) in shapes


async def _read(records: ApprovalRecords, approval_id: str) -> StoredApproval:
    found = await records.read(approval_id)
    assert found is not None
    return found


def _shape(text: str) -> dict[str, Any]:
    """Each key, without what chance has put into it, with its type, whether it lasts, and the names of its fields."""
    return {
        re.sub(r"[0-9a-f]{16,}", "…", key): (found["type"], found["lasts"], _fields(key, found))
        for key, found in json.loads(text).items()
    }


def _fields(key: str, found: dict[str, Any]) -> list[str]:
    if found["type"] == "stream":
        return sorted({name for _, fields in found["value"] for name in fields})
    is_record = key.startswith(("toolfleet:call:", "toolfleet:job:", "toolfleet:approval:", "toolfleet:wake:"))
    return sorted(found["value"]) if is_record and found["type"] == "hash" else []
