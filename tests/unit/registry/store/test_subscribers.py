"""Who is called with the events of a registry in memory."""

import threading
from concurrent.futures import ThreadPoolExecutor

from toolfleet.stores import InMemoryToolRegistry, RegistryEvent, ToolSpec


def owl(name: str, version: str = "1") -> ToolSpec:
    return ToolSpec(tool_name=name, version=version, input_schema={}, output_schema={})


def test_a_subscriber_hears_of_every_change() -> None:
    """After it has happened, in order; what happens before and after a subscription it does not hear of."""
    registry, heard, seen = InMemoryToolRegistry(), list[str](), list[bool]()
    registry.register(owl("before"))

    def hear(event: RegistryEvent) -> None:
        heard.append(f"{event.kind} {event.tool_name}")
        seen.append(registry.get(event.tool_name) is not None)

    end = registry.subscribe(hear)
    registry.register_many([owl("a"), owl("b"), owl("a", "2")])
    registry.set_enabled("a", enabled=False)
    registry.rollback("a", "1")
    registry.remove("b")
    end()
    end()
    registry.remove("a")

    assert heard == ["registered a", "registered b", "changed a", "disabled a", "rolled_back a", "removed b"]
    assert seen == [True] * 5 + [False]


def test_what_a_subscriber_raises_harms_nobody() -> None:
    """The change has happened, and the others hear of it."""
    registry, heard = InMemoryToolRegistry(), list[RegistryEvent]()

    def fail(_: RegistryEvent) -> None:
        raise RuntimeError

    registry.subscribe(fail)
    registry.subscribe(heard.append)

    assert registry.register(owl("a")) == registry.get("a")
    assert heard == registry.events()


def test_a_subscriber_may_change_the_registry() -> None:
    """What it causes is told after what it was told of, to all."""
    registry, heard = InMemoryToolRegistry(), list[str]()

    def forbid(event: RegistryEvent) -> None:
        if event.kind == "registered":
            registry.set_enabled(event.tool_name, enabled=False)

    registry.subscribe(forbid)
    registry.subscribe(lambda event: heard.append(event.kind))
    registry.register(owl("a"))

    assert heard == ["registered", "disabled"]


def test_threads_that_change_at_once_are_told_of_in_order() -> None:
    """Never two events at the same time, and each once."""
    registry, heard, inside = InMemoryToolRegistry(), list[RegistryEvent](), threading.Semaphore(1)

    def hear(event: RegistryEvent) -> None:
        assert inside.acquire(blocking=False)
        heard.append(event)
        inside.release()

    registry.subscribe(hear)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: registry.register(owl(f"{number}")), range(200)))

    assert heard == registry.events()
    assert len(heard) == 200
