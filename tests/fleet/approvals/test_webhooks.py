"""Approvals by signed webhooks: outside systems hear of them, and decide with the name and rights that the settings give them."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from support.fleet import SIGNING_KEY, TestBed, program
from support.gateways.gateway_process import gateway_process
from support.gateways.hook_requests import signed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.gateways.notice_receiver import NoticeReceiver, hearing
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.streams.tcp_proxy import tcp_proxy
from support.waiting import PATIENCE_SECONDS, wait_until, wait_until_sync
from toolfleet_cli.local.environment import beat_command

SECRETS = {name: "whsec_" + b64encode(name.encode() * 32).decode() for name in "NBESG"}
"""Of whom is told; of the boss' system; of eve's, who asks; of one whose user may decide nothing; of nobody."""
AGENTS = {
    "strict": {
        "middleware": [
            {
                "name": "human_in_the_loop",
                "approve_tools": ["bank.pay"],
                "expires_seconds": 600,
                "approvers": {"permission": "owner", "users": ["boss", "eve"]},
            }
        ]
    }
}


@dataclass(frozen=True)
class Bank:
    """A fleet with a worker, beat and a gateway, and a system that is told of approvals."""

    bed: TestBed
    gateway: KeyedGateway
    redis: FaultyRedis
    module: ModuleServer
    receiver: NoticeReceiver

    async def ask(self) -> str:
        """The id of a call of eve's that waits for people."""
        arguments = {"n": 1, "pin": "s3cret-pin"}
        body = {"tool_name": "bank.pay", "arguments": arguments, "agent": "strict"}
        answer = await self.gateway.post("eve", "/calls", body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["call_id"])

    async def state(self, approval_id: str) -> str:
        found: dict[str, Any] = (await self.gateway.get("ada", f"/approvals/{approval_id}")).json()
        return str(found["state"])

    def runs(self, call_id: str) -> int:
        """How often the module got the call."""
        return self.module.call_ids("pay").count(call_id)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    module = ModuleServer("bank")
    numbers = [{"name": "n", "type": "integer"}, {"name": "pin", "type": "string", "sensitive": True}]
    module.add("pay", echo, effect="once", parameters=numbers)
    kept = tmp_path_factory.mktemp("secrets")
    for name, value in SECRETS.items():
        (kept / name).write_text(value + "\n")
    with serve(module), faulty_redis(tmp_path_factory.mktemp("redis")) as redis, hearing(SECRETS["N"]) as receiver:
        more: dict[str, object] = {
            "agents": AGENTS,
            "signing_key": SIGNING_KEY,
            "secrets": {name: {"file": str(kept / name)} for name in SECRETS},
            "approvals": {
                "webhooks": [{"url": receiver.url, "secret": "N"}],
                "approvers": {
                    "erp": {"secret": "B", "user_id": "boss"},
                    "eves": {"secret": "E", "user_id": "eve", "permission": "owner"},
                    "clerk": {"secret": "S", "user_id": "clerk"},
                },
            },
        }
        bed = TestBed(redis.url, (module,), tmp_path_factory.mktemp("logs"), more)
        beat = program(bed, beat_command(), "beat", ready="beat: Starting")
        with bed.worker(), beat, keyed_gateway(bed) as gateway:
            # Whoever is told hears of what happens from the first tick on.
            positions = bed.settings.keys.webhook_positions
            wait_until_sync(lambda: redis.look.hlen(positions), "a worker has found the stream's end")
            yield Bank(bed, gateway, redis, module, receiver)


async def sent(
    gateway: KeyedGateway, approval_id: str, decision: str = "approve", *, signer: str = "B", **more: Any
) -> httpx.Response:
    """What an outside system, which has no key, is answered. `told`: fields of the body; `path`: another approval's."""
    told, path = more.pop("told", {}), more.pop("path", approval_id)
    data = json.dumps({"approval_id": approval_id, "decision": decision, **told}).encode()
    headers = signed(data, SECRETS[signer], **more)
    async with gateway.client("nobody") as client:
        return await client.post(f"/hooks/approvals/{path}", content=data, headers=headers)


async def test_who_is_told_hears_of_each_step(bank: Bank) -> None:
    """Signed, under one id however often it is sent; never with a sensitive argument."""
    bank.receiver.refusing = 1
    call_id = await bank.ask()
    await wait_until(lambda: bank.receiver.of(call_id) == ["approval.asked"], "it has heard of the question")
    await bank.gateway.post("ada", f"/approvals/{call_id}", {"decision": "reject", "reason": "No."})
    await wait_until(lambda: len(bank.receiver.of(call_id)) == 2, "it has heard of the decision")

    (asked, first), (_, second) = bank.receiver.about(call_id)
    assert bank.receiver.refused == [asked]
    assert (first["data"]["arguments"], first["data"]["state"]) == ({"n": 1, "pin": "[redacted]"}, "waiting")
    assert (second["type"], second["data"]["journal"][-1]["reason"]) == ("approval.rejected", "No.")
    assert "s3cret" not in json.dumps(bank.receiver.notices)
    assert bank.receiver.unsigned == 0


