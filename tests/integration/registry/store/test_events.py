"""What a registry tells those who follow it, and how it is taken elsewhere."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.there import there
from toolfleet.stores import RegistryEvent, ToolFinding, ToolRegistration, ToolRegistry, ToolRegistrySnapshot, ToolSpec
from toolfleet_registry.specs import digest_of
from toolfleet_registry.store import redis, sql
from toolfleet_registry.store.registry import EVENTS_KEPT


def owl(name: str, version: str | None = None) -> ToolSpec:
    return ToolSpec(tool_name=name, version=version, input_schema={}, output_schema={})


def told(events: list[RegistryEvent]) -> list[tuple[str, str, str | None]]:
    return [(event.kind, event.tool_name, event.version) for event in events]


def test_every_change_of_a_tool_is_told(registry: ToolRegistry) -> None:
    """In order, with the specification's version and digest after it, and when it was."""
    before = datetime.now(UTC) - timedelta(seconds=2)
    registry.register(owl("a"))
    registry.register(owl("a", "1"))
    registry.set_enabled("a", enabled=False)
    registry.set_enabled("a", enabled=True)
    registry.remove("a")
    events = registry.events()

    assert told(events) == [
        ("registered", "a", None),
        ("changed", "a", "1"),
        ("disabled", "a", "1"),
        ("enabled", "a", "1"),
        ("removed", "a", None),
    ]
    assert [event.digest for event in events] == [digest_of(owl("a"))] * 4 + [None]
    assert all(before < event.at < datetime.now(UTC) + timedelta(seconds=2) for event in events)
    assert events == sorted(events, key=lambda event: event.id)


def test_a_follower_reads_on(registry: ToolRegistry) -> None:
    """From the last event that it knows; the number at the end of an id counts them."""
    registry.register_many([owl(f"{number:02}") for number in range(10)])
    seen, after = list[RegistryEvent](), ""
    while some := registry.events(after, limit=3):
        assert len(some) <= 3
        seen += some
        after = some[-1].id
    registry.remove("05")

    assert told(seen) == [("registered", f"{number:02}", None) for number in range(10)]
    assert [int(event.id.rpartition("-")[2]) for event in seen] == [*range(1, 11)]
    assert told(registry.events(after)) == [("removed", "05", None)]


