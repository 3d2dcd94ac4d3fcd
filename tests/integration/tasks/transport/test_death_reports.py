"""What a report of a dead worker changes in Redis, whose it must be, and what it leaves alone."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.workers.held_messages import KEYS, QUEUE, STORE, message
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock
from toolfleet_tasks.transport.leases import (
    NOTE_VARIABLE,
    DeathReports,
    WorkerNote,
    read_note,
    start_of,
    write_note,
)

HOLDER, OTHER = "ada0ada0ada0", "b0bb0bb0bb0b"
NOTE = WorkerNote(HOLDER, "host", 5, 6)


@pytest.fixture
def reports(redis_url: str) -> DeathReports:
    return DeathReports(Settings(redis_url=redis_url))


def hold(redis: Any, tag: str, call_id: str, *, token: str, effect: str | None) -> None:
    """Have a worker hold a call's message under this tag, and its claim under this token, for a long time."""
    seconds = int(redis.time()[0])
    redis.hset(STORE.unacked, tag, f'[{message(call_id).decode()},"","{QUEUE}"]')
    redis.zadd(STORE.unacked_index, {tag: seconds})
    fields: dict[str, str | int] = {"token": token, "lease": (seconds + 100) * 1000, "as": "go", "begun": 1}
    redis.hset(KEYS.call(call_id), mapping=fields if effect is None else {**fields, "effect": effect})
    redis.expire(KEYS.call(call_id), 100)


def waits(redis: Any, call_id: str) -> bool:
    """Whether the call's message is in its queue again."""
    return any(call_id in item for item in redis.lrange(QUEUE, 0, -1))


def is_over(redis: Any, call_id: str) -> bool:
    """Whether its lease is."""
    return int(str(redis.hget(KEYS.call(call_id), "lease"))) <= int(redis.time()[0]) * 1000 + 1000


@pytest.mark.parametrize(
    ("token", "effect", "ends"),
    [
        (f"{HOLDER}~5f0~worker", "read", True),
        (f"w{HOLDER}-3-0~5f0~worker", "read", True),
        (f"{HOLDER}-7", "idempotent", True),
        (f"{HOLDER}~5f0~worker", "once", False),
        (f"{HOLDER}~5f0~worker", "", False),
        (f"{HOLDER}~5f0~worker", None, False),
        (f"{OTHER}~5f0~worker", "read", False),
        (f"w{OTHER}-3-0~5f0~worker", "read", False),
        ("parked", "read", False),
    ],
)
def test_a_claim_ends_with_its_worker_where_a_repeat_does_no_harm(
    redis: Redis, reports: DeathReports, token: str, effect: str | None, ends: bool
) -> None:
    """And only if it is that worker's: the message is put back in any case, and says who has died with it."""
    hold(redis, f"w{HOLDER}-1-0", "one", token=token, effect=effect)
    reports.add(NOTE)
    reports.tend()

    assert waits(redis, "one")
    assert f'"died":"{HOLDER}"' in str(redis.lindex(QUEUE, -1))
    assert is_over(redis, "one") is ends


def test_messages_of_others_stay_where_they_are(redis: Any, reports: DeathReports) -> None:
    """Also those of a worker whose name begins alike."""
    for tag, call_id in ((f"w{OTHER}-1-0", "two"), (f"w{HOLDER}1-1-0", "three")):
        hold(redis, tag, call_id, token=f"{OTHER}~1~w", effect="read")
    reports.add(NOTE)
    reports.tend()

    assert redis.hlen(STORE.unacked) == 2
    assert min(score for _, score in redis.zrange(STORE.unacked_index, 0, -1, withscores=True)) > 1
    assert not waits(redis, "two")


def test_a_worker_that_is_connected_has_not_died(redis: Redis, reports: DeathReports) -> None:
    """Whatever its parent says. The report is made again, and counts once the connection is gone."""
    hold(redis, f"w{HOLDER}-1-0", "one", token=f"{HOLDER}~1~w", effect="read")
    reports.add(NOTE)
    with redis.pubsub() as listening:
        listening.subscribe(KEYS.holder(HOLDER))
        listening.get_message(timeout=PATIENCE_SECONDS)
        reports.tend()

        assert not waits(redis, "one")
        assert not is_over(redis, "one")
        assert redis.zscore(STORE.unacked_index, f"w{HOLDER}-1-0") != 1

    def is_back() -> bool:
        reports.tend()
        return waits(redis, "one")

    wait_until_sync(is_back, "its message is back")
    assert is_over(redis, "one")


