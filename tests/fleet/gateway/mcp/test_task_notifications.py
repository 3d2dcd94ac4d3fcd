"""Tasks that a client listens to: each change is told on its stream, and nothing of anybody else's."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.gateways.mcp_requests import TASKS, asked, stream_of
from support.module_server import ModuleServer, holding
from support.worker_process import WorkerProcess
from toolfleet_registry.access.api_key import KeyDraft
from toolfleet_registry.access.api_keys import ApiKeys, CreatedKey
from toolfleet_registry.access.grants import COMMAND_LINE

Json = dict[str, Any]
SECONDS = 20
UNKNOWN = "00000000-0000-4000-8000-000000000000"
NUMBER = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture(scope="module")
def brisk(bed: TestBed, worker: WorkerProcess) -> Iterator[Gateway]:
    """A gateway that makes tasks of calls soon."""
    with gateway_process(bed, env={"TOOLFLEET_MCP_TASK_SECONDS": "0.1"}) as gateway:
        yield gateway


@pytest.fixture
async def client(owls: ModuleServer, brisk: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    owls.forget()
    async with brisk.client() as client:
        yield client


async def begun(client: httpx.AsyncClient, seconds: float) -> str:
    """A task's id."""
    nap = {"name": "owls.nap", "arguments": {"seconds": seconds}}
    created = (await asked(client, "tools/call", nap, TASKS))["result"]
    assert created["resultType"] == "task"
    return str(created["taskId"])


def listening(*task_ids: str) -> Json:
    return {"notifications": {"taskIds": list(task_ids)}}


async def said(messages: AsyncGenerator[Json], task_id: str) -> list[Json]:
    """What is said of a task, up to its end."""
    found = list[Json]()
    async with asyncio.timeout(SECONDS):
        async for message in messages:
            if message.get("method") == "notifications/tasks" and message["params"]["taskId"] == task_id:
                found.append(message["params"])
                if message["params"]["status"] != "working":
                    return found
    raise AssertionError("the stream has ended")


async def test_a_task_is_told_until_its_end(client: httpx.AsyncClient, there: httpx.AsyncClient) -> None:
    """At any gateway: at first where it is, and then each change. An id that nobody has is not acknowledged."""
    task_id = await begun(client, 60)
    async with stream_of(there, "subscriptions/listen", listening(task_id, UNKNOWN, task_id)) as messages:
        ack, first = await anext(messages), await anext(messages)
        await asked(client, "tasks/cancel", {"taskId": task_id}, TASKS)
        told = [first["params"], *await said(messages, task_id)]

    assert ack["method"] == "notifications/subscriptions/acknowledged"
    assert ack["params"]["notifications"] == {"taskIds": [task_id]}
    assert [each["status"] for each in told] == ["working", "cancelled"]
    assert {each["_meta"][NUMBER] for each in told} == {ack["params"]["_meta"][NUMBER]}


async def test_the_end_of_a_task_is_told_with_its_result(client: httpx.AsyncClient, owls: ModuleServer) -> None:
    """As `tasks/get` has it, also to who listens too late."""
    with holding(owls, "nap"):
        task_id = await begun(client, 0)
    for _ in range(2):
        async with stream_of(client, "subscriptions/listen", listening(task_id)) as messages:
            told = (await said(messages, task_id))[-1]
        end = (await asked(client, "tasks/get", {"taskId": task_id}, TASKS))["result"]
        assert (told["status"], told["result"]) == ("completed", end["result"])


async def test_somebody_elses_task_looks_like_none(bed: TestBed, brisk: Gateway, owls: ModuleServer) -> None:
    """It is left out of what is acknowledged, as one that nobody has."""
    keys = ApiKeys.of(bed.settings)
    made = list[CreatedKey]()
    try:
        made += [
            keys.create(
                KeyDraft.model_validate({"user_id": name, "permission": "user", "allowed_modules": "*"}), COMMAND_LINE
            )
            for name in ("ada", "bob")
        ]
        async with brisk.client(made[0].text) as ada, brisk.client(made[1].text) as bob:
            task_id = await begun(ada, 60)
            async with stream_of(bob, "subscriptions/listen", listening(task_id, UNKNOWN)) as messages:
                ack = await anext(messages)
            await asked(ada, "tasks/cancel", {"taskId": task_id}, TASKS)
    finally:
        keys.revoke([each.key.id for each in made])
        keys.close()

    assert ack["params"]["notifications"] == {"taskIds": []}


REFUSED: list[tuple[str, object, Json, int]] = [
    ("not declared", [UNKNOWN], {}, -32021),
    ("no list", UNKNOWN, TASKS, -32602),
    ("no texts", [7], TASKS, -32602),
    ("an id that is too long", ["x" * 257], TASKS, -32602),
    ("too many", [UNKNOWN] * 101, TASKS, -32602),
]


@pytest.mark.parametrize(
    ("task_ids", "capabilities", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
async def test_what_is_no_list_of_tasks_is_refused(
    client: httpx.AsyncClient, task_ids: object, capabilities: Json, code: int
) -> None:
    """By the protocol's codes, before a stream begins."""
    params = {"notifications": {"taskIds": task_ids}}
    assert (await asked(client, "subscriptions/listen", params, capabilities))["error"]["code"] == code
