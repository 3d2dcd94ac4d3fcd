"""Several owners of one registry that change it at the same time, each with connections of its own."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from support.there import there
from toolfleet.stores import ToolRegistry, ToolSpec
from toolfleet_registry.specs import digest_of

RACERS = 5
ROUNDS = 8

Race = Callable[[Callable[[ToolRegistry, int], str]], list[str]]

shared = pytest.mark.parametrize("kind", ["redis", "sqlite", "postgresql"], indirect=True)


def spec(name: str, version: str, by: object = "") -> ToolSpec:
    return ToolSpec(tool_name=name, version=version, input_schema={"by": str(by)}, output_schema={})


@pytest.fixture
def race(registries: Callable[[], ToolRegistry]) -> Race:
    """Has all racers do something at once; returns what they say, in their order."""
    racers, start = [registries() for _ in range(RACERS)], Barrier(RACERS)

    def all_at_once(do: Callable[[ToolRegistry, int], str]) -> list[str]:
        def begin(number: int) -> str:
            start.wait()
            return do(racers[number], number)

        with ThreadPoolExecutor(RACERS) as threads:
            return [*threads.map(begin, range(RACERS))]

    return all_at_once


@shared
def test_of_those_that_register_one_version_one_wins(race: Race, registries: Callable[[], ToolRegistry]) -> None:
    """The others get `ValueError`, and nothing that they did beside is lost; the first ones find no tables."""

    def register(registry: ToolRegistry, number: int) -> str:
        try:
            registry.register(spec(name, "1.0.0", number))
        except ValueError:
            return "lost"
        finally:
            registry.pin(str(number), {})
            registry.approve(str(number), name, "digest")
        return "won"

    registry = registries()
    names = [f"tool {number:02}" for number in range(ROUNDS)]
    for name in names:
        said = race(register)
        assert sorted(said) == ["lost"] * (RACERS - 1) + ["won"]
        registration = there(registry.get(name))
        assert registration.spec.input_schema == {"by": str(said.index("won"))}

    assert registry.pins() == {str(number): {names[-1]: "digest"} for number in range(RACERS)}
    events = registry.events()
    assert [event.tool_name for event in events] == names
    assert [int(event.id.rpartition("-")[2]) for event in events] == [*range(1, ROUNDS + 1)]


@shared
def test_those_that_roll_back_lose_no_version(race: Race, registries: Callable[[], ToolRegistry]) -> None:
    """Whoever was last is in force; every version is kept once, and the events tell how it came about."""

    def roll_back(registry: ToolRegistry, number: int) -> str:
        registry.register(spec(name, f"{number}.0.1"))
        registry.rollback(name, "0.0.0")
        return "back"

    registry = registries()
    for name in [f"tool {number:02}" for number in range(ROUNDS)]:
        registry.register(spec(name, "0.0.0"))
        assert race(roll_back) == ["back"] * RACERS

        present = there(registry.get(name))
        versions = ["0.0.0", *(f"{number}.0.1" for number in range(RACERS))]
        assert [each.spec.version for each in registry.versions(name)] == versions
        events = [event for event in registry.events() if event.tool_name == name]
        assert (events[-1].version, events[-1].kind) == (present.spec.version, "rolled_back")
        for before, event in itertools.pairwise(events):
            assert event.version != before.version
            assert (event.kind == "rolled_back") == (event.version == "0.0.0")
        assert present.rolled_back_from == events[-2].version


def test_threads_share_a_registry(registry: ToolRegistry) -> None:
    """Of those who replace the same specification, one does; nobody's approval is lost."""
    first = spec("x", "0")
    registry.register(first)
    registry.pin("m", {})

    def change(number: int) -> bool:
        registry.approve("m", f"m.{number}", "digest")
        try:
            registry.replace(spec("x", str(number), number), expected=digest_of(first))
        except ValueError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(change, range(1, 17))].count(True) == 1
    assert registry.pins()["m"] == {f"m.{number}": "digest" for number in range(1, 17)}
    assert [event.kind for event in registry.events()] == ["registered", "changed"]
