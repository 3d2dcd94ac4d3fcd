"""The stream of what happens to tools and modules, as each key may hear of it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from support.fleet import TestBed
from support.gateways.event_streams import Event, EventReader, streaming
from support.gateways.keyed_gateway import KeyedGateway
from toolfleet_registry.catalog.operator import operating


@asynccontextmanager
async def listening(gateway: KeyedGateway, who: str, last: str | None = None) -> AsyncGenerator[EventReader]:
    """A stream whose first event, the state, was read."""
    async with streaming(gateway, who, "/events", last=last) as stream:
        assert (await stream.next()).kind == "state"
        yield stream


async def switch(bed: TestBed, *names: str) -> None:
    """Disable tools, and enable them again."""
    async with operating(bed.settings) as operator:
        for name in names:
            await operator.disable(name)
            await operator.enable(name)


async def both(stream: EventReader) -> list[Event]:
    """The next two."""
    return [await stream.next(), await stream.next()]


@pytest.mark.usefixtures("worker")
async def test_a_disabled_tool_is_heard_of(gateway: KeyedGateway, bed: TestBed) -> None:
    """Everybody who may use it hears of it, in order, with ids that grow; who may not hears nothing of it."""
    async with listening(gateway, "bob") as bob, listening(gateway, "vera") as vera:
        await switch(bed, "owls.admin_only", "owls.echo")
        of_vera = [*await both(vera), *await both(vera)]
        of_bob = await both(bob)

    assert [event.kind for event in of_vera] == ["tool_disabled", "tool_enabled"] * 2
    assert [event.data["tool_name"] for event in of_vera] == ["owls.admin_only"] * 2 + ["owls.echo"] * 2
    assert of_bob == of_vera[2:]
    ids = [event.id or "" for event in of_vera]
    assert ids == sorted(set(ids))


@pytest.mark.usefixtures("worker")
async def test_a_cut_stream_goes_on_behind_its_last_event(gateway: KeyedGateway, bed: TestBed) -> None:
    """What happened meanwhile comes first, each once, and then what happens."""
    async with listening(gateway, "bob") as stream:
        await switch(bed, "owls.echo")
        first = await stream.next()
    await switch(bed, "owls.nap")
    async with listening(gateway, "bob", first.id) as stream:
        missed = [await stream.next(), *await both(stream)]
        await switch(bed, "owls.fail")
        later = await both(stream)

    assert [event.data["tool_name"] for event in [*missed, *later]] == [
        "owls.echo",
        "owls.nap",
        "owls.nap",
        "owls.fail",
        "owls.fail",
    ]
    assert [event.kind for event in missed] == ["tool_enabled", "tool_disabled", "tool_enabled"]


async def test_the_state_of_modules_comes_first(gateway: KeyedGateway) -> None:
    """It has those that the key reaches."""
    found = dict[str, Event]()
    for who in ("bob", "gus"):
        async with streaming(gateway, who, "/events") as stream:
            found[who] = await stream.next()

    assert found["bob"].data["modules"]["owls"] is True
    assert found["gus"].data == {"modules": {}}
