"""Deciding about calls at the command line and over HTTP: the same record, whoever decides where."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from support.command import Ended, Run
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.module_server import ModuleServer, serve
from support.owls import echo
from toolfleet_cli.local.redis_server import redis_server

AGENTS = {
    "production": {"middleware": [{"name": "human_in_the_loop", "approve_tools": ["owls.feed"], "quorum": 1}]},
}


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    parameters = [
        {"name": "n", "type": "integer", "description": ""},
        {"name": "pin", "type": "string", "description": "", "required": False, "sensitive": True},
    ]
    module.add("feed", echo, effect="once", parameters=parameters)
    with serve(module) as served:
        yield served


@pytest.fixture(scope="module")
def bed(module: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    more: dict[str, object] = {"agents": AGENTS, "default_agent": "production", "jobs_interval_seconds": 1}
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        bed = TestBed(url, (module,), tmp_path_factory.mktemp("logs"), more)
        with bed.worker():
            yield bed


@pytest.fixture(scope="module")
def gateway(bed: TestBed) -> Iterator[KeyedGateway]:
    with keyed_gateway(bed) as gateway:
        yield gateway


@pytest.fixture
def at_redis(run: Run, bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, with the settings of the fleet."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", bed.redis_url)
    monkeypatch.setenv("TOOLFLEET_AGENTS", json.dumps(AGENTS))
    monkeypatch.setenv("TOOLFLEET_DEFAULT_AGENT", "production")
    return run


async def asked(gateway: KeyedGateway, n: int, **more: object) -> str:
    """The id of a call of Bob's that waits for people."""
    body = {"tool_name": "owls.feed", "arguments": {"n": n, **more}}
    answer = await gateway.post("bob", "/calls", body)
    assert answer.status_code == 202, answer.text
    state = answer.json()
    assert state["state"] == "waiting_approval"
    return str(state["call_id"])


async def test_a_call_is_approved_over_http(gateway: KeyedGateway, module: ModuleServer) -> None:
    """By whoever may; others see neither the call nor that there is one, viewers see it and may not decide."""
    before, approval_id = len(module.calls("feed")), await asked(gateway, 1, pin="1234")
    path = f"/approvals/{approval_id}"
    body = {"decision": "approve"}
    assert (await gateway.get("eve", path)).status_code == 404
    assert (await gateway.post("eve", path, body)).status_code == 404
    seen = (await gateway.get("vera", path)).json()
    assert (seen["arguments"], seen["may_decide"]) == ({"n": 1, "pin": "[redacted]"}, False)
    assert (await gateway.post("vera", path, body)).status_code == 403
    own = (await gateway.get("bob", path)).json()
    assert (own["arguments"], own["may_decide"], own["user_id"]) == ({"n": 1, "pin": "1234"}, False, "bob")
    assert (await gateway.post("bob", path, body)).status_code == 403
    assert approval_id in {each["id"] for each in (await gateway.get("ada", "/approvals")).json()["approvals"]}
    assert (await gateway.get("eve", "/approvals")).json()["approvals"] == []
    assert len(module.calls("feed")) == before

    decided = await gateway.post("ada", path, body)
    assert (decided.status_code, decided.json()["state"]) == (200, "approved")
    again = await gateway.post("ada", path, {"decision": "reject"})
    assert (again.status_code, again.json()["type"]) == (409, "urn:toolfleet:problem:approval-not-taken")
    ended = await gateway.get("bob", f"/calls/{approval_id}", headers={"prefer": "wait=20"})
    assert ended.json()["result"]["success"], ended.text
    assert len(module.calls("feed")) == before + 1


async def test_wrong_decisions_are_refused(gateway: KeyedGateway, module: ModuleServer) -> None:
    """Each with one clear problem; the call waits on."""
    before, approval_id = len(module.calls("feed")), await asked(gateway, 2)
    path = f"/approvals/{approval_id}"
    wrong: list[dict[str, object]] = [
        {"decision": "perhaps"},
        {"decision": "reject", "arguments": {"n": 3}},
        {"decision": "approve", "arguments": {"n": "three"}},
        {"decision": "approve", "by": "eve"},
        {},
    ]
    answers = [await gateway.post("ada", path, body) for body in wrong]
    assert [each.status_code for each in answers] == [400, 400, 422, 400, 400], [each.json() for each in answers]
    assert (await gateway.post("ada", "/approvals/none", {"decision": "approve"})).status_code == 404
    assert (await gateway.get("ada", path)).json()["state"] == "waiting"
    assert len(module.calls("feed")) == before


async def test_a_call_is_edited_and_rejected_at_the_command_line(
    gateway: KeyedGateway, at_redis: Run, module: ModuleServer
) -> None:
    """By their own users; the audit says who has decided what."""
    first, second = await asked(gateway, 4), await asked(gateway, 5)

    def command(*words: str) -> Ended:
        return at_redis("approvals", *words)

    listed = await asyncio.to_thread(command, "list")
    assert {first, second} <= {line.split()[0] for line in listed.out.splitlines()}
    shown = await asyncio.to_thread(command, "show", first)
    assert "tool: owls.feed" in shown.out
    edited = await asyncio.to_thread(command, "approve", first, "--edit", '{"n": 40}', "--as", "carol")
    assert (edited.code, edited.err.strip()) == (0, "Approved: the call is on its way.")
    rejected = await asyncio.to_thread(command, "reject", second, "--reason", "Not now.", "--as", "carol")
    assert rejected.code == 0
    late = await asyncio.to_thread(command, "approve", second)
    assert (late.code, "it was rejected before" in late.err) == (1, True)
    wrong = await asyncio.to_thread(command, "approve", second, "--edit", "[1]")
    assert (wrong.code, "no JSON object" in wrong.err) == (2, True)
    ended = await gateway.get("bob", f"/calls/{first}", headers={"prefer": "wait=20"})
    assert ended.json()["result"]["success"], ended.text
    assert module.calls("feed")[-1]["arguments"] == {"n": 40}
    denied = (await gateway.get("bob", f"/calls/{second}")).json()["result"]
    assert (denied["error_code"], "Not now." in denied["error"]) == ("approval_denied", True)
    lines = await asyncio.to_thread(lambda: at_redis("audit", "tail", "--changes", "--json"))
    changes = [json.loads(line) for line in lines.out.splitlines()]
    assert [(each["change"], each["user_id"], each["outcome"]) for each in changes][-3:] == [
        ("call_approved", "carol", "success"),
        ("call_rejected", "carol", "success"),
        ("call_approved", changes[-1]["user_id"], "refused"),
    ]