def test_what_a_release_cannot_read_is_passed_over(
    registry: ToolRegistry, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of it comes in a row: what follows is there. The log has each of them once."""
    if kind == "memory":
        pytest.skip("in memory there is nothing of other releases")
    for store in (redis, sql):
        monkeypatch.setattr(store, "_EVENTS_AT_ONCE", 3)
    registry.register(owl("a"))
    after = registry.last_event()
    later: Any = {"kind": "translated", "tool_name": "a", "version": None, "digest": None}
    registry.note([ToolFinding.model_construct(**later)] * 7)
    with capture_logs() as logs:
        assert registry.events(after, limit=2) == registry.events(after) == []
        registry.register(owl("b"))
        assert told(registry.events(after, limit=2)) == [("registered", "b", None)]

    assert [log["event"] for log in logs] == ["registry_event_unreadable"] * 7
    assert registry.last_event() == registry.events(after)[-1].id


def test_findings_are_told_and_change_nothing(registry: ToolRegistry) -> None:
    """Each as it was found, among the changes; the revision stays what it was."""
    registry.register(owl("a", "1"))
    before = registry.revision(), registry.snapshot()
    registry.note(
        [
            ToolFinding(kind="drifted", tool_name="a", version="1", digest="d"),
            ToolFinding(kind="withheld", tool_name="b"),
        ]
    )
    registry.note([])
    assert (registry.revision(), registry.snapshot()) == before
    registry.remove("a")
    events = registry.events()

    assert told(events) == [
        ("registered", "a", "1"),
        ("drifted", "a", "1"),
        ("withheld", "b", None),
        ("removed", "a", None),
    ]
    assert [event.digest for event in events[1:3]] == ["d", None]
    assert [int(event.id.rpartition("-")[2]) for event in events] == [1, 2, 3, 4]


def test_the_last_event_is_known(registry: ToolRegistry) -> None:
    """Also where none has happened, or something that is no event."""
    assert registry.last_event() == ""
    registry.pin("m", {})
    assert registry.last_event() == ""
    registry.register_many([owl("a"), owl("b")])

    assert registry.last_event() == registry.events()[-1].id


@pytest.mark.parametrize("after", ["x", "1", "1-", "-1", "1-2-3", "1-²", "9" * 99 + "-1", "1-1\n"])
def test_what_is_no_id_is_refused(registry: ToolRegistry, after: str) -> None:
    """So is a limit that lets nothing through."""
    with pytest.raises(ValueError, match="not the id of an event"):
        registry.events(after)
    with pytest.raises(ValueError, match="limit must be above zero"):
        registry.events(limit=0)


def test_an_id_of_a_later_registry_is_after_everything(registry: ToolRegistry) -> None:
    """And one of an earlier registry, whose data was lost, before everything."""
    registry.register(owl("a"))

    assert registry.events("9999999999999-0000000001") == []
    assert len(registry.events("0000000000000-0000000000")) == 1


@pytest.mark.fleet
def test_the_last_10000_events_are_kept(registry: ToolRegistry) -> None:
    """The oldest go first."""
    registry.register_many([owl(f"{number:05}") for number in range(EVENTS_KEPT)])
    registry.register(owl("last"))
    events = registry.events(limit=2 * EVENTS_KEPT)

    assert len(events) == EVENTS_KEPT
    assert (events[0].tool_name, events[-1].tool_name) == ("00001", "last")


def test_a_registry_moves_by_snapshot(registry: ToolRegistry) -> None:
    """With pins, disabled tools and times, through JSON; a restored registry is equal."""
    registry.register_many([owl("b", "1"), owl("a"), owl("c")])
    registry.set_enabled("b", enabled=False)
    registry.pin("m", {"m.x": "d"})
    registry.pin("empty", {})
    snapshot = registry.snapshot()
    moved = ToolRegistrySnapshot.model_validate_json(snapshot.model_dump_json())
    registry.restore(ToolRegistrySnapshot())
    assert registry.snapshot() == ToolRegistrySnapshot()

    registry.restore(moved)

    assert registry.snapshot() == snapshot
    assert [each.spec.tool_name for each in snapshot.tools] == ["a", "b", "c"]
    assert registry.list_all(include_disabled=True) == snapshot.tools


def test_a_restored_registry_tells_what_differs(registry: ToolRegistry) -> None:
    """By name; what is as it was is not told."""
    registry.register_many([owl("changed", "1"), owl("gone"), owl("off"), owl("on"), owl("same")])
    registry.set_enabled("on", enabled=False)
    after = registry.events()[-1].id
    same = there(registry.get("same"))
    registry.restore(
        ToolRegistrySnapshot(
            tools=[
                ToolRegistration(spec=owl("on")),
                ToolRegistration(spec=owl("off"), enabled=False),
                ToolRegistration(spec=owl("new and off"), enabled=False),
                same,
                ToolRegistration(spec=owl("changed", "2")),
            ]
        )
    )

    assert told(registry.events(after)) == [
        ("changed", "changed", "2"),
        ("removed", "gone", None),
        ("registered", "new and off", None),
        ("disabled", "new and off", None),
        ("disabled", "off", None),
        ("enabled", "on", None),
    ]
    assert [each.created_at for each in registry.list_all()] == [None, None, same.created_at]


@pytest.mark.parametrize(
    "at", [None, "", "yesterday", "2025-12-27T14:00:00Z", "2025-12-27T14:00:00.5Z", "9999-99-99T99:99:99Z", "5"]
)
def test_whatever_a_snapshot_says_of_its_times_is_kept(registry: ToolRegistry, at: str | None) -> None:
    """Another program may have made it."""
    registry.restore(ToolRegistrySnapshot(tools=[ToolRegistration(spec=owl("a"), created_at=at)]))

    assert registry.register(owl("a")).created_at == at
    assert registry.register_many([owl("a"), owl("b")])[0] == registry.get("a")
    assert registry.set_enabled("a", enabled=False).created_at == at


def test_a_snapshot_with_a_tool_twice_is_refused(registry: ToolRegistry) -> None:
    """Nothing of it is taken in."""
    registry.register(owl("a"))
    with pytest.raises(ValueError, match="tool 'b' twice"):
        registry.restore(ToolRegistrySnapshot(tools=[ToolRegistration(spec=owl("b", at)) for at in ("1", "2")]))
    nan = ToolSpec(tool_name="n", input_schema={"x": float("nan")}, output_schema={})
    with pytest.raises(ValueError, match="'n' has a number"):
        registry.restore(ToolRegistrySnapshot(tools=[ToolRegistration(spec=nan)]))

    assert [each.spec.tool_name for each in registry.list_all()] == ["a"]
