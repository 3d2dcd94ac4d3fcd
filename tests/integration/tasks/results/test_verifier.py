"""What is believed of a call: what is signed; and while older workers are at work, what is not."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.messages.signing import Signatures
from toolfleet_tasks.presence import LaneCapacity
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.results import verifier as verifier_module
from toolfleet_tasks.results.verifier import Verifier

KEY = "0123456789abcdef0123456789abcdef"
NOTES = Keys().slots("fast")


@pytest.fixture
async def line(redis_url: str) -> AsyncIterator[PipelinedConnection]:
    line = PipelinedConnection(connection_factory(redis_url), name="test")
    line.start()
    await line.connected()
    yield line
    await line.aclose()


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url, signing_key=KEY)


@pytest.fixture
def verifier(line: PipelinedConnection, settings: Settings) -> Verifier:
    return Verifier(line, settings)


async def note_older(redis_url: str) -> LaneCapacity:
    """A worker that does not sign, as older ones do not."""
    older = LaneCapacity(Settings(redis_url=redis_url), count=10)
    await older.note()
    return older


async def test_what_is_signed_is_believed_at_once(verifier: Verifier, settings: Settings) -> None:
    """For its call, and for nothing else; nobody need be asked."""
    signature = Signatures(settings, "result").of("call-1", "hoot")

    assert verifier.judge("call-1", "result", "hoot", signature) == "believed"
    assert verifier.judge("call-2", "result", "hoot", signature) == "refused"
    assert verifier.judge("call-1", "attempt", "hoot", signature) == "refused"


async def test_what_is_unsigned_is_refused_where_all_workers_sign(
    verifier: Verifier, settings: Settings, redis: Redis
) -> None:
    """Who is at work is looked up before."""
    await LaneCapacity(settings, count=10).note()

    assert verifier.judge("call-1", "result", "hoot", None) == "unsure"
    with capture_logs() as logs:
        assert not await verifier.believes("call-1", "result", "hoot", None)
    assert verifier.judge("call-1", "result", "hoot", None) == "refused"
    assert [(line["event"], line["call_id"], line["so_far"]) for line in logs] == [("forgery_refused", "call-1", 1)]


async def test_what_is_unsigned_is_believed_while_an_older_worker_is_at_work(
    verifier: Verifier, settings: Settings, redis_url: str
) -> None:
    """Beside new ones. It is counted, and warned of once a minute; what has a wrong signature is a forgery still."""
    await LaneCapacity(settings, count=10).note()
    await note_older(redis_url)

    with capture_logs() as logs:
        for number in range(3):
            assert await verifier.believes(f"call-{number}", "result", "hoot", None)
        assert not await verifier.believes("call-1", "result", "hoot", "ff" * 32)

    assert verifier.unsigned == 3
    assert [line["event"] for line in logs] == ["unsigned_believed", "forgery_refused"]


async def test_what_an_older_worker_has_left_is_believed_a_little_longer(
    verifier: Verifier, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last results are read after it has ended; then it counts no more."""
    older = await note_older(redis_url)
    assert await verifier.believes("call-1", "result", "hoot", None)
    await older.leave()
    assert await verifier.believes("call-2", "result", "hoot", None)
    monkeypatch.setattr(verifier_module, "_OLDER_COUNT_SECONDS", 0.0)
    monkeypatch.setattr(verifier_module, "_CHECK_COUNTS_SECONDS", 0.0)

    assert not await verifier.believes("call-3", "result", "hoot", None)


async def test_a_fleet_can_refuse_whatever_is_unsigned(
    line: PipelinedConnection, settings: Settings, redis_url: str
) -> None:
    """For whoever can write a result can write an older worker's note."""
    await note_older(redis_url)
    strict = Verifier(line, settings.model_copy(update={"require_signed_results": True}))

    assert strict.judge("call-1", "result", "hoot", None) == "refused"
    assert not await strict.believes("call-1", "result", "hoot", None)


async def test_a_redis_that_does_not_say_shows_no_older_worker(settings: Settings) -> None:
    """It fails closed, within a second."""
    line = PipelinedConnection(connection_factory("redis://127.0.0.1:1/0"), name="test")
    line.start()
    verifier = Verifier(line, settings)
    try:
        assert not await verifier.believes("call-1", "result", "hoot", None)
    finally:
        await line.aclose()


async def test_a_fleet_without_a_key_believes_what_it_always_did(line: PipelinedConnection, redis_url: str) -> None:
    """A signature means nothing to it."""
    verifier = Verifier(line, Settings(redis_url=redis_url))

    for signature in (None, "ff" * 32):
        assert verifier.judge("call-1", "result", "hoot", signature) == "believed"
    assert await verifier.believed("call-1", b"hoot") == "hoot"


async def test_many_forgeries_are_counted_and_seldom_told(verifier: Verifier) -> None:
    """Whoever sends thousands does not fill the log."""
    with capture_logs() as logs:
        for number in range(500):
            verifier.refuse(f"call-{number}", "result", is_signed=True)

    assert verifier.refused == 500
    assert 1 <= len(logs) < 100


@pytest.mark.parametrize(
    "stored", [b"", b"hoot", b"\xff\xfe", b"[" * 100_000, b'{"status": 7}', b'{"status": "SUCCESS"}']
)
async def test_what_stands_in_a_results_place_is_refused_whatever_it_is(verifier: Verifier, stored: bytes) -> None:
    """As if it had expired."""
    assert await verifier.believed("call-1", stored) == ""
