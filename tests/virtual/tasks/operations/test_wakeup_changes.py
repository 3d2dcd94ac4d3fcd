"""Wake-ups that are dropped all together, by a process that dies meanwhile, or from a Redis that freezes."""

import json
from typing import Any

import pytest
from redis.asyncio import Redis

from bed import clock
from bed.fleet import Bed
from support.workers.wakes import put, scores
from toolfleet import FleetUnavailable
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.dead_letters.kept_wakes import WantedWakes
from toolfleet_tasks.operations.change_trail import Actor
from toolfleet_tasks.operations.changes import HandledWakes, WakeupChanges

NAMES = [f"job-{number}" for number in range(20)]


async def lines(redis: Redis) -> list[dict[str, Any]]:
    entries: Any = await redis.xrange(Keys().audit)
    return [json.loads(fields["line"]) for _, fields in entries]


async def drop(bed: Bed, user_id: str) -> HandledWakes:
    async with WakeupChanges.of(bed.settings, Actor(user_id, "key 1")) as changes:
        return await changes.drop_found(WantedWakes())


@pytest.fixture(autouse=True)
async def _waiting(bed: Bed, redis: Redis) -> None:
    """Twenty wake-ups, each of a job of its own."""
    for name in NAMES:
        await redis.hset(Keys().job(name), "spec", "{}")
        await put(redis, name, job_id=name, since=10)


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("which", [6, 7, 8, 12, 20])
async def test_a_process_that_dies_in_the_middle_leaves_its_line(
    bed: Bed, redis: Redis, which: int, part: float
) -> None:
    """What it has dropped stays dropped, and each job says so once; the line says who had begun, and another step does the rest."""
    operator = bed.site("operator")
    dead = operator.die_at(which, part)
    operator.start(drop(bed, "olga"))
    await dead.wait()
    left = await redis.zcard(Keys().wakes_due)
    rest = await drop(bed, "tom")
    async with WakeupChanges.of(bed.settings, Actor("tom", "key 2")) as changes:
        outcomes = await changes.dead.events.outcomes(NAMES)

    first, second = await lines(redis)
    assert (first["user_id"], first["outcome"], first["is_begun"]) == ("olga", "unknown", True)
    assert (second["user_id"], second["outcome"], second["count"]) == ("tom", "success", left)
    assert left == rest.done
    assert {len(each) for each in outcomes.values()} == {1}
    assert len(outcomes) == len(NAMES)


async def test_a_redis_that_freezes_in_the_middle_ends_the_step(
    bed: Bed, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a bounded time. What was dropped by then stays dropped, the line says how many and that the end is unknown, and the next step goes on."""
    async with WakeupChanges.of(bed.settings, Actor("olga", "key 1")) as changes:
        drop_waiting, dropped = changes._kept.drop_waiting, list[str]()

        async def drop_and_freeze(wake_id: str, by: str) -> Any:
            if len(dropped) == 4:
                bed.redis.freeze()
            dropped.append(wake_id)
            return await drop_waiting(wake_id, by)

        monkeypatch.setattr(changes._kept, "drop_waiting", drop_and_freeze)
        before = clock.monotonic()
        with pytest.raises(FleetUnavailable):
            await changes.drop_found(WantedWakes())
        assert clock.monotonic() - before < 30
        bed.redis.thaw()
    after = await drop(bed, "tom")
    (first, second) = await lines(redis)

    assert await scores(redis, Keys().wakes_due) == {}
    assert (first["outcome"], first["count"]) == ("unknown", 4)
    assert (second["outcome"], second["count"]) == ("success", after.done)
    assert after.done in {15, 16}  # Redis may have taken the last one, whose answer nobody has heard