@pytest.mark.parametrize(
    "item",
    ["x", "[]", '["x","","tools.owls"]', '[{"headers":5},"","tools.owls"]', '[{"headers":{"id":5}},"","tools.owls"]'],
)
def test_what_is_no_call_does_not_keep_others(redis: Redis, reports: DeathReports, item: str) -> None:
    """A message that cannot be read, and a record of another type."""
    redis.hset(STORE.unacked, f"w{HOLDER}-1-1", item)
    redis.zadd(STORE.unacked_index, {f"w{HOLDER}-1-1": 5})
    hold(redis, f"w{HOLDER}-1-0", "one", token=f"{HOLDER}~1~w", effect="read")
    redis.delete(KEYS.call("one"))
    redis.lpush(KEYS.call("one"), "no record")
    redis.expire(KEYS.call("one"), 100)
    reports.add(NOTE)
    reports.tend()

    assert waits(redis, "one")


def test_a_report_waits_for_redis(redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises nothing, and is made again, and once more after that: the worker may have asked for a message last."""
    settings, now = Settings(redis_url="redis://127.0.0.1:1/0"), [1000.0]
    monkeypatch.setattr(machine_clock, "monotonic", lambda: now[0])
    reports = DeathReports(settings)
    hold(redis, f"w{HOLDER}-1-0", "one", token=f"{HOLDER}~1~w", effect="read")
    reports.add(NOTE)
    reports.tend()
    reports._settings = Settings(redis_url=redis_url)
    reports.tend()  # too soon
    assert not waits(redis, "one")
    for call_id in ("one", "two"):
        hold(redis, f"w{HOLDER}-{call_id}-0", call_id, token=f"{HOLDER}~1~w", effect="read")
        now[0] += 4
        reports.tend()
        assert waits(redis, call_id)
    hold(redis, f"w{HOLDER}-9-0", "three", token=f"{HOLDER}~1~w", effect="read")
    now[0] += 4
    reports.tend()

    assert not waits(redis, "three"), "two reports that Redis has taken are enough"


def test_workers_at_rabbitmq_are_not_reported(redis_url: str) -> None:
    """It sees by itself that their connections end."""
    reports = DeathReports(Settings(redis_url=redis_url, broker_url="amqp://127.0.0.1:1//"))
    reports.add(NOTE)

    assert reports._reports == []


@pytest.mark.parametrize(
    ("text", "is_it"),
    [
        ("{holder} {host} {pid} {began}\n", True),
        ("{holder} {host} {pid} {began}", False),
        ("{holder} elsewhere {pid} {began}\n", False),
        ("{holder} {host} 1 {began}\n", False),
        ("{holder} {host} {pid} 1\n", False),
        ("x* {host} {pid} {began}\n", False),
        ("", False),
    ],
)
def test_a_parent_believes_the_note_of_its_very_child(tmp_path: Path, text: str, is_it: bool) -> None:
    """Not one of another host, process or start, nor half of one."""
    pid, path = os.getpid(), tmp_path / "worker.note"
    began = start_of(pid)
    path.write_text(text.format(holder=HOLDER, host=socket.gethostname(), pid=pid, began=began))
    found = read_note(path, pid=pid, began=began)

    assert found == (WorkerNote(HOLDER, socket.gethostname(), pid, began) if is_it else None)
    assert read_note(tmp_path / "none.note", pid=pid, began=began) is None


def test_a_worker_notes_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its parent wants that; else, and where it cannot, it goes on without."""
    path = tmp_path / "worker.note"
    write_note(HOLDER)
    monkeypatch.setenv(NOTE_VARIABLE, str(path))
    write_note(HOLDER)
    monkeypatch.setenv(NOTE_VARIABLE, str(tmp_path))
    write_note(OTHER)

    note = read_note(path, pid=os.getpid(), began=start_of(os.getpid()))
    assert note is not None
    assert note.holder == HOLDER
