"""Deciding about calls at the command line and over HTTP: the same record, whoever decides where."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from typing import Any

import httpx
import pytest

from support.command import Ended, Run
from support.console.console_fleet import bury
from support.console.plain_browser import browsing
from support.fleet import TestBed, program
from support.gateways.hook_requests import SECRET, signed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.gateways.mcp_requests import TASKS
from support.gateways.mcp_requests import asked as mcp_asked
from support.module_server import ModuleServer, serve
from support.owls import echo
from support.waiting import wait_until, wait_until_answered
from toolfleet import Approver, ToolFleet
from toolfleet_cli.local.environment import beat_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import ApiKeys

WAITS = {"name": "human_in_the_loop", "approve_tools": ["owls.feed", "owls.cry"]}
AGENTS = {
    "production": {"middleware": [{**WAITS, "quorum": 1}]},
    "pair": {"middleware": [{**WAITS, "quorum": 2}]},
}
EDITOR = Approver("command line", "edith", "admin")


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleServer]:
    module = ModuleServer("owls")
    parameters = [
        {"name": "n", "type": "integer", "description": ""},
        {"name": "pin", "type": "string", "description": "", "required": False, "sensitive": True},
    ]
    module.add("feed", echo, effect="once", parameters=parameters)
    module.add("cry", echo, effect="once", parameters=[{"name": "text", "type": "string", "description": ""}])
    module.add("pay", echo, effect="once", approval=True, parameters=parameters)
    with serve(module) as served:
        yield served


@pytest.fixture(scope="module")
def bed(module: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    secret = tmp_path_factory.mktemp("secrets") / "erp"
    secret.write_text(SECRET)
    more: dict[str, object] = {
        "agents": AGENTS,
        "default_agent": "production",
        "jobs_interval_seconds": 1,
        "scheduler": True,
        "secrets": {"ERP": {"file": str(secret)}},
        "approvals": {"approvers": {"erp": {"secret": "ERP", "user_id": "erp", "permission": "admin"}}},
    }
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        bed = TestBed(url, (module,), tmp_path_factory.mktemp("logs"), more)
        with bed.worker(), program(bed, beat_command(), "beat", ready="beat: Starting"):
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
    agent = more.pop("agent", "production")
    body = {"tool_name": "owls.feed", "arguments": {"n": n, **more}, "agent": agent}
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


@dataclass(frozen=True)
class Doors:
    """The ways in by which the same record is decided. Each returns whether a decision was taken, and what was said."""

    gateway: KeyedGateway
    command: Run

    async def rest(self, approval_id: str, decision: str, seen: str | None) -> tuple[bool, str]:
        said = {} if seen is None else {"seen": seen}
        answer = await self.gateway.post("ada", f"/approvals/{approval_id}", {"decision": decision, **said})
        if answer.status_code != 200:
            assert (answer.status_code, answer.json()["error_code"]) == (409, "approval_not_taken"), answer.text
        return answer.status_code == 200, answer.text

    async def hook(self, approval_id: str, decision: str, seen: str | None) -> tuple[bool, str]:
        said = {} if seen is None else {"seen": seen}
        data = json.dumps({"approval_id": approval_id, "decision": decision, **said}).encode()
        async with self.gateway.client("nobody") as client:
            headers = signed(data, delivery=f"{approval_id} {decision} {seen}")
            answer = await client.post(f"/hooks/approvals/{approval_id}", content=data, headers=headers)
        if answer.status_code != 200:
            assert (answer.status_code, answer.json()["error_code"]) == (409, "approval_not_taken"), answer.text
        return answer.status_code == 200, answer.text

    async def redis(self, approval_id: str, decision: str, seen: str | None) -> tuple[bool, str]:
        return await self._typed(approval_id, decision, seen, "--as", "carol")

    async def remote(self, approval_id: str, decision: str, seen: str | None) -> tuple[bool, str]:
        return await self._typed(approval_id, decision, seen, "--url", self.gateway.url)

    async def _typed(self, approval_id: str, decision: str, seen: str | None, *more: str) -> tuple[bool, str]:
        said = () if seen is None else ("--seen", seen)
        ended = await asyncio.to_thread(self.command, "approvals", decision, approval_id, *said, *more)
        assert ended.code in {0, 1}, ended.err
        return ended.code == 0, " ".join(ended.err.split())


@pytest.fixture
def doors(gateway: KeyedGateway, at_redis: Run, monkeypatch: pytest.MonkeyPatch) -> Doors:
    monkeypatch.setenv("TOOLFLEET_GATEWAY_KEY", gateway.keys["ada"].text)
    return Doors(gateway, at_redis)


async def binding_of(gateway: KeyedGateway, approval_id: str) -> str:
    """What a person is shown with the call."""
    return str((await gateway.get("vera", f"/approvals/{approval_id}")).json()["binding"])


async def edited(bed: TestBed, approval_id: str, seen: str, n: int) -> None:
    """Have another approver edit the call."""
    async with ToolFleet(settings=bed.settings) as fleet:
        await fleet.approvals.approve(approval_id, EDITOR, arguments={"n": n}, seen=seen)


@pytest.mark.parametrize("door", ["rest", "hook", "redis", "remote"])
async def test_a_vote_is_about_what_was_seen(
    door: str, doors: Doors, gateway: KeyedGateway, bed: TestBed, module: ModuleServer
) -> None:
    """Among several approvers it names that, or is not taken; what another has edited since is told, without what is sensitive."""
    decide: Callable[..., Awaitable[tuple[bool, str]]] = getattr(doors, door)
    before, approval_id = len(module.calls("feed")), await asked(gateway, 1, pin="s3cret-pin", agent="pair")
    first = await binding_of(gateway, approval_id)
    for decision in ("approve", "reject"):
        was_taken, said = await decide(approval_id, decision, None)
        assert (was_taken, "send the binding that you are shown as `seen`" in said) == (False, True)

    await edited(bed, approval_id, first, 999)
    for decision in ("approve", "reject"):
        was_taken, said = await decide(approval_id, decision, first)
        assert (was_taken, "its arguments were changed since (user edith replaced n)" in said) == (False, True)
        assert "999" in said
        assert "s3cret-pin" not in said
    shown = (await gateway.get("vera", f"/approvals/{approval_id}")).json()
    assert (shown["state"], shown["missing"], len(module.calls("feed"))) == ("waiting", 1, before)

    was_taken, said = await decide(approval_id, "approve", shown["binding"])
    assert was_taken, said
    ended = await gateway.get("bob", f"/calls/{approval_id}", headers={"prefer": "wait=20"})
    assert ended.json()["result"]["result"]["n"] == 999, ended.text


async def test_a_page_decides_about_what_it_shows(gateway: KeyedGateway, bed: TestBed) -> None:
    """One that was opened before an edit decides nothing; it is shown again, with what the call is now, which its form decides."""
    approval_id = await asked(gateway, 1, agent="pair")
    async with browsing(gateway, "ada") as browser:
        page = await browser.get(f"/approvals/{approval_id}")
        await edited(bed, approval_id, await binding_of(gateway, approval_id), 777)
        refused = [
            await browser.send(page.form(approval_id), decision="approve"),
            await browser.send(page.form(approval_id, edits="true"), arguments='{"n": 2}', decision="approve"),
            await browser.send(page.form(approval_id), decision="reject"),
        ]
        again = await browser.send(refused[0].form(approval_id), decision="approve")

    for each in refused:
        assert (each.status, "its arguments were changed since (user edith replaced n)" in each.text) == (409, True)
        assert '"n": 777' in each.text
    assert "owls.feed: approved." in again.text
    ended = await gateway.get("bob", f"/calls/{approval_id}", headers={"prefer": "wait=20"})
    assert ended.json()["result"]["result"]["n"] == 777


@pytest.mark.parametrize("words", [(), ("--as", "carol")], ids=["as the machine's user", "as another"])
async def test_a_terminal_shows_the_call_before_it_asks(
    words: tuple[str, ...], gateway: KeyedGateway, at_redis: Run, bed: TestBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who types no binding is shown the call as it is now, and a word that is not yes decides nothing."""
    approval_id = await asked(gateway, 1, agent="pair")
    await edited(bed, approval_id, await binding_of(gateway, approval_id), 55)

    def typed(answer: str) -> Ended:
        monkeypatch.setattr(sys, "stdin", terminal := StringIO(f"{answer}\n"))
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        return at_redis("approvals", "approve", approval_id, *words)

    left = await asyncio.to_thread(typed, "n")
    assert (left.code, '"n": 55' in left.out) == (1, True)
    assert (await gateway.get("ada", f"/approvals/{approval_id}")).json()["state"] == "waiting"
    taken = await asyncio.to_thread(typed, "y")
    assert (taken.code, "on its way" in taken.err) == (0, True), taken.err


