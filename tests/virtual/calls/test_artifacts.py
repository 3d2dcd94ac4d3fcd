"""Results by handle: large results are kept in a store, for their own user, until they expire."""

import asyncio
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import obstore
import pytest
from greenlet import getcurrent

from bed.fleet import Bed, until
from support.documents import programs
from support.frameworks.written_program import import_program
from support.module_server import ModuleServer, Request
from toolfleet import Caller, Conversation, Poll, ToolCall, ToolFleet, ToolResult
from toolfleet.formats import from_result
from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.queues import send_canaries
from toolfleet_registry.artifact_store import ArtifactStore
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.jobs import JobRefused
from toolfleet_registry.errors import ArtifactStoreAway
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.approvals.approvers import Approver
from toolfleet_tasks.artifacts import _AGAIN_SECONDS, _GRACE_SECONDS, Artifacts, forget_artifacts
from toolfleet_tasks.calls.audit_trail import set_credential
from toolfleet_tasks.calls.eval_gate import GateDecision
from toolfleet_tasks.greenlet_bridge import drive
from toolfleet_tasks.ledger.contents import dead_letter
from toolfleet_tasks.messages.signing import seal_of

ADA, BOB = (Caller(user_id=name, permission="user", allowed_modules=frozenset({"web"})) for name in ("ada", "bob"))
PAGE = "<html>\n" + "\n".join(f"<p>owl {number} é</p>" for number in range(15_000)) + "\n</html>"
ROWS = {"rows": [{"name": f"owl {number}", "mail": f"owl{number}@example.org"} for number in range(2_000)]}
KEYS, SECONDS = Keys(), 300
SEEN = list[dict[str, Any]]()
PLACE = f"toolfleet-artifacts/{hashlib.sha256(KEYS.begin.encode()).hexdigest()[:16]}"


async def page(_: Request) -> dict[str, Any]:
    return {"success": True, "result": PAGE}


async def rows(_: Request) -> dict[str, Any]:
    return {"success": True, "result": ROWS}


async def save(request: Request) -> dict[str, Any]:
    """Say what it was given, as a store of files does."""
    text = request["arguments"]["text"]
    return {
        "success": True,
        "result": {"sha256": hashlib.sha256(text.encode()).hexdigest(), "size": len(text.encode())},
    }


async def edit(request: Request) -> dict[str, Any]:
    return {"success": True, "result": request["arguments"]["text"].replace("owl 7 ", "eagle 7 ")}


async def replace(request: Request) -> dict[str, Any]:
    given = request["arguments"]
    return {"success": True, "result": given["text"].replace(given["old"], given["new"])}


async def join_texts(request: Request) -> dict[str, Any]:
    return {"success": True, "result": request["arguments"]}


async def many(request: Request) -> dict[str, Any]:
    return {"success": True, "result": "x" * request["arguments"]["size"]}


async def cards(_: Request) -> dict[str, Any]:
    return {"success": True, "result": {"rows": [{"mail": "owl@example.org", "card": 4111111111111111}] * 2_000}}


async def state(request: Request) -> dict[str, Any]:
    """Say how far it is, at length: it is over at the third question."""
    SEEN.append(request["arguments"])
    return {"success": True, "result": {"status": "over" if len(SEEN) > 2 else "on", "log": PAGE}}


async def note_arguments(request: Request) -> dict[str, Any]:
    SEEN.append(request["arguments"])
    return {"success": True, "result": request["arguments"]}


async def draw(_: Request) -> dict[str, Any]:
    picture = {"kind": "image", "media_type": "image/png", "data": "AAAA", "name": "owl.png"}
    return {"success": True, "result": {"rows": 3}, "files": [picture]}


