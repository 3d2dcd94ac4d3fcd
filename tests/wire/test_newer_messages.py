"""Messages of a version to come: a worker of today runs none of them, and loses none."""

import json
import time
import uuid
from collections.abc import Iterator

import pytest
from redis import Redis

from support.fleet import TestBed
from support.fleet_calls import FleetCalls
from support.module_server import ModuleServer
from support.published_call import published
from support.waiting import wait_until_sync
from support.worker_process import WorkerProcess
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.messages import json_text
from toolfleet_tasks.messages.envelope import TASK

KEYS = Keys()
NEWER = "5 other:1 v9"


@pytest.fixture
def calls(bed: TestBed, worker: WorkerProcess) -> Iterator[FleetCalls]:
    calls = FleetCalls(bed.settings)
    calls.redis.delete(KEYS.quarantine, KEYS.quarantined)
    yield calls
    calls.redis.zrem(KEYS.slots("fast"), NEWER)
    calls.close()


def send_newer(calls: FleetCalls) -> str:
    """Publish a call that needs a version of which nobody here has heard; returns its id."""
    call = published("owls.echo", call_id=str(uuid.uuid4()), effect="read")
    text = json.dumps({"v": json_text.VERSION + 1, **json.loads(json_text.dump(call)), "colour": "red"})
    calls.app.send_task(TASK, [text], queue="tools.owls", task_id=call.call_id, shadow="owls.echo")
    return call.call_id


def kept(redis: Redis) -> list[dict[str, str]]:
    """What lies in quarantine."""
    return [json.loads(str(item)) for item in redis.lrange(KEYS.quarantine, 0, -1)]


def test_a_newer_message_that_nobody_can_run_is_kept_and_its_call_ended(calls: FleetCalls, owls: ModuleServer) -> None:
    """Its caller hears that nothing was done, and why; an operator finds the message in quarantine."""
    owls.forget()
    (result,) = calls.results(send_newer(calls))

    assert (result["success"], result["error_code"], result["effect_state"]) == (False, "internal", "none")
    assert "workers are older" in result["error"]
    assert [(item["queue"], "colour" in item["message"]) for item in kept(calls.redis)] == [("tools.owls", True)]
    assert owls.requests == []


def test_a_newer_message_waits_for_a_newer_worker_while_there_is_one(
    calls: FleetCalls, worker: WorkerProcess, owls: ModuleServer
) -> None:
    """It is put back, again and again; when the last such worker has gone, it is told as above."""
    owls.forget()
    calls.redis.zadd(KEYS.slots("fast"), {NEWER: time.time()})
    call_id = send_newer(calls)
    wait_until_sync(lambda: worker.said().count(call_id) >= 2, "it was put back twice")

    assert kept(calls.redis) == []
    assert calls.status(call_id) == "PENDING"

    calls.redis.zrem(KEYS.slots("fast"), NEWER)
    (result,) = calls.results(call_id)
    assert "workers are older" in result["error"]
    assert len(kept(calls.redis)) == 1
    assert owls.requests == []
