"""What waits for one client: each change once, however many there are."""

import asyncio

from toolfleet_gateway.mcp.subscriptions import LISTS, ChangeQueue, ViewChange, notification_of, wanted_of

TOOLS = ViewChange("tools")


def egg(name: object) -> ViewChange:
    return ViewChange("resource", f"eggs://{name}")


async def test_a_change_waits_once() -> None:
    """In the order in which they came; what comes again after it was taken is told again."""
    queue = ChangeQueue()
    for change in (TOOLS, egg(1), TOOLS, egg(1), egg(2)):
        queue.put(change)
    assert [await anext(queue) for _ in range(3)] == [TOOLS, egg(1), egg(2)]
    queue.put(egg(1))
    queue.close()
    assert [change async for change in queue] == [egg(1)]


async def test_who_reads_nothing_keeps_little() -> None:
    """Beyond 5,000 resources it is told that whatever may change may have; other changes are not lost."""
    queue = ChangeQueue()
    for number in range(20_000):
        queue.put(egg(number))
    queue.put(ViewChange("task", "one"))
    queue.close()
    found = [change async for change in queue]
    assert (len(found), found[-2:]) == (5_002, [ViewChange("lost"), ViewChange("task", "one")])


async def test_a_closed_queue_wakes_its_reader() -> None:
    """It ends at once."""
    queue = ChangeQueue()
    reading = asyncio.ensure_future(anext(queue, None))
    await asyncio.sleep(0)
    queue.close()
    assert await reading is None


def test_a_client_hears_of_what_it_has_asked_for() -> None:
    """And of all that it watches where changes are lost."""
    uris = ["eggs://nest", "eggs://tree/"]
    assert wanted_of(ViewChange("resource", uris[0]), LISTS, uris) == [ViewChange("resource", uris[0])]
    for other in ("eggs://nestling", "eggs://nest/1", "eggs://"):
        assert wanted_of(ViewChange("resource", other), LISTS, uris) == []
    assert wanted_of(TOOLS, {"prompts"}, uris) == wanted_of(ViewChange("returned"), LISTS, uris) == []
    assert wanted_of(ViewChange("prompts"), {"prompts"}, ()) == [ViewChange("prompts")]
    lost = wanted_of(ViewChange("lost"), {"tools"}, uris)
    assert lost == [TOOLS, *(ViewChange("resource", uri) for uri in uris)]


def test_a_change_is_worded_as_the_protocol_has_it() -> None:
    """A resource by its address, a list by its name; with what each message of a stream carries."""
    said = [notification_of(change, {"a": 1}) for change in (TOOLS, egg(1), ViewChange("prompts"))]
    assert [each.method for each in said] == [
        "notifications/tools/list_changed",
        "notifications/resources/updated",
        "notifications/prompts/list_changed",
    ]
    assert said[1].model_dump(by_alias=True)["params"] == {"uri": "eggs://1", "_meta": {"a": 1}}