def hang(*_: Any, **__: Any) -> None:
    """Answer never, as a server of files that is gone: in the bed a request's thread is a greenlet."""
    bridge: Any = getcurrent().parent
    drive(asyncio.sleep(1_000_000).__await__(), bridge.switch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the artifacts lie, for five minutes."""
    monkeypatch.setattr("toolfleet_tasks.artifacts._KEPT_SECONDS", SECONDS)
    return tmp_path / "artifacts" / PLACE


@pytest.fixture
async def fleet(bed: Bed, folder: Path) -> ToolFleet:
    """With a module of pages, and a worker."""
    web = ModuleServer("web")
    web.add("page", page, effect="read")
    web.add("rows", rows, effect="read", required_permission="user")
    web.add("rows_once", rows, effect="once")
    web.memory = lambda _: {"state": "done", "success": True, "result": ROWS}
    web.add("mcp.resources.read", page, effect="read")
    web.add("state", state, effect="read")
    text = {"type": "string", "minLength": 100_000}
    web.add("save", save, input_schema={"type": "object", "properties": {"text": text}, "required": ["text"]})
    parts = {"text": text, "old": {"type": "string"}, "new": {"type": "string"}}
    web.add("replace", replace, effect="read", input_schema={"type": "object", "properties": parts})
    web.add("edit", edit, input_schema={"type": "object", "properties": {"text": text}}, approval={"users": ["bob"]})
    web.add("many", many, input_schema={"type": "object", "properties": {"size": {"type": "integer"}}})
    web.add("cards", cards, effect="read")
    web.add("once", note_arguments, effect="once", parameters=[{"name": "text", "type": "string", "description": ""}])
    web.add("gated", note_arguments, requires_gate=True, input_schema={"type": "object", "properties": {"text": {}}})
    SEEN.clear()
    join = {"type": "object", "properties": {"text": {"type": "string"}, "data": {}}, "additionalProperties": False}
    web.add("join", join_texts, input_schema=join, effect="once")
    web.add("queued", note_arguments, input_schema=join, concurrency_key="data.id")
    web.add("draw", draw, effect="read")
    bed.given["artifact_store"] = str(folder.parent.parent)
    await bed.serve(web)
    await bed.worker()
    return await bed.agent()


async def called(fleet: ToolFleet, tool: str, caller: Caller = ADA, **arguments: Any) -> ToolResult:
    return await fleet.call(ToolCall(tool_name=tool, arguments=arguments), caller, timeout=60)


async def handle(fleet: ToolFleet, tool: str = "web.page", caller: Caller = ADA, **arguments: Any) -> str:
    """Return the handle of a result."""
    result = await called(fleet, tool, caller, **arguments)
    assert result.success, result
    return result.artifacts[0].id


async def test_a_large_result_has_a_handle_and_stays_whole(fleet: ToolFleet, folder: Path) -> None:
    """It is in the store before the call ends, byte for byte, under the call's id and attempt."""
    result = await called(fleet, "web.page")

    (artifact,) = result.artifacts
    assert result.result == PAGE
    assert artifact.id == f"{result.audit.call_id}.1.0"
    assert (folder / artifact.id).read_bytes() == PAGE.encode()
    assert artifact.size == len(PAGE.encode())


async def test_a_model_reads_parts_of_it(fleet: ToolFleet) -> None:
    """By characters, by lines, and on from where the last answer ended, whatever its user's modules are."""
    name = await handle(fleet)
    first = (await called(fleet, "artifacts.read", id=name)).result
    line = (await called(fleet, "artifacts.read", id=name, first_line=7, lines=2)).result
    text, part = "", dict[str, Any](next_offset=0)
    while "next_offset" in part:
        part = (await called(fleet, "artifacts.read", id=name, offset=part["next_offset"], limit=16_000)).result
        text += part["text"]

    assert first["text"] == PAGE[:4_000]
    assert line["text"] == "<p>owl 5 é</p>\n<p>owl 6 é</p>\n"
    assert text == PAGE


async def test_a_model_reads_a_value_of_json(fleet: ToolFleet) -> None:
    """By a JSON pointer; a wrong one is told what there is."""
    name = await handle(fleet, "web.rows")
    row = await called(fleet, "artifacts.read", id=name, pointer="/rows/7/name")
    wrong = await called(fleet, "artifacts.read", id=name, pointer="/rows/7/nam")

    assert row.result["text"] == "owl 7"
    assert (wrong.error_code, wrong.effect_state) == ("invalid_arguments", "none")
    assert "name, mail" in str(wrong.error)


async def test_a_model_finds_a_pattern(fleet: ToolFleet) -> None:
    """With lines, and offsets that `read` takes; a pattern that others take for ever ends."""
    name = await handle(fleet)
    found = (await called(fleet, "artifacts.search", id=name, pattern="^<p>owl 1234.?\\b", limit=3)).result
    hostile = await called(fleet, "artifacts.search", id=name, pattern="(o+)+$")
    wrong = await called(fleet, "artifacts.search", id=name, pattern="(?=a)")

    assert [each["line"] for each in found["matches"]] == [1236, 12342, 12343]
    assert found["has_more"]
    assert PAGE[found["matches"][0]["offset"] :].startswith("<p>owl 1234 ")
    assert hostile.success
    assert wrong.error_code == "invalid_arguments"


async def test_artifacts_are_their_users_alone(fleet: ToolFleet) -> None:
    """Another user gets the same answer as for one that does not exist, and sees none in the list."""
    name = await handle(fleet)
    answers = [await called(fleet, "artifacts.read", who, id=one) for who, one in ((BOB, name), (ADA, f"{name}0"))]
    lists = [(await called(fleet, "artifacts.list", who)).result["artifacts"] for who in (ADA, BOB)]

    assert [answer.error_code for answer in answers] == ["invalid_arguments"] * 2
    assert answers[0].error == answers[1].error
    assert [[each["id"] for each in one] for one in lists] == [[name], []]


async def test_a_reader_needs_the_right_to_the_tool(fleet: ToolFleet) -> None:
    """At each reading: who may not use the tool any more reads none of its results."""
    older = await handle(fleet)
    name, guest = await handle(fleet, "web.rows"), ADA.model_copy(update={"permission": "guest"})
    elsewhere = ADA.model_copy(update={"allowed_modules": frozenset({"other"})})
    answers = [await called(fleet, "artifacts.read", who, id=name) for who in (ADA, guest, elsewhere)]

    assert [answer.success for answer in answers] == [True, False, False]
    assert [each["id"] for each in (await called(fleet, "artifacts.list", guest, limit=1)).result["artifacts"]] == [
        older
    ]


async def test_without_a_user_the_conversation_owns_it(fleet: ToolFleet) -> None:
    """Another conversation does not read it; without one nothing is kept."""
    guest = Caller(permission="user", allowed_modules="*")

    async def asked(tool: str, conversation: str | None, **arguments: Any) -> ToolResult:
        where = Conversation(conversation_id=conversation) if conversation else None
        return await fleet.call(ToolCall(tool_name=tool, arguments=arguments), guest, conversation=where, timeout=60)

    (artifact,) = (await asked("web.page", "talk-1")).artifacts
    answers = [await asked("artifacts.read", talk, id=artifact.id) for talk in ("talk-1", "talk-2", None)]

    assert [answer.success for answer in answers] == [True, False, False]
    assert (await asked("web.page", None)).artifacts == ()


async def test_a_hidden_conversation_id_is_still_one_owner(bed: Bed, fleet: ToolFleet) -> None:
    """Where a profile hides the ids of conversations, all look the same in the audit, and none reads another's artifacts."""
    bed.given["agents"] = {"careful": {"middleware": [{"name": "pii", "pii_types": ["email"], "strategy": "redact"}]}}
    await bed.worker()
    for site in bed._mortal[:1]:
        site.kill()
    careful = await bed.agent()
    guest = Caller(permission="user", allowed_modules="*", agent="careful")

    async def asked(tool: str, conversation: str, **arguments: Any) -> ToolResult:
        where = Conversation(conversation_id=conversation)
        return await careful.call(ToolCall(tool_name=tool, arguments=arguments), guest, conversation=where, timeout=60)

    (artifact,) = (await asked("web.page", "ada@example.org")).artifacts
    answers = [await asked("artifacts.read", f"{name}@example.org", id=artifact.id) for name in ("ada", "bob")]

    assert [answer.success for answer in answers] == [True, False]


async def test_who_asks_for_a_job_owns_what_it_leaves(fleet: ToolFleet) -> None:
    """Without a user the credential, whatever conversation it names: that one's artifacts are not read by the job."""
    guest, where = Caller(permission="user", allowed_modules="*"), Conversation(conversation_id="talk-1")
    page = await fleet.call(ToolCall(tool_name="web.page"), guest, conversation=where, timeout=60)
    theirs = page.artifacts[0].id
    set_credential("key k1", None)
    reading = ToolCall(tool_name="artifacts.read", arguments={"id": theirs})
    await fleet.jobs.start(reading, conversation=where, caller=guest)
    read = await anext(aiter(fleet.wakeups.completions("talk-1")))
    passing = ToolCall(tool_name="web.save", arguments={"text": {"$artifact": theirs}})
    with pytest.raises(JobRefused):
        await fleet.jobs.start(passing, conversation=where, caller=guest)
    where = Conversation(conversation_id="talk-2")
    await fleet.jobs.start(ToolCall(tool_name="web.rows"), conversation=where, caller=guest)
    made = (await anext(aiter(fleet.wakeups.completions("talk-2")))).result["artifact"]
    own = await called(fleet, "artifacts.read", guest, id=made)
    passing = ToolCall(tool_name="web.join", arguments={"data": {"$artifact": made}})
    await fleet.jobs.start(passing, conversation=Conversation(conversation_id="talk-3"), caller=guest)
    passed = await anext(aiter(fleet.wakeups.completions("talk-3")))

    assert read.error_code == "invalid_arguments"
    assert (own.success, passed.error) == (True, None)


async def test_a_full_share_costs_the_handle_and_not_the_result(bed: Bed, fleet: ToolFleet, folder: Path) -> None:
    """The user's share has room again when something was deleted; others have shares of their own."""
    bed.given["artifact_bytes_per_user"] = 100_000
    await bed.worker()
    for site in bed._mortal[:1]:
        site.kill()
    first, second = [await called(fleet, "web.many", size=60_000) for _ in range(2)]
    other = await called(fleet, "web.many", BOB, size=60_000)
    await forget_artifacts(bed.settings, "ada", [first.artifacts[0].id])
    third = await called(fleet, "web.many", size=60_000)

    assert [len(one.artifacts) for one in (first, second, other, third)] == [1, 0, 1, 1]
    assert second.result == first.result
    assert not (folder / first.artifacts[0].id).exists()


async def test_nothing_is_left_after_its_time(bed: Bed, fleet: ToolFleet, folder: Path) -> None:
    """Neither an object nor a key: what has expired, and what a writer that died has left, is swept.

    What the store refuses to delete keeps nothing else, and is tried again later.
    """
    name = await handle(fleet)
    artifacts = Artifacts(bed.settings)
    await artifacts.store.put("dead.1.0", b"owl")
    (folder / "half.1.0#1").write_bytes(b"ow")
    stuck = folder / "stuck.1.0"
    stuck.mkdir()
    for each in ("stuck.1.0", "dead.1.0", "half.1.0"):
        bed.ask("ZADD", KEYS.artifacts_due, 1, each)
    await artifacts.sweep()
    assert {each.name for each in folder.iterdir()} == {name, "stuck.1.0"}
    stuck.rmdir()
    bed.kill_members()
    await asyncio.sleep(_AGAIN_SECONDS + 1)
    await bed.worker()
    await bed.beat()
    await until(lambda: not bed.ask("EXISTS", KEYS.artifacts_due), "beat has it swept", step=5)
    assert not list(folder.iterdir())
    await artifacts.aclose()

    assert (await called(fleet, "artifacts.read", id=name)).error_code == "invalid_arguments"
    assert not [key for key in bed.ask("KEYS", "*artifact*") if "listed" not in key and "manifest" not in key]


async def test_a_store_that_is_away_costs_no_result(bed: Bed, fleet: ToolFleet, folder: Path) -> None:
    """The result arrives as without a store."""
    folder.parent.parent.write_bytes(b"in the way")
    result = await called(fleet, "web.page")

    assert (result.result, result.artifacts) == (PAGE, ())


async def test_an_object_that_was_changed_is_none(fleet: ToolFleet, folder: Path) -> None:
    """What is read is what was written, or nothing."""
    name = await handle(fleet)
    (folder / name).write_bytes(PAGE.replace("owl 7", "0wl 7").encode())

    assert not (await called(fleet, "artifacts.read", id=name)).success


async def test_a_readers_profile_filters_what_is_read(bed: Bed, fleet: ToolFleet) -> None:
    """Also where a part begins in the middle of what is hidden; the writer had no such profile."""
    name = await handle(fleet, "web.rows")
    hides = {"name": "pii", "pii_types": ["email"], "strategy": "redact", "apply_to": ["result"]}
    bed.given["agents"] = {"careful": {"middleware": [{**hides, "tools": ["web.*"]}]}}
    await bed.worker()
    for site in bed._mortal[:1]:
        site.kill()
    careful = await bed.agent()
    reader = ADA.model_copy(update={"agent": "careful"})
    whole = json.dumps(ROWS, ensure_ascii=False, separators=(",", ":"))
    part = await called(careful, "artifacts.read", reader, id=name, offset=whole.index("@"), limit=200)
    found = await called(careful, "artifacts.search", reader, id=name, pattern="owl7@example")

    assert part.success, part
    assert "@" not in part.result["text"]
    assert found.result["matches"] == []


@pytest.mark.parametrize("tool", ["web.rows", "web.rows_once"])
@pytest.mark.parametrize("part", [0.5, 1.0], ids=["half a write", "a whole one"])
async def test_whoever_dies_an_artifact_is_whole_or_absent(
    bed: Bed, fleet: ToolFleet, folder: Path, part: float, tool: str
) -> None:
    """A worker dies at each of the writes of a call's end; another one ends the call, and nothing is left after its time.

    It makes another attempt, or, of a tool that may run once, asks its module what the first one has come to.
    """
    for site in bed._mortal:
        site.kill()
    deaths = handles = 0
    for write in range(1, 13):
        dying = await bed.worker()
        died = dying.dies_at(write, part)
        running = asyncio.create_task(fleet.call(ToolCall(tool_name=tool), ADA, timeout=600))
        await asyncio.wait([running], timeout=5)
        if not running.done():
            other = await bed.worker()
            await running
            other.kill()
        deaths += died.is_set()
        dying.kill()
        result = running.result()
        assert result.result == ROWS
        for each in result.artifacts:
            assert hashlib.sha256((folder / each.id).read_bytes()).hexdigest() == each.sha256
            handles += 1
    await asyncio.sleep(2 * _GRACE_SECONDS)
    artifacts = Artifacts(bed.settings)
    await artifacts.sweep()
    await artifacts.aclose()

    assert deaths > 4
    assert handles == 12  # each ended call has its own
    assert not list(folder.iterdir())


async def test_the_doctor_says_which_process_cannot_read(
    bed: Bed, fleet: ToolFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes here, and each worker that answers a canary reads: one with another folder is named, or one whose store hangs."""
    well = await send_canaries(Patient(bed.settings))
    for site in bed._mortal:
        site.kill()
    await bed.worker(artifact_store=str(folder.parent.parent / "other"))
    ill = await send_canaries(Patient(bed.settings))
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "get", hang)
        hanging = await send_canaries(Patient(bed.settings))
    root = folder.parent.parent
    root.rename(root.parent / "gone")
    root.write_bytes(b"in the way")
    here = await send_canaries(Patient(bed.settings))

    assert well.findings == ()
    assert {each.what.partition(" ")[0] for each in ill.findings} == {"Worker"}
    assert all("cannot read what was written here" in each.what for each in (*ill.findings, *hanging.findings))
    assert all("timeout" in str(each.quoted) for each in hanging.findings)
    assert len(hanging.findings) == len(ill.findings)
    assert [each.what.partition(":")[0] for each in here.findings] == [
        "This process cannot write into the store of artifacts"
    ]
    assert not list((root.parent / "gone" / PLACE).iterdir())  # it takes away what it has written


async def test_without_a_store_nothing_is_different(bed: Bed) -> None:
    """No module, no key, no field."""
    web = ModuleServer("web")
    web.add("page", page, effect="read")
    await bed.serve(web)
    await bed.worker()
    fleet = await bed.agent()
    result = await called(fleet, "web.page")

    assert result.artifacts == ()
    assert (await called(fleet, "artifacts.list")).error_code == "unknown_module"
    assert not bed.ask("KEYS", "*artifact*")


async def test_an_artifact_is_passed_from_tool_to_tool(fleet: ToolFleet) -> None:
    """The tool gets the whole, byte for byte, and neither the model nor the message has it."""
    name = await handle(fleet)
    result = await called(fleet, "web.save", text={"$artifact": name})

    assert result.success, result
    assert result.result == {"sha256": hashlib.sha256(PAGE.encode()).hexdigest(), "size": len(PAGE.encode())}


async def test_a_page_is_edited_without_the_model_seeing_it(fleet: ToolFleet) -> None:
    """Read by one tool, edited and written back by two others: a model sees less than 3 kB of it, and all else is untouched."""
    seen = list[str]()

    async def step(tool: str, **arguments: Any) -> ToolResult:
        result = await called(fleet, tool, **arguments)
        seen.extend([json.dumps(arguments), from_result(result, "openai_chat", "call-1")["content"]])
        return result

    def shown() -> dict[str, str]:
        """Return the handle as the model reads it in the preview."""
        return {"$artifact": seen[-1].split("are left out: artifact ")[1].split()[0].rstrip(",.;:")}

    await step("web.page")
    await step("web.replace", text=shown(), old="owl 7 ", new="eagle 7 ")
    saved = await step("web.save", text=shown())

    assert len(PAGE.encode()) > 280_000
    assert saved.result["sha256"] == hashlib.sha256(PAGE.replace("owl 7 ", "eagle 7 ").encode()).hexdigest()
    of_it = "".join(
        re.sub(r"\[… .* …\]", "", each) for each in seen[1::2]
    )  # without what is said of it, and by the model
    assert len(of_it.encode()) < 3_000
    assert len("".join(seen).encode()) < 4_000


async def test_the_whole_is_checked_before_the_request(fleet: ToolFleet) -> None:
    """An artifact that the tool does not take is refused, and nothing has happened; so is what is wrong beside it."""
    short = await handle(fleet, "web.many", size=50_000)
    refused = await called(fleet, "web.save", text={"$artifact": short})
    other = await called(fleet, "web.many", size={"$artifact": short}, more=1)

    assert (refused.error_code, refused.effect_state) == ("invalid_arguments", "none")
    assert "100000" in str(refused.error)
    assert other.error_code == "invalid_arguments"


async def test_anothers_artifact_is_no_argument(fleet: ToolFleet) -> None:
    """It is refused as one that does not exist, before anything is published."""
    name = await handle(fleet)
    answers = [
        await called(fleet, "web.save", who, text={"$artifact": one}) for who, one in ((BOB, name), (ADA, "a.1.0"))
    ]

    assert [answer.error_code for answer in answers] == ["invalid_arguments"] * 2
    assert answers[0].error == answers[1].error
    assert all(answer.audit.attempts == 0 for answer in answers)


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ("join", {"page": None}),
        ("join", [None]),
        ("join", {"$artifact": None, "note": "owl"}),
        ("queued", None),
    ],
    ids=["within an object", "within a list", "with other members", "in place of a key of turns"],
)
async def test_a_handle_is_a_whole_argument(fleet: ToolFleet, tool: str, place: Any) -> None:
    """Anywhere else the tool would get the handle as it is, or calls would not wait for each other: nothing is sent."""
    name = await handle(fleet)
    named = json.dumps(place).replace("null", json.dumps(name if "$artifact" in str(place) else {"$artifact": name}))
    result = await called(fleet, f"web.{tool}", data=json.loads(named))

    assert (result.error_code, result.effect_state, result.audit.attempts) == ("invalid_arguments", "none", 0)
    assert any(said in str(result.error) for said in ("whole argument", "wait for each other by it"))


async def test_a_model_schedules_a_call_with_a_handle(bed: Bed, fleet: ToolFleet) -> None:
    """There the handle is within an argument: the job's own call binds it."""
    name = await handle(fleet)
    bed.given["scheduler"] = True
    await bed.worker()
    for site in bed._mortal[:1]:
        site.kill()
    planning, ada = await bed.agent(), ADA.model_copy(update={"permission": "admin", "allowed_modules": "*"})
    await planning.modules.refresh()
    where = Conversation(conversation_id="c-1")
    arguments = {"tool_name": "web.save", "arguments": {"text": {"$artifact": name}}}
    made = await planning.call(ToolCall(tool_name="scheduler.add_job", arguments=arguments), ada, conversation=where)

    assert made.success, made
    assert made.result["tool_name"] == "web.save"


async def test_a_replay_is_made_for_who_asked_first(bed: Bed, fleet: ToolFleet) -> None:
    """Of a call without a user: its artifacts are that credential's, and so is what the replay leaves, whoever has it made."""
    guest, now = Caller(permission="user", allowed_modules="*"), fleet_clock.now()
    set_credential("key k1", None)
    page = await fleet.call(ToolCall(tool_name="web.page"), guest, timeout=60)
    call = PublishedCall(
        call_id="lost",
        tool_name="web.replace",
        arguments={"text": {"$artifact": page.artifacts[0].id}, "old": "owl 7 ", "new": "eagle 7 "},
        user_id=None,
        caller=guest,
        effect="once",
        limit_seconds=60,
        published_at=now,
        deadline_at=now,
        asked_by=("key k1",),
    )
    unknown = ToolResult.failed(call.tool_name, "outcome_unknown", "Its end is unknown.", effect_state="unknown")
    letter = seal_of(bed.settings, purpose="dead letter").sign(dead_letter(call, unknown, died_at=now))
    bed.ask("HSET", KEYS.dead, call.call_id, letter)
    bed.ask("ZADD", KEYS.dead_order, 1, call.call_id)
    set_credential("key k2", None)
    result = await fleet.dead_letters.replay(call.call_id)
    (artifact,) = result.artifacts
    others = await called(fleet, "artifacts.read", guest, id=artifact.id)
    set_credential("key k1", None)
    own = await called(fleet, "artifacts.read", guest, id=artifact.id)

    assert result.result == PAGE.replace("owl 7 ", "eagle 7 ")
    assert (own.success, others.success) == (True, False)


async def test_an_agent_without_the_store_shows_no_handles(bed: Bed, fleet: ToolFleet) -> None:
    """Workers may have it first: such an agent's models could neither read a handle nor pass it on."""
    await handle(fleet)
    result = await called(await bed.agent(artifact_store=None), "web.page")

    assert (result.result, result.artifacts) == (PAGE, ())
    assert from_result(result, "openai_chat", "call-1")["content"] == PAGE


async def test_a_conversations_fields_need_no_room_in_a_schema(bed: Bed, fleet: ToolFleet) -> None:
    """The agent adds them for some modules; with an artifact in its place an argument is checked as without one."""
    del fleet
    bed.given["context_modules"] = ["web"]
    agent, where = await bed.agent(), Conversation(platform="slack")
    data = {"$artifact": await handle(agent, "web.rows")}
    call = ToolCall(tool_name="web.join", arguments={"data": data})
    result = await agent.call(call, ADA, conversation=where, timeout=60)

    assert result.result == {"data": ROWS, "platform": "slack"}


async def test_arguments_have_a_bound_of_their_own(fleet: ToolFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all their artifacts, of which none is read then; a name that the tool does not have names none."""
    name, read = await handle(fleet, "web.many", size=200_000), list[str]()
    monkeypatch.setattr("toolfleet_workers.executors.artifacts._MOST_BYTES", 300_000)
    monkeypatch.setattr(ArtifactStore, "get", lambda _, name, *part, **more: read.append(name))
    refused = await called(fleet, "web.join", text={"$artifact": name}, data={"$artifact": name})
    other = await called(fleet, "web.join", text="owl", other={"$artifact": name})

    assert [(each.error_code, each.effect_state) for each in (refused, other)] == [("invalid_arguments", "none")] * 2
    assert other.audit.attempts == 0
    assert read == []


async def test_a_key_stands_for_the_content(fleet: ToolFleet) -> None:
    """The same artifact is the same call, and another one under the same key a conflict."""
    first, second = await handle(fleet), await handle(fleet, "web.many", size=200_000)

    async def saved(name: str) -> ToolResult:
        call = ToolCall(tool_name="web.save", arguments={"text": {"$artifact": name}}, idempotency_key="once")
        return await fleet.call(call, ADA, timeout=60)

    results = [await saved(name) for name in (first, first, second)]
    assert results[0] == results[1]
    assert results[2].error_code == "conflict"


async def test_what_people_approve_is_bound_to_the_content(fleet: ToolFleet) -> None:
    """They see the handle with the digest; what was approved is what the tool gets."""
    name = await handle(fleet)
    call = ToolCall(tool_name="web.edit", arguments={"text": {"$artifact": name}}, idempotency_key="edit")
    asked = await fleet.call(call, ADA)
    request = (await fleet.approvals.show(asked.audit.call_id)).request
    text = request.arguments["text"]
    await fleet.approvals.approve(asked.audit.call_id, Approver("command line", "bob", "user"), seen=request.binding)
    result = await fleet.call(call, ADA, waits_for_approval=20)

    assert text == {"$artifact": name, "sha256": hashlib.sha256(PAGE.encode()).hexdigest(), "size": len(PAGE.encode())}
    assert result.result == PAGE.replace("owl 7 ", "eagle 7 ")


async def test_a_wake_up_tells_a_preview(fleet: ToolFleet) -> None:
    """Of a job whose result is large: with the handle, by which its conversation reads on."""
    where = Conversation(conversation_id="c-1")
    job = await fleet.jobs.start(ToolCall(tool_name="web.rows"), conversation=where, caller=ADA)
    wake = await anext(aiter(fleet.wakeups.completions("c-1")))
    part = await called(fleet, "artifacts.read", id=wake.result["artifact"], pointer="/rows/1999/name")
    ended = await fleet.jobs.get(job.job_id, ADA)

    assert wake.is_truncated
    assert wake.result["preview"]["rows"][:3] == ROWS["rows"][:3]
    assert part.result["text"] == "owl 1999"
    assert ended is not None
    assert ended.result == wake.result  # of more than 64 kB the job keeps what is told


async def test_a_wake_up_is_whole_beside_a_kept_file(fleet: ToolFleet) -> None:
    """All files are kept: nothing of the result is left out for that."""
    await fleet.jobs.start(ToolCall(tool_name="web.draw"), conversation=Conversation(conversation_id="c-1"), caller=ADA)
    wake = await anext(aiter(fleet.wakeups.completions("c-1")))
    listed = (await called(fleet, "artifacts.list")).result["artifacts"]

    assert (wake.result, wake.is_truncated) == ({"rows": 3}, False)
    assert [each["tool_name"] for each in listed] == ["web.draw"]


async def test_a_job_keeps_what_its_end_tells(bed: Bed, fleet: ToolFleet, folder: Path) -> None:
    """Polls on the way leave nothing: no one is told their results, and they would fill the user's share."""
    where, poll = Conversation(conversation_id="c-1"), Poll(tool_name="web.state", until="status == 'over'")
    await bed.beat()
    await fleet.jobs.start(None, poll, conversation=where, caller=ADA)
    wake = await anext(aiter(fleet.wakeups.completions("c-1")))

    assert len(SEEN) == 3
    assert [each.name for each in folder.iterdir()] == [wake.result["artifact"]]


async def test_what_no_model_sees_is_not_kept(fleet: ToolFleet) -> None:
    """Such as a resource, which a gateway passes on to clients as it is."""
    result = await called(fleet, "web.mcp.resources.read")

    assert (result.result, result.artifacts) == (PAGE, ())


@pytest.mark.parametrize("new", ["another", "added", "another user's"])
async def test_an_approvers_edit_is_bound_as_the_callers_arguments(fleet: ToolFleet, new: str) -> None:
    """What is shown, approved and executed is one content; another user's artifact is refused."""
    first, second = await handle(fleet), await handle(fleet, "web.many", size=200_000)
    bobs = await handle(fleet, caller=BOB)
    before: Any = "x" * 100_000 if new == "added" else {"$artifact": first}
    call = ToolCall(tool_name="web.edit", arguments={"text": before}, idempotency_key="edit")
    asked = await fleet.call(call, ADA)
    approval, bob = asked.audit.call_id, Approver("command line", "bob", "user")
    seen = (await fleet.approvals.show(approval)).request.binding
    edit = {"text": {"$artifact": bobs if new == "another user's" else second}}
    if new == "another user's":
        with pytest.raises(ValueError, match="not yours"):
            await fleet.approvals.approve(approval, bob, seen=seen, arguments=edit)
        return
    await fleet.approvals.approve(approval, bob, seen=seen, arguments=edit)
    result = await fleet.call(call, ADA, waits_for_approval=20)

    shown = (await fleet.approvals.show(approval)).request.arguments["text"]
    assert shown["sha256"] == hashlib.sha256(b"x" * 200_000).hexdigest()
    assert result.result == "x" * 200_000


async def test_a_decided_approval_opens_nothing(fleet: ToolFleet) -> None:
    """Whoever has rejected a call reads its artifact no more."""
    name, bob = await handle(fleet), Approver("command line", "bob", "user")
    asked = await fleet.call(ToolCall(tool_name="web.edit", arguments={"text": {"$artifact": name}}), ADA)
    approval = asked.audit.call_id
    before = await fleet.artifacts.open_for_approval(name, approval, bob)
    await fleet.approvals.reject(approval, bob)

    assert before is not None
    assert await fleet.artifacts.open_for_approval(name, approval, bob) is None


async def test_the_sweep_deletes_no_file_of_others(bed: Bed, fleet: ToolFleet, folder: Path) -> None:
    """Neither next to its own folder, nor another fleet's, nor one that is no artifact; its own lost one goes."""
    await handle(fleet)
    lost = folder / "lost.1.0"
    others = [folder.parent.parent / "thesis.1.0", folder.parent / "other" / "a.1.0", folder / "thesis.txt"]
    for each in (lost, *others):
        each.parent.mkdir(exist_ok=True)
        each.write_text("years of work")
        os.utime(each, (1, 1))
    artifacts = Artifacts(bed.settings)
    await artifacts.sweep()
    await artifacts.aclose()

    assert [each.exists() for each in (lost, *others)] == [False, True, True, True]


async def test_a_listing_that_has_not_worked_is_made_again(
    bed: Bed, fleet: ToolFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an hour, and not after a day."""
    await handle(fleet)
    lost = folder / "lost.1.0"
    lost.write_text("owl")
    os.utime(lost, (1, 1))

    def fail(*_: Any, **__: Any) -> None:
        raise FileNotFoundError

    artifacts = Artifacts(bed.settings)
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "list", fail)
        with pytest.raises(ArtifactStoreAway):
            await artifacts.sweep()
    bed.kill_members()
    await asyncio.sleep(_AGAIN_SECONDS + 1)
    await artifacts.sweep()
    await artifacts.aclose()

    assert not lost.exists()


async def test_what_cannot_be_written_costs_no_result(bed: Bed, fleet: ToolFleet) -> None:
    """A success stays one, though its value is nested too deeply for JSON: it has no handle."""
    del fleet
    value: Any = "owl"
    for _ in range(40_000):
        value = [value]
    result, now = ToolResult.ok("web.page", value), fleet_clock.now()
    call = PublishedCall(
        call_id="c",
        tool_name="web.page",
        arguments={},
        user_id="ada",
        caller=ADA,
        effect="read",
        limit_seconds=60,
        published_at=now,
        deadline_at=now + 60,
    )

    assert await Artifacts(bed.settings).keep(call, result) is result


async def test_a_store_that_hangs_costs_no_call_its_result(fleet: ToolFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one with little time; and after one that has waited in vain, the next ones do not wait for it at all."""
    monkeypatch.setattr(obstore, "put", hang)
    call, took = ToolCall(tool_name="web.page"), list[float]()
    for seconds in (3, 3, 60, 60):
        began = fleet_clock.now()
        result = await fleet.call(call, ADA, timeout=seconds)
        took.append(fleet_clock.now() - began)
        assert (result.result, result.artifacts) == (PAGE, ())

    assert all(2 < each < 3 for each in took[:2])  # a call with little time says nothing about the store
    assert 9 < took[2] < 11
    assert took[3] < 0.1


async def test_a_slow_store_makes_no_queue(fleet: ToolFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what it can; the other results arrive without a handle, and soon."""
    put = obstore.put

    def slowly(*given: Any, **named: Any) -> Any:
        bridge: Any = getcurrent().parent
        drive(asyncio.sleep(3).__await__(), bridge.switch)
        return put(*given, **named)

    monkeypatch.setattr(obstore, "put", slowly)
    began = fleet_clock.now()
    results = await asyncio.gather(*(called(fleet, "web.page") for _ in range(12)))

    assert fleet_clock.now() - began < 4
    assert [len(each.artifacts) for each in results].count(1) == 4


async def test_without_the_store_nothing_is_sent(fleet: ToolFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that passes an artifact ends as one that had no effect, and readers get an answer in bounded time."""
    name = await handle(fleet)
    opened = await fleet.artifacts.open(name, ADA)
    monkeypatch.setattr(obstore, "get", hang)
    calls = (
        fleet.call(ToolCall(tool_name="web.once", arguments={"text": {"$artifact": name}}), ADA, timeout=5)
        for _ in range(3)
    )
    results = [*await asyncio.gather(*calls), await called(fleet, "artifacts.read", id=name)]
    assert opened is not None
    with pytest.raises(ArtifactStoreAway):
        await opened.read(0, 10)

    assert {(each.error_code, each.effect_state) for each in results} == {("fleet_unavailable", "none")}
    assert SEEN == []


async def test_a_profile_filters_values_at_every_door(bed: Bed, fleet: ToolFleet) -> None:
    """Also where the reader passes the artifact to another tool; JSON stays JSON."""
    name = await handle(fleet, "web.cards")
    hides = {"name": "pii", "pii_types": ["email", "credit_card"], "strategy": "redact", "apply_to": ["result"]}
    bed.given["agents"] = {"careful": {"middleware": [{**hides, "tools": ["web.cards"]}]}}
    await bed.worker()
    for site in bed._mortal[:1]:
        site.kill()
    careful, reader = await bed.agent(), ADA.model_copy(update={"agent": "careful"})
    row = await called(careful, "artifacts.read", reader, id=name, pointer="/rows/7")
    passed = await called(careful, "web.join", reader, data={"$artifact": name})
    opened = await careful.artifacts.open(name, reader)
    assert opened is not None

    hidden = {"mail": "[EMAIL]", "card": "[CREDIT_CARD]"}
    assert json.loads(row.result["text"]) == hidden
    assert passed.result["data"]["rows"][7] == hidden
    assert json.loads(await opened.read(0, opened.size))["rows"][7] == hidden


async def test_a_pattern_may_match_anywhere(fleet: ToolFleet) -> None:
    """Emptily, or single bytes: in the middle of a character there is no match."""
    name = await handle(fleet)
    for pattern in ("(?:)", "x*", r"\C"):
        found = await called(fleet, "artifacts.search", id=name, pattern=pattern, limit=50)
        assert [each["offset"] for each in found.result["matches"]] == [*range(50)]


async def test_a_worker_without_the_store_sends_no_handle(bed: Bed, fleet: ToolFleet) -> None:
    """Its tool would get that in place of a text: settings may be rolled out to agents first."""
    name = await handle(fleet)
    await bed.worker(artifact_store=None)
    for site in bed._mortal[:1]:
        site.kill()
    result = await called(fleet, "web.once", text={"$artifact": name})

    assert (result.error_code, result.effect_state) == ("fleet_unavailable", "none")
    assert SEEN == []


async def test_a_gate_lets_a_jobs_artifact_pass(bed: Bed, fleet: ToolFleet) -> None:
    """It is asked about the content when the job is made; another user's artifact makes none."""
    asked, where = list[Any](), Conversation(conversation_id="c-1")

    class Gate:
        async def check(self, tool: Any, context: Any) -> GateDecision:
            asked.append(str(context))
            return GateDecision(approved=True, reason="")

    name = await handle(fleet)
    call = ToolCall(tool_name="web.gated", arguments={"text": {"$artifact": name}})
    await bed.beat()
    async with ToolFleet(settings=bed.settings, gate=Gate()) as gated:
        await gated.jobs.start(call, conversation=where, caller=ADA)
        with pytest.raises(JobRefused):
            await gated.jobs.start(call, conversation=where, caller=BOB)
        wake = await anext(aiter(fleet.wakeups.completions("c-1")))

    assert wake.error is None
    assert hashlib.sha256(PAGE.encode()).hexdigest() in asked[0]
    assert SEEN == [{"text": PAGE}]


async def test_the_pages_program_runs(fleet: ToolFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model sees a preview, and the other tool gets the whole."""
    program = import_program(programs("docs/guides/artifacts.md")["artifacts"], tmp_path)

    assert hashlib.sha256(PAGE.encode()).hexdigest() in await program.save_page(fleet)
    assert "characters are left out: artifact " in capsys.readouterr().out
