"""`toolfleet queues`: how each is, and pausing, draining and resuming them; on a real Redis, without workers."""

import json
from typing import Any

import pytest
from redis import Redis

from support.command import Run

HELD = ('[{"body":"tools.crm"},"","tools.crm"]', '[{}, "toolfleet", "tools.crm"]')
OF_ANOTHER = '[{},"","tools.owls"]'


@pytest.fixture(autouse=True)
def _fleet(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two modules of the fast lane, and one of the slow one."""
    monkeypatch.setenv("TOOLFLEET_REDIS_URL", redis_url)
    monkeypatch.setenv(
        "TOOLFLEET_MODULE_SERVICES", json.dumps(dict.fromkeys(("crm", "owls", "larks"), "http://127.0.0.1:1"))
    )
    monkeypatch.setenv("TOOLFLEET_SLOW_MODULES", "larks")


def listed(run: Run) -> dict[str, dict[str, Any]]:
    return {queue["module"]: queue for queue in json.loads(run("queues", "list", "--json").out)}


def test_a_queue_is_paused_and_resumed(run: Run) -> None:
    """With who has done it and why; a second time changes nothing."""
    paused = run("queues", "pause", "crm", "--reason", "deploy", "--as", "olga")
    again = run("queues", "pause", "tools.crm", "--reason", "again")
    found, shown = listed(run), run("queues", "list").out
    resumed, twice = run("queues", "resume", "crm"), run("queues", "resume", "crm")

    assert (paused.code, again.code) == (0, 0)
    assert paused.out == "The queue of crm is paused: `toolfleet queues resume crm` ends it.\n"
    assert "already" in again.out
    crm = {name: found["crm"][name] for name in ("state", "by", "reason", "is_lanes")}
    assert crm == {"state": "paused", "by": "olga", "reason": "deploy", "is_lanes": False}
    assert (found["owls"]["state"], found["owls"]["since"]) == ("open", None)
    assert "by olga: deploy" in shown
    assert (resumed.out, "already" in twice.out) == ("The queue of crm is open.\n", True)
    assert listed(run)["crm"]["state"] == "open"
    changes = run("audit", "tail", "--changes").out
    assert [changes.count(word) for word in ("queue_paused", "queue_resumed", "deploy")] == [2, 2, 1]


def test_a_lane_is_drained(run: Run) -> None:
    """All its modules are, and they are resumed together."""
    assert run("queues", "drain", "lane:fast", "--wait", "5").code == 0
    found = listed(run)
    refused = run("queues", "resume", "owls")

    assert {name: (queue["state"], queue["is_lanes"]) for name, queue in found.items()} == {
        "crm": ("drained", True),
        "owls": ("drained", True),
        "larks": ("open", False),
    }
    assert (refused.code, "resume 'lane:fast'" in refused.err) == (1, True)
    assert run("queues", "resume", "lane:fast").code == 0


@pytest.mark.parametrize(("waiting", "held"), [(1, 2), (1, 0), (0, 2)])
def test_a_drain_that_is_not_over_ends_with_1(run: Run, redis_url: str, waiting: int, held: int) -> None:
    """And says what is left: what waits, and what workers hold."""
    with Redis.from_url(redis_url) as redis:
        for call in range(waiting):
            redis.lpush("tools.crm", f"call {call}")
        for tag, message in enumerate([OF_ANOTHER, *HELD[:held]]):
            redis.hset("unacked", f"w1-{tag}", message)
    left = run("queues", "drain", "crm", "--wait", "0.5")

    assert (left.code, left.err) == (1, f"In tools.crm {waiting} calls wait, and workers have {held}.\n")
    assert listed(run)["crm"]["state"] == "draining"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("crn", "There is no queue 'crn'. Perhaps 'crm'?"),
        ("slow", "Perhaps 'lane:slow'?"),
        ("zzz", "`toolfleet queues list` shows all."),
        ("toolfleet.control", "has the fleet's own tasks"),
    ],
)
@pytest.mark.parametrize("command", ["pause", "drain", "resume"])
def test_an_unknown_queue_is_an_error(run: Run, command: str, name: str, words: str) -> None:
    found = run("queues", command, name)
    assert (found.code, words in found.err) == (1, True)


def test_a_paused_queue_is_seen_where_an_operator_searches(run: Run) -> None:
    """In the status and among the modules, though nothing waits in it."""
    run("queues", "pause", "crm")
    status = json.loads(run("status", "--json").out)
    modules = {each["module"]: each["queue"] for each in json.loads(run("modules", "list", "--json").out)}

    assert [(queue["queue"], queue["state"]) for queue in status["queues"]] == [("tools.crm", "paused")]
    assert "paused" in run("status").out
    assert (modules["crm"], modules["owls"]) == ("paused", "open")
