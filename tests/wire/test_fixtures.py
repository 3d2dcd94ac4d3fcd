"""What earlier versions have left in Redis, as it was kept: today's agents and workers read it, and go on with it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis import Redis

from support.servers import redis_snapshot
from support.there import there
from support.versions.mixed_fleet import mixed_fleet
from support.versions.releases import Version, here, versions
from support.waiting import PATIENCE_SECONDS, wait_until_answered
from toolfleet import Caller, ToolCall, ToolFleet
from toolfleet_registry.contracts import Since
from toolfleet_registry.contracts.calls import DeadLetter
from toolfleet_registry.contracts.jobs import ENDED
from toolfleet_registry.redis.keys import RULES, Keys
from toolfleet_tasks.messages import json_text
from wire.fields_program import messages
from wire.keep import FIXTURES, MODES

ADA = Caller(user_id="ada", permission="owner", allowed_modules="*")
WAITING = ToolCall(tool_name="owls.echo", arguments={"text": "✓"}, idempotency_key="waiting")
REPEATED = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 0}, idempotency_key="k")
NAMED_ANEW = {"Place": "JobPosition", "Verdict": "ToolOverride"}  # no message says what its class is called
_OTHERS = ("-left", "-fields", "-keys", "-accepted")
KEPT = [path.stem for path in sorted(FIXTURES.glob("*.json")) if not path.stem.endswith(_OTHERS)]


@pytest.fixture(params=KEPT)
def kept(request: pytest.FixtureRequest, own_redis: str) -> str:
    """The name of a snapshot, which is in Redis now."""
    name = str(request.param)
    redis_snapshot.restore(own_redis, (FIXTURES / f"{name}.json").read_text())
    return name


@pytest.fixture
async def fleet(kept: str, own_redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ToolFleet]:
    """An agent of today at that Redis, with a worker, beat and the modules."""
    with mixed_fleet(own_redis, tmp_path, **MODES[kept.partition("-")[2]]) as mixed, mixed.running(here()):
        for name, value in mixed.env.items():
            monkeypatch.setenv(name, value)
        # While workers of that version are at work, what they do not sign is believed.
        with Redis.from_url(own_redis) as redis:
            redis.zadd(Keys().slots("slow"), {"5 earlier:1": time.time()})
        async with ToolFleet() as fleet:
            yield fleet


async def test_what_an_earlier_version_has_left_is_read_and_gone_on_with(fleet: ToolFleet, kept: str) -> None:
    """A call that waited is run, a job goes to its end, and results, limits, dead letters, jobs and news are read."""
    left = json.loads((FIXTURES / f"{kept}-left.json").read_text())

    waited, repeated = await fleet.call(WAITING, ADA, timeout=30), await fleet.call(REPEATED, ADA, timeout=30)

    async def has_ended() -> bool:
        found = await fleet.jobs.get(left["job"], ADA)
        return found is not None and found.state in ENDED

    await wait_until_answered(has_ended, "the job ends", seconds=2 * PATIENCE_SECONDS)
    job = there(await fleet.jobs.get(left["job"], ADA))
    async with asyncio.timeout(PATIENCE_SECONDS):
        wake = await anext(aiter(fleet.wakeups.completions("c-2")))
    letters = await fleet.dead_letters.list()

    assert (waited.success, waited.result) == (True, {"text": "✓"})
    assert repeated.success
    assert f"toolfleet:call:{repeated.audit.call_id}" in (FIXTURES / f"{kept}.json").read_text()
    assert (job.state, wake.type, wake.wake_id) == ("completed", "job.completed", left["job"])
    assert len(await fleet.jobs.list(ADA)) == 2
    assert len(letters) == 5
    assert all(isinstance(letter, DeadLetter) for letter in letters)


@pytest.mark.usual
def test_every_version_has_fixtures() -> None:
    """Of each version that is named, in each mode, there is a snapshot."""
    assert sorted(f"{version.number}-{mode}" for version in versions() for mode in MODES) == KEPT


@pytest.mark.usual
@pytest.mark.parametrize("version", versions(), ids=lambda version: f"wire {version.number}")
def test_what_a_later_version_adds_to_a_message_is_marked(version: Version) -> None:
    """A field that a version did not have yet says since which there is one; none has gone that was there."""
    then: dict[str, list[str]] = json.loads((FIXTURES / f"{version.number}-fields.json").read_text())
    classes = {kind.__name__: kind for kind in messages()}

    for name, known in then.items():
        fields = classes[NAMED_ANEW.get(name, name)].model_fields
        assert set(known) <= set(fields), name
        for added in {name for name, field in fields.items() if not field.exclude} - set(known):
            marks = [mark.version for mark in fields[added].metadata if isinstance(mark, Since)]
            assert marks, f"{name}.{added} needs a mark: Annotated[…, Since({json_text.VERSION})]"
            assert version.number < marks[0] <= json_text.VERSION


@pytest.mark.parametrize("version", versions(), ids=lambda version: f"wire {version.number}")
def test_kinds_of_keys_that_came_later_say_so(version: Version) -> None:
    """A kind that a version did not have is marked, and so is one with another shape of names; others are as they were."""
    then = set(json.loads((FIXTURES / f"{version.number}-keys.json").read_text()))

    for rule in RULES:
        assert (rule.since <= version.number) == (rule.pattern.pattern in then), rule
