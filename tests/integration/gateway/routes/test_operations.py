"""What operators do over HTTP, to queues too, and what comes of it."""

import pytest
from redis.asyncio import Redis

from support.fleet import TestBed
from support.gateways.gateway_here import gateway_here
from support.gateways.keyed_gateway import KeyedGateway
from support.workers.dead_news import bury
from toolfleet import Caller, ToolCall, ToolFleet

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")


async def test_a_module_on_this_machine_is_added_where_the_setting_says_so(gateway: KeyedGateway, bed: TestBed) -> None:
    """By default HTTP adds modules at public addresses only: an operator elsewhere could have workers ask what only they reach."""
    urls = ("http://127.0.0.1:9", "http://localhost:9", "http://10.0.0.7", "http://[::1]:9", "http://0.0.0.0")
    with gateway_here(bed) as usual:
        async with usual.client(gateway.keys["olga"].text) as olga:
            bodies = [{"module": "stable", "url": url} for url in urls]
            answers = [await olga.post("/operations/modules", json=body) for body in bodies]
            placed = (await olga.get("/operations/modules")).json()["modules"]

    assert {answer.status_code for answer in answers} == {409}
    assert all("TOOLFLEET_MODULE_NETWORKS must name its network" in answer.json()["detail"] for answer in answers)
    assert "stable" not in {each["module"] for each in placed}


@pytest.mark.parametrize(("kind", "body"), [("wake-ups", None), ("dead-letters", {})])
async def test_a_dead_call_without_its_arguments_says_that_it_cannot_be_tried(
    gateway: KeyedGateway, bed: TestBed, kind: str, body: dict[str, str] | None
) -> None:
    """Its error code tells programs, at both resources that can try it; the letter stays."""
    async with Redis.from_url(bed.redis_url) as redis:
        await bury(redis, f"secret-{kind}", kind="call")
    refused = await gateway.post("olga", f"/operations/{kind}/secret-{kind}/replay", body)
    left = await gateway.delete("olga", f"/operations/dead-letters/secret-{kind}")

    assert (refused.status_code, refused.json()["error_code"]) == (409, "not_replayable")
    assert left.status_code == 204


async def test_who_may_not_change_leaves_no_line(gateway: KeyedGateway) -> None:
    """A request without the role ends before the change begins: nobody fills the audit with them."""
    start = (await gateway.get("vera", "/operations/audit", params={"limit": "1"})).json()["last"]
    refused = await gateway.post("vera", "/operations/tools/owls.fail/disable")
    found = (await gateway.get("vera", "/operations/audit", params={"after": start, "changes": "true"})).json()

    assert (refused.status_code, found["lines"]) == (403, [])


async def test_a_tools_versions_are_listed_and_rolled_back_to(gateway: KeyedGateway) -> None:
    """The one in force is marked; a version that there is not is refused; what has happened is among the events."""
    listed = (await gateway.get("vera", "/operations/tools/owls.echo/versions")).json()
    refused = await gateway.post("olga", "/operations/tools/owls.echo/rollback", {"version": "9.9"})
    await gateway.post("olga", "/operations/tools/owls.nap/disable")
    events = (await gateway.get("vera", "/operations/tools/events", params={"limit": "1"})).json()
    await gateway.post("olga", "/operations/tools/owls.nap/enable")

    assert [one["is_in_force"] for one in listed["versions"]] == [True]
    assert listed["versions"][0]["spec"]["tool_name"] == "owls.echo"
    assert (refused.status_code, "9.9" in refused.json()["detail"]) == (409, True)
    assert [(one["kind"], one["tool_name"]) for one in events["events"]] == [("disabled", "owls.nap")]
    assert set(events["found"]) >= {"added"}


