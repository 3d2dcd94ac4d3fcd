"""Many large calls of one user wait for people: lists of them stay small, and other users' calls go on."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.fleet import SIGNING_KEY, TestBed, own_bed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.module_server import ModuleServer, serve
from support.owls import echo

WAITS: dict[str, Any] = {"name": "human_in_the_loop", "approve_tools": ["bank.pay"], "expires_seconds": 600}
LIMIT = "client-output-buffer-limit"


@dataclass(frozen=True)
class Crowd:
    """So many calls of so many bytes wait, with this limit on what a subscriber may have to read."""

    calls: int
    size: int
    limit: str


CROWDS = [
    pytest.param(Crowd(24, 100_000, "pubsub 1mb 1mb 1"), id="small"),
    pytest.param(Crowd(320, 1_000_000, "pubsub 32mb 8mb 60"), id="large", marks=pytest.mark.slow),
]


@contextmanager
def bank(folder: Path, **more: object) -> Generator[tuple[TestBed, KeyedGateway]]:
    module = ModuleServer("bank")
    module.add("pay", echo, effect="once")
    module.add("count", echo, effect="read")
    fleet = {"agents": {"strict": {"middleware": [WAITS]}}, "signing_key": SIGNING_KEY, **more}
    with serve(module), own_bed(module, folder, **fleet) as bed, bed.worker(), keyed_gateway(bed) as gateway:
        yield bed, gateway


def payment(size: int) -> dict[str, Any]:
    return {"tool_name": "bank.pay", "arguments": {"text": "x" * size}, "agent": "strict"}


@pytest.mark.parametrize("crowd", CROWDS)
async def test_others_calls_succeed_while_four_clients_list_what_waits(crowd: Crowd, tmp_path: Path) -> None:
    """Each list is answered, without the large arguments, no connection is cut, and no call of another user fails."""
    with bank(tmp_path, stored_bytes_per_caller=2**30) as (bed, gateway):
        async with Redis.from_url(bed.redis_url) as redis, gateway.client("eve") as eve:
            await redis.config_set(LIMIT, crowd.limit)
            async with gateway.client("bob") as bob:
                for _ in range(crowd.calls):
                    asked = await bob.post("/calls", json=payment(crowd.size))
                    assert (asked.status_code, asked.json()["state"]) == (202, "waiting_approval")
            over = asyncio.Event()
            listing = [
                asyncio.create_task(lists(gateway, who, crowd.calls, over)) for who in ("bob", "bob", "ada", "vera")
            ]
            calls = [
                await eve.post("/calls", json={"tool_name": "bank.count"}, headers={"prefer": "wait=20"})
                for _ in range(40)
            ]
            over.set()
            answered = await asyncio.gather(*listing)
            shown = await eve.get("/approvals")

            assert [each.status_code for each in calls] == [200] * 40
            assert all(each.json()["success"] for each in calls)
            assert min(answered) > 0
            assert shown.json() == {"approvals": [], "count": 0}


async def lists(gateway: KeyedGateway, who: str, waiting: int, over: asyncio.Event) -> int:
    """How many lists were answered."""
    count = 0
    async with gateway.client(who) as client:
        while not over.is_set():
            found = await client.get("/approvals", params={"limit": 1000})
            assert found.status_code == 200, found.text
            listed = found.json()["approvals"]
            assert len(listed) == waiting
            assert {(str(each["arguments"]), each["arguments_left_out"]) for each in listed} == {("{}", True)}
            count += 1
    return count


async def test_a_user_whose_share_is_full_is_told_what_to_do(tmp_path: Path) -> None:
    """Nothing of what waits is lost, other users' calls wait as well, and a withdrawn or rejected call makes room again."""
    with bank(tmp_path, stored_bytes_per_caller=500_000) as (_, gateway):
        async with gateway.client("bob") as bob, gateway.client("eve") as eve, gateway.client("ada") as ada:
            first, second, third = [(await bob.post("/calls", json=payment(100_000))).json() for _ in range(3)]
            refused = await bob.post("/calls", json=payment(10))
            plain = await bob.post("/calls", json={"tool_name": "bank.count"})
            other = await eve.post("/calls", json=payment(100_000))

            assert {each["state"] for each in (first, second, third)} == {"waiting_approval"}
            for answer in (refused, plain):
                assert (answer.status_code, answer.json()["error_code"]) == (503, "busy"), answer.text
                assert "have the approvals decided, or cancel such calls" in answer.text
            assert other.status_code == 202
            assert (await ada.get("/approvals")).json()["count"] == 4

            rejected = await ada.post(f"/approvals/{first['call_id']}", json={"decision": "reject"})
            assert rejected.status_code == 200, rejected.text
            assert (await bob.post("/calls", json=payment(10))).status_code == 202
