"""An operator goes back to an earlier version of a tool, and an agent follows what happens; on a real Redis and real modules."""

import asyncio
import itertools
import re

import pytest
from redis.asyncio import Redis

from support.modules.operated import Stage
from support.waiting import wait_until
from toolfleet import ToolFleet
from toolfleet.stores import ToolRegistry, ToolSpec
from toolfleet_registry.catalog import registry_events
from toolfleet_registry.catalog.operator import Operator
from toolfleet_registry.catalog.registry_events import EventsAfter, events_after
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.factory import open_store


async def test_a_rollback_holds_until_a_later_version_comes(stage: Stage, operator: Operator) -> None:
    """At once, over refreshes, and whatever else the module offers meanwhile; what it offers is shown, and counts as no drift."""
    for version in ("1.0.0", "2.0.0"):
        await stage.change("push", version=version, description=version)
    registration = await operator.rollback("git.push", "1.0.0")
    assert registration.rolled_back_from == "2.0.0"
    assert (await stage.listed())["push"] == "1.0.0"

    for version in ("2.0.0", "1.5.0", "2.0.0-rc.1", "1.0.0", "2.0.0"):
        await stage.change("push", version=version, description=version)
        assert (await stage.listed())["push"] == "1.0.0"
    (difference,) = await operator.differences()
    assert (difference.kind, difference.fields()["version"]) == ("rolled_back", ("1.0.0", "2.0.0"))
    assert (stage.beat.statuses()["git"].drifted, stage.beat.statuses()["git"].withheld) == (0, 0)

    await stage.change("push", version="2.0.1", description="2.0.1")
    assert (await stage.listed())["push"] == "2.0.1"
    assert await operator.differences() == []
    kinds = [event.kind for event in await operator.events() if event.tool_name == "git.push"]
    assert kinds == ["registered", "changed", "changed", "rolled_back", "changed"]


@pytest.mark.parametrize("way", ["approve", "rollback"])
async def test_an_operator_ends_a_rollback(stage: Stage, operator: Operator, way: str) -> None:
    """By approving what is offered, or by going back to it."""
    for version in ("1.0.0", "2.0.0"):
        await stage.change("push", version=version, description=version)
    await operator.rollback("git.push", "1.0.0")
    if way == "approve":
        await operator.approve("git.push")
    else:
        assert (await operator.rollback("git.push", "2.0.0")).rolled_back_from is None

    await stage.refresh()
    assert (await stage.listed())["push"] == "2.0.0"
    assert await operator.differences() == []


async def test_without_versions_other_content_ends_a_rollback(stage: Stage, operator: Operator) -> None:
    """Each content is a version of its own; which of two is later nobody knows."""
    for text in ("one", "two"):
        await stage.change("push", description=text)
    names = {each.spec.description: each.spec.version or "" for each in await operator.versions("git.push")}
    await operator.rollback("git.push", names["one"])
    await stage.refresh()
    assert (await stage.listed())["push"] == "one"
    (difference,) = await operator.differences()
    assert difference.kind == "rolled_back"

    await stage.change("push", description="three")
    assert (await stage.listed())["push"] == "three"


async def test_a_rollback_in_a_pinned_module_needs_no_other_approval(stage: Stage, operator: Operator) -> None:
    """As long as what the module offers is approved; what nobody has approved withholds the tool, rolled back or not."""
    for version in ("1.0.0", "2.0.0"):
        await stage.change("push", version=version, description=version)
    await operator.pin("git")
    await operator.rollback("git.push", "1.0.0")
    await stage.refresh()
    assert (await stage.listed())["push"] == "1.0.0"

    await stage.change("push", version="1.9.0", description="else")
    assert "is withheld" in str(await stage.refusal("push"))


async def test_a_rollback_outlives_its_manifest(stage: Stage, operator: Operator) -> None:
    """A registry that is restored elsewhere, or a cache that has lost everything, leaves it in force."""
    for version in ("1.0.0", "2.0.0"):
        await stage.change("push", version=version, description=version)
    await operator.rollback("git.push", "1.0.0")
    await stage.redis.delete(Keys().module_manifest("git"))
    await stage.refresh()

    assert (await stage.listed())["push"] == "1.0.0"


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("git.push", "9.0.0", "has no version '9.0.0' that is kept. `toolfleet tools show --versions git.push` shows"),
        ("git.nothing", "1.0.0", "'git.nothing' is not registered"),
    ],
)
async def test_a_rollback_to_nothing_is_refused(operator: Operator, name: str, version: str, reason: str) -> None:
    """In a sentence that names what there is."""
    with pytest.raises(OperationRefused, match=re.escape(reason)):
        await operator.rollback(name, version)


async def test_what_is_not_in_effect_is_an_event(stage: Stage, operator: Operator) -> None:
    """Drifted and withheld are told once, with the digest that an approval may name; an agent that follows hears of all of it."""
    after = (await operator.events())[-1].id
    await stage.change("push", version="1", description="Push it.")
    await stage.change("push", description="Push it to me.")
    await stage.refresh()
    await operator.pin("git")
    stage.git.manifest["tools"].append({"name": "git.steal"})
    await stage.refresh()
    await stage.refresh()
    (drifted, withheld) = await operator.differences()
    async with ToolFleet(settings=stage.settings) as fleet:
        events = fleet.modules.events(after)
        heard = [await anext(events) for _ in range(3)]

    told = [(event.kind, event.tool_name, event.version) for event in heard]
    assert told[:2] == [("changed", "git.push", "1"), ("drifted", "git.push", "1")]
    assert told[2][:2] == ("withheld", "git.steal")
    assert [event.digest for event in heard[1:]] == [drifted.digest, withheld.digest]
    assert len(await operator.events(100)) == 3 + len(heard)
    with pytest.raises(RuntimeError, match="not open"):
        await anext(events)


async def test_followers_share_what_they_ask_over(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No question makes a connection of its own, however many are asked."""
    asked = list[str | None]()

    def counted(registry: ToolRegistry, after: str | None) -> EventsAfter:
        asked.append(after)
        return events_after(registry, after)

    monkeypatch.setattr(registry_events, "_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(registry_events, "events_after", counted)
    async with ToolFleet(settings=Settings(redis_url=redis_url)) as fleet:
        waiting = [asyncio.create_task(anext(fleet.modules.events())) for _ in range(3)]
        await wait_until(lambda: len(asked) > 30, "all follow")
        before = (await redis.info("stats"))["total_connections_received"]
        await wait_until(lambda: len(asked) > 130, "they have asked often")
        after = (await redis.info("stats"))["total_connections_received"]
        for task in waiting:
            task.cancel()

    assert after - before < 10


def test_a_program_without_a_loop_follows_too(redis_url: str) -> None:
    """As an iterator that waits."""
    registry = open_store(settings := Settings(redis_url=redis_url))
    registry.register_many([ToolSpec(tool_name=name, input_schema={}, output_schema={}) for name in "ab"])
    registry.close()
    with ToolFleet.sync(settings=settings) as fleet:
        heard = itertools.islice(fleet.modules.events(""), 2)
        assert [event.tool_name for event in heard] == ["a", "b"]
        with pytest.raises(ValueError, match="not the id"):
            fleet.modules.events("x")
