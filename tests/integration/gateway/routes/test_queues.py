"""What operators do to queues over HTTP: each is as it says, and the audit has who has done it and why."""

from support.gateways.keyed_gateway import KeyedGateway

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