async def test_a_signed_request_decides_once(bank: Bank) -> None:
    """Repeats get its answer, also at once and after the call's end; the call runs once, with the system's name in its journal."""
    call_id = await bank.ask()
    answers = await asyncio.gather(*(sent(bank.gateway, call_id, told={"arguments": {"n": 2}}) for _ in range(5)))
    await wait_until(lambda: bank.runs(call_id) == 1, "the call runs")
    await wait_until(lambda: bank.receiver.of(call_id)[-1:] == ["approval.approved"], "it has heard of it")
    answers.append(await sent(bank.gateway, call_id))

    assert {(each.status_code, each.text) for each in answers} == {(200, answers[0].text)}
    assert answers[0].json() == {"approval_id": call_id, "taken": "approved"}
    shown = (await bank.gateway.get("ada", f"/approvals/{call_id}")).json()
    assert [(line["what"], line["by"]) for line in shown["journal"]] == [
        ("edited", "user boss"),
        ("approved", "user boss"),
    ]
    assert bank.runs(call_id) == 1


async def test_a_rejection_ends_the_call(bank: Bank) -> None:
    """With the system's words; another request of the same system comes too late."""
    call_id = await bank.ask()
    rejected = await sent(bank.gateway, call_id, "reject", told={"reason": "Too much."})
    late = await sent(bank.gateway, call_id, delivery="msg_2")

    assert rejected.json() == {"approval_id": call_id, "taken": "rejected"}
    assert (late.status_code, late.json()["error_code"]) == (409, "approval_not_taken")
    ended = (await bank.gateway.get("eve", f"/calls/{call_id}")).json()
    assert "Too much." in json.dumps(ended)
    assert bank.runs(call_id) == 0


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"signer": "G"}, 404),
        ({"signer": "N"}, 404),
        ({"signer": "S"}, 404),
        ({"signer": "E"}, 403),
        ({"at": datetime.now(UTC) - timedelta(minutes=6)}, 400),
        ({"told": {"seen": "sha256:of-what-was-before"}}, 409),
        ({"told": {"arguments": {"n": "many"}}}, 422),
        ({"told": {"surprise": 1}}, 400),
        ({"told": {"reason": "x" * 65_536}}, 413),
    ],
    ids=["forged", "of-who-is-told", "without-right", "who-asks", "old", "edited", "invalid", "unknown", "large"],
)
async def test_what_may_not_decide_counts_for_nothing(bank: Bank, more: dict[str, Any], status: int) -> None:
    """The call waits on: a secret that is no approver's, a user without the right, whoever asks, an old or wrong request."""
    call_id = await bank.ask()
    answer = await sent(bank.gateway, call_id, **more)

    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert await bank.state(call_id) == "waiting"
    assert bank.runs(call_id) == 0


async def test_a_request_is_for_one_approval(bank: Bank) -> None:
    """Sent on to another call's path it is refused; an approval that there is not looks like one that is not theirs."""
    one, other = await bank.ask(), await bank.ask()
    moved = await sent(bank.gateway, one, path=other)
    absent, foreign = await sent(bank.gateway, "0" * 32), await sent(bank.gateway, one, signer="S")

    assert (moved.status_code, await bank.state(one), await bank.state(other)) == (400, "waiting", "waiting")
    assert [absent.status_code, foreign.status_code] == [404, 404]
    assert absent.json()["detail"] == foreign.json()["detail"]


async def test_of_two_channels_at_once_one_decides(bank: Bank) -> None:
    """The other one gets a clear answer, and the call becomes what the first has said."""
    for _ in range(3):
        call_id = await bank.ask()
        hook, rest = await asyncio.gather(
            sent(bank.gateway, call_id, "reject"),
            bank.gateway.post("ada", f"/approvals/{call_id}", {"decision": "approve"}),
        )
        assert sorted((hook.status_code, rest.status_code)) == [200, 409]
        state = await bank.state(call_id)
        assert state == ("rejected" if hook.status_code == 200 else "approved")
        if state == "approved":
            await wait_until(lambda call_id=call_id: bank.runs(call_id) == 1, "the call runs")  # type: ignore[misc] # of this round
        else:
            assert bank.runs(call_id) == 0


async def test_a_killed_gateway_loses_no_decision(bank: Bank) -> None:
    """Its sender repeats the request at another one, whether or not the first was noted: one decision, one run."""
    call_id = await bank.ask()
    port = urlsplit(bank.redis.url).port or 0
    with tcp_proxy(port) as proxy:
        behind = replace(bank.bed, redis_url=bank.bed.redis_url.replace(f":{port}", f":{proxy.port}"))
        with gateway_process(behind) as process:
            mortal = KeyedGateway(process, bank.gateway.keys)
            await mortal.get("ada", f"/approvals/{call_id}")  # its connections have come about
            proxy.hold()
            sending = asyncio.create_task(sent(mortal, call_id))
            await wait_until(lambda: proxy.holds(call_id.encode()), "it has told Redis of the request")
            process.process.process.kill()
        proxy.release()
        with pytest.raises(httpx.HTTPError):
            await sending
    answer = await sent(bank.gateway, call_id)

    assert (answer.status_code, answer.json()["taken"]) == (200, "approved")
    await wait_until(lambda: bank.runs(call_id) == 1, "the call runs")


async def test_a_frozen_redis_loses_nothing(bank: Bank) -> None:
    """The request is refused as not confirmed, taken or not; its repeat is taken once, and who is told hears of it afterwards."""
    call_id = await bank.ask()
    with bank.redis.frozen():
        refused = await asyncio.wait_for(sent(bank.gateway, call_id), 2 * PATIENCE_SECONDS)
        assert bank.runs(call_id) == 0
    assert refused.status_code == 503
    assert (await sent(bank.gateway, call_id)).json()["taken"] == "approved"
    await wait_until(lambda: bank.runs(call_id) == 1, "the call runs")
    await wait_until(
        lambda: bank.receiver.of(call_id) == ["approval.asked", "approval.approved"], "it has heard of both"
    )