@pytest.fixture
async def dave(gateway: KeyedGateway, bed: TestBed) -> AsyncIterator[Callable[[str, Any], Awaitable[httpx.Response]]]:
    """Posts with the key of an admin who acts for others; by `post("second", …)` with another key of his."""
    draft = KeyDraft(user_id="dave", permission="admin", allowed_modules="*", role="admin", acts_for_others=True)
    with contextlib.closing(ApiKeys.of(bed.settings)) as keys:
        made = [keys.create(draft, COMMAND_LINE) for _ in range(2)]
        try:
            async with contextlib.AsyncExitStack() as stack:
                clients = [
                    await stack.enter_async_context(
                        httpx.AsyncClient(
                            base_url=gateway.url,
                            headers={"authorization": f"Bearer {each.text}"},
                            timeout=httpx.Timeout(None),
                            trust_env=False,
                        )
                    )
                    for each in made
                ]

                async def post(path: str, body: Any, *, key: int = 0) -> httpx.Response:
                    return await clients[key].post(path, json=body)

                yield post
        finally:
            keys.revoke([each.key.id for each in made])


FEED = {"tool_name": "owls.feed", "arguments": {"n": 1}}
LETTER = "00000000-0000-4000-8000-00000000da4e"
PUPPET = {"user_id": "puppet"}
ASKING: dict[str, tuple[str, dict[str, Any]]] = {
    "a call": ("/calls", {**FEED, **PUPPET}),
    "a batch": ("/calls/batch", {"calls": [{**FEED, **PUPPET}]}),
    "a job": ("/jobs", {"start": FEED, "conversation": {"conversation_id": "c-1"}, **PUPPET}),
    "a job by a tool": (
        "/calls",
        {
            "tool_name": "scheduler.add_job",
            "arguments": {**FEED, "delay_seconds": 1},
            "conversation_id": "c-1",
            **PUPPET,
        },
    ),
    "a replay": (f"/operations/dead-letters/{LETTER}/replay", {}),
}


