"""Tasks that a client listens to: each change is told on its stream, and nothing of anybody else's."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx

from bed.fleet import Bed, Gateway
from support.gateways.keyed_gateway import keyed
from support.gateways.mcp_requests import TASKS, asked, stream_of

Json = dict[str, Any]
UNKNOWN = "00000000-0000-4000-8000-000000000000"
NUMBER = "io.modelcontextprotocol/subscriptionId"


async def begun(client: httpx.AsyncClient) -> str:
    """The id of a task that lasts for a while."""
    nap = {"name": "owls.nap", "arguments": {"seconds": 20}}
    created = (await asked(client, "tools/call", nap, TASKS))["result"]
    assert created["resultType"] == "task"
    return str(created["taskId"])


def listening(*task_ids: str) -> Json:
    return {"notifications": {"taskIds": list(task_ids)}}


async def said(messages: AsyncGenerator[Json], task_id: str) -> list[Json]:
    """What is said of a task, up to its end."""
    found = list[Json]()
    async for message in messages:
        if message.get("method") == "notifications/tasks" and message["params"]["taskId"] == task_id:
            found.append(message["params"])
            if message["params"]["status"] != "working":
                return found
    raise AssertionError("the stream has ended")


async def test_a_task_is_told_until_its_end(here: httpx.AsyncClient, there: httpx.AsyncClient) -> None:
    """At any gateway: at first where it is, and then each change. An id that nobody has is not acknowledged."""
    task_id = await begun(here)
    async with stream_of(there, "subscriptions/listen", listening(task_id, UNKNOWN, task_id)) as messages:
        ack, first = await anext(messages), await anext(messages)
        await asked(here, "tasks/cancel", {"taskId": task_id}, TASKS)
        told = [first["params"], *await said(messages, task_id)]

    assert ack["method"] == "notifications/subscriptions/acknowledged"
    assert ack["params"]["notifications"] == {"taskIds": [task_id]}
    assert [each["status"] for each in told] == ["working", "cancelled"]
    assert {each["_meta"][NUMBER] for each in told} == {ack["params"]["_meta"][NUMBER]}


async def test_the_end_of_a_task_is_told_with_its_result(here: httpx.AsyncClient) -> None:
    """As `tasks/get` has it, also to who listens too late."""
    task_id = await begun(here)
    for _ in range(2):
        async with stream_of(here, "subscriptions/listen", listening(task_id)) as messages:
            told = (await said(messages, task_id))[-1]
        end = (await asked(here, "tasks/get", {"taskId": task_id}, TASKS))["result"]
        assert (told["status"], told["result"]) == ("completed", end["result"])


async def test_somebody_elses_task_looks_like_none(bed: Bed, gateways: tuple[Gateway, Gateway]) -> None:
    """It is left out of what is acknowledged, as one that nobody has."""
    with keyed(gateways[0], bed.settings) as gateway:
        async with gateway.client("eve") as eve, gateway.client("bob") as bob:
            task_id = await begun(eve)
            async with stream_of(bob, "subscriptions/listen", listening(task_id, UNKNOWN)) as messages:
                ack = await anext(messages)

    assert ack["params"]["notifications"] == {"taskIds": []}


REFUSED: list[tuple[str, object, Json, int]] = [
    ("not declared", [UNKNOWN], {}, -32021),
    ("no list", UNKNOWN, TASKS, -32602),
    ("no texts", [7], TASKS, -32602),
    ("an id that is too long", ["x" * 257], TASKS, -32602),
    ("too many", [UNKNOWN] * 101, TASKS, -32602),
]


async def test_what_is_no_list_of_tasks_is_refused(here: httpx.AsyncClient) -> None:
    """By the protocol's codes, before a stream begins."""
    for what, task_ids, capabilities, code in REFUSED:
        params = {"notifications": {"taskIds": task_ids}}
        assert (await asked(here, "subscriptions/listen", params, capabilities))["error"]["code"] == code, what