async def test_the_audit_comes_in_pages(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """Each line is on one page, the latest first."""
    user = "pages"
    for number in range(5):
        call = ToolCall(tool_name="owls.echo", arguments={"number": number})
        assert (await fleet.call(call, OWNER.model_copy(update={"user_id": user}))).success
    calls, cursor = list[str](), dict[str, str]()
    while True:
        page = (await gateway.get("vera", "/operations/audit", params={"user": user, "limit": "2", **cursor})).json()
        calls += [line["call_id"] for line in page["lines"]]
        if "next" not in page:
            break
        cursor = {"cursor": page["next"]}

    assert len(calls) == len(set(calls)) == 5


async def test_a_dead_letter_is_shown_replayed_and_dropped(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """A replay runs it once more in its old caller's name; with other arguments it is judged by what the operator may do."""
    result = await fleet.call(ToolCall(tool_name="owls.garble", arguments={"owl": 1}), OWNER)
    call_id = result.audit.call_id
    path = f"/operations/dead-letters/{call_id}"
    listed = (await gateway.get("vera", "/operations/dead-letters", params={"kind": "call"})).json()
    shown = (await gateway.get("vera", path)).json()["letters"][0]
    changed = (await gateway.post("olga", f"{path}/replay", {"arguments": {"owl": 2}})).json()
    replayed = (await gateway.post("olga", f"{path}/replay", {})).json()
    new_id = replayed["result"]["audit"]["call_id"]
    dropped = [(await gateway.delete("olga", f"/operations/dead-letters/{new_id}")).status_code for _ in range(2)]

    assert call_id in {letter["id"] for letter in listed["letters"]}
    assert (shown["kind"], shown["body"]["arguments"]) == ("call", {"owl": 1})
    assert changed["result"]["error_code"] == "permission_denied"
    assert (replayed["result"]["success"], replayed["result"]["effect_state"]) == (False, "unknown")
    assert dropped == [204, 404]


async def test_dead_letters_are_searched(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """By words and age, page by page."""
    made = {str((await fleet.call(ToolCall(tool_name="owls.garble"), OWNER)).audit.call_id) for _ in range(3)}
    path, found, more = "/operations/dead-letters", list[str](), {"about": "OWLS.garble", "limit": "2"}
    for _ in range(20):
        page = (await gateway.get("vera", path, params=more)).json()
        found += [letter["id"] for letter in page["letters"]]
        if "next" not in page:
            break
        more = {**more, "cursor": page["next"]}
    old = (await gateway.get("vera", path, params={"min_age_seconds": "3600"})).json()
    for call_id in found:
        await gateway.delete("olga", f"{path}/{call_id}")

    assert len(found) == len(set(found))
    assert made <= set(found)
    assert old["letters"] == []


async def test_a_letter_is_shown_whatever_an_agent_calls_its_user(gateway: KeyedGateway, fleet: ToolFleet) -> None:
    """Half a surrogate pair, which no UTF-8 has, is U+FFFD for readers; no list fails by it."""
    caller = Caller(user_id="half \ud83e", permission="owner", allowed_modules="*")
    result = await fleet.call(ToolCall(tool_name="owls.garble"), caller)
    answers = [await gateway.get("vera", f"/operations/dead-letters{path}") for path in ("?about=half", "")]
    dropped = await gateway.delete("olga", f"/operations/dead-letters/{result.audit.call_id}?kind=call")

    assert [answer.status_code for answer in (*answers, dropped)] == [200, 200, 204]
    assert [each["subject"] for each in answers[0].json()["letters"]] == ["owls.garble for half \ufffd"]


QUEUE = "/operations/queues/owls"


async def state_of(gateway: KeyedGateway) -> tuple[str, str, str]:
    found = (await gateway.get("vera", "/operations/queues")).json()
    (one,) = [queue for queue in found["queues"] if queue["module"] == "owls"]
    return one["state"], one["by"], one["reason"]


async def test_a_queue_is_paused_drained_and_resumed(gateway: KeyedGateway) -> None:
    """Each answers how it was before; the same again changes nothing."""
    answers = [
        (await gateway.post("olga", QUEUE, {"action": action, "reason": "deploy"})).json()
        for action in ("pause", "pause", "drain")
    ]
    state = await state_of(gateway)
    one = (await gateway.get("vera", QUEUE)).json()
    resumed = (await gateway.post("olga", QUEUE, {"action": "resume"})).json()
    audit = (await gateway.get("vera", "/operations/audit", params={"tool": "owls"})).json()["lines"]

    assert [(answer["changed"], answer["before"]) for answer in answers] == [
        (True, "open"),
        (False, "paused"),
        (True, "paused"),
    ]
    assert (state[0] in {"draining", "drained"}, *state[1:]) == (True, "olga", "deploy")
    assert (one["count"], one["queues"][0]["queue"]) == (1, "tools.owls")
    assert (resumed["changed"], (await state_of(gateway))[0]) == (True, "open")
    lines = [line for line in audit if line.get("change", "").startswith("queue_")]
    assert [line["change"] for line in lines][:4] == ["queue_resumed", "queue_drained", "queue_paused", "queue_paused"]
    assert {(line["user_id"], line["outcome"]) for line in lines} == {("olga", "success")}
    assert [line["was"] for line in lines][:4] == ["draining", "paused", "paused", "open"]


async def test_an_unknown_queue_is_404_with_the_nearest_names(gateway: KeyedGateway) -> None:
    """A wrong action is 400 or 422, and the fleet's own queue 409."""
    unknown = await gateway.post("olga", "/operations/queues/owl", {"action": "pause"})
    own = await gateway.post("olga", "/operations/queues/toolfleet.control", {"action": "pause"})
    wrong = await gateway.post("olga", QUEUE, {"action": "sing"})

    assert (unknown.status_code, unknown.json()["error_code"]) == (404, "unknown_queue")
    assert "Perhaps 'owls'?" in unknown.json()["detail"]
    assert own.status_code == 409
    assert wrong.status_code in {400, 422}


async def test_a_lane_is_named_with_its_prefix(gateway: KeyedGateway) -> None:
    """All its queues are shown."""
    await gateway.post("olga", "/operations/queues/lane:slow", {"action": "pause"})
    found = (await gateway.get("vera", "/operations/queues/lane:slow")).json()
    scale = (await gateway.get("vera", "/scale/slow")).json()
    resumed = await gateway.post("olga", "/operations/queues/lane:slow", {"action": "resume"})

    assert all(queue["is_lanes"] and queue["lane"] == "slow" for queue in found["queues"])
    assert scale["paused"] == 0
    assert resumed.json()["changed"] is True