@pytest.mark.parametrize("way", ASKING)
async def test_who_asks_for_another_user_does_not_approve(
    way: str, dave: Callable[..., Awaitable[httpx.Response]], gateway: KeyedGateway, bed: TestBed
) -> None:
    """Neither by the key that has asked nor by another one of its user; the refusal names both ways out, and others approve it."""
    path, body = ASKING[way]
    if way == "a replay":
        bury(bed, [LETTER], tool="owls.cry")  # a call of another user's
    known = {each["id"] for each in (await gateway.get("ada", "/approvals")).json()["approvals"]}
    asking = asyncio.ensure_future(dave(path, body))
    found = list[dict[str, Any]]()

    async def waits() -> bool:
        listed = (await gateway.get("ada", "/approvals")).json()["approvals"]
        found[:] = [each for each in listed if each["id"] not in known]
        return bool(found)

    await wait_until_answered(waits, "it waits for an approval")
    (approval,) = found
    at = f"/approvals/{approval['id']}"
    refused = [await dave(at, {"decision": "approve"}, key=key) for key in (0, 1)]
    assert [(each.status_code, each.json()["error_code"]) for each in refused] == [(403, "approval_forbidden")] * 2
    for each in refused:
        assert "self_approval = true" in each.json()["detail"]
        assert "a second key" in each.json()["detail"]
    async with ToolFleet(settings=bed.settings) as fleet:
        assert (await fleet.approvals.approve(approval["id"], EDITOR)).state == "approved"
    asks = await asking
    assert asks.status_code in {200, 201, 202}, asks.text


async def test_the_command_says_at_once_that_a_call_waits(
    gateway: KeyedGateway, at_redis: Run, module: ModuleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At Redis and over a gateway, as `fleet.call` does: with the id of the approval, under which the call waits on."""
    feed, before = ("call", "owls.feed", "n=7", "--timeout", "60", "--json"), len(module.calls("feed"))
    directly = await asyncio.to_thread(lambda: at_redis(*feed))
    monkeypatch.setenv("TOOLFLEET_GATEWAY_KEY", gateway.keys["ada"].text)
    remotely = await asyncio.to_thread(lambda: at_redis(*feed, "--url", gateway.url))
    for ended in (directly, remotely):
        result = json.loads(ended.out)
        call_id = result["audit"]["call_id"]
        assert (ended.code, result["error_code"], call_id in result["error"]) == (1, "approval_required", True)
        assert f"toolfleet approvals show {call_id}, then approve or reject." in ended.err
        waiting = (await gateway.get("vera", f"/approvals/{call_id}")).json()
        assert waiting["state"] == "waiting"
    assert len(module.calls("feed")) == before
    decided = await gateway.post(
        "ada", f"/approvals/{json.loads(directly.out)['audit']['call_id']}", {"decision": "approve"}
    )
    assert decided.json()["state"] == "approved", decided.text
    await wait_until(lambda: len(module.calls("feed")) == before + 1, "the approved call has run")


async def test_every_door_says_that_a_tools_own_approval_is_waited_for(
    gateway: KeyedGateway, at_redis: Run, module: ModuleServer, bed: TestBed
) -> None:
    """REST by 202, MCP by a task, the command line by the id; `why` names the rule, and nothing has run."""
    before = len(module.calls("pay"))
    rest = await gateway.post("bob", "/calls", {"tool_name": "owls.pay", "arguments": {"n": 5}})
    assert (rest.status_code, rest.json()["state"]) == (202, "waiting_approval"), rest.text
    why = await gateway.get("ada", "/tools/owls.pay/why")
    assert "approval" in {rule["about"] for rule in why.json()["rules"]}, why.text
    async with gateway.client("bob") as client:
        call = {"name": "owls.pay", "arguments": {"n": 5}}
        task = (await mcp_asked(client, "tools/call", call, TASKS))["result"]
    typed = await asyncio.to_thread(at_redis, "call", "owls.pay", "n=5", "--user", "ada", "--json")
    ids = [rest.json()["call_id"], task["taskId"], json.loads(typed.out)["audit"]["call_id"]]
    async with ToolFleet(settings=bed.settings) as fleet:
        assert set(ids) <= {each.approval_id for each in await fleet.approvals.list()}
        assert len(module.calls("pay")) == before
        await fleet.approvals.approve(ids[0], EDITOR)
        ended = await gateway.get("bob", f"/calls/{ids[0]}", headers={"prefer": "wait=20"})
        assert (ended.json()["result"]["success"], len(module.calls("pay"))) == (True, before + 1), ended.text
        for each in ids[1:]:
            await fleet.approvals.reject(each, EDITOR)
