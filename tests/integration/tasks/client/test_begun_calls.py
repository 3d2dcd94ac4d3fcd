"""Calls that another process goes on with: what is written down of them, and what whoever attaches may be sure of."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from support.module_server import ModuleServer
from support.streams.tcp_proxy import tcp_proxy
from toolfleet import Caller, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.contracts.calls import DeadLetter
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls import begun_calls, dispatcher
from toolfleet_tasks.calls.begun_calls import Owner

ADA = Owner("ada")
CALLER = Caller(user_id="ada", permission="owner", allowed_modules="*")
KEYS = Keys()


@pytest.fixture
def settings(redis_url: str, owls: ModuleServer) -> Settings:
    return Settings(redis_url=redis_url, module_services={"owls": owls.url})


@asynccontextmanager
async def _fleet(settings: Settings) -> AsyncGenerator[ToolFleet]:
    async with ToolFleet(settings=settings) as fleet:
        await fleet.modules.refresh()
        yield fleet


async def _begin_and_die(settings: Settings, *, seconds: float = 60) -> str:
    """A call that waits in its queue; the fleet that has begun it is left."""
    async with _fleet(settings) as fleet:
        call = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 4711})
        return (await fleet.begun_calls.begin(call, CALLER, ADA, timeout=seconds)).id


def _sent(fleet: ToolFleet) -> list[dict[str, Any]]:
    """The arguments of the calls that an agent publishes once more when an older worker comes."""
    session = fleet._sessions.here()
    assert session is not None
    return [call.arguments for call in session._pending()]


async def _end_elsewhere(settings: Settings, call_id: str) -> ToolResult:
    async with _fleet(settings) as fleet:
        handle = await fleet.begun_calls.attach(call_id, ADA)
        assert handle is not None
        result = await handle.end_within(20)
        assert result is not None
        return result


@pytest.fixture
def without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker will end the call a moment after its deadline."""
    monkeypatch.setattr(begun_calls, "_GRACE_SECONDS", 0)


async def test_a_begun_call_is_written_down_without_its_arguments(settings: Settings, redis: Redis) -> None:
    """What is written says whose it is, and expires; what a tool is given is nobody else's business."""
    call_id = await _begin_and_die(settings)

    text = str(await redis.get(KEYS.begun_call(call_id)))

    assert '"owner":"ada"' in text
    assert "4711" not in text
    assert 0 < await redis.ttl(KEYS.begun_call(call_id)) <= settings.result_ttl_seconds


async def test_a_call_is_kept_once_redis_has_confirmed_it(
    settings: Settings, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent and not answered may be nowhere: no other process knows it, until it is sent again, and answered."""
    monkeypatch.setattr(dispatcher, "_PUBLISH_SECONDS", 0.2)
    call = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 1})
    with tcp_proxy(urlsplit(redis_url).port or 0) as proxy:
        url = redis_url.replace(f":{urlsplit(redis_url).port}", f":{proxy.port}")
        async with _fleet(settings.model_copy(update={"redis_url": url})) as fleet, _fleet(settings) as other:
            assert await fleet.begun_calls.ping()  # whoever was silent for a while is asked first
            proxy.hold()
            begun = await fleet.begun_calls.begin(call, CALLER, ADA, timeout=60)
            was_kept, found_before = await begun.is_kept_within(0.1), await other.begun_calls.attach(begun.id, ADA)
            sent_before = _sent(fleet)
            proxy.release()
            is_kept, found = await begun.is_kept_within(20), await other.begun_calls.attach(begun.id, ADA)
            sent = _sent(fleet)

    assert (was_kept, found_before, sent_before) == (False, None, [])
    assert (is_kept, sent) == (True, [call.arguments])
    assert found is not None


async def test_only_who_has_published_a_call_publishes_it_once_more(settings: Settings) -> None:
    """When an older worker comes: who follows the call has neither its arguments nor its terms."""
    call = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 1})
    async with _fleet(settings) as fleet, _fleet(settings) as other:
        begun = await fleet.begun_calls.begin(call, CALLER, ADA, timeout=60)
        assert await other.begun_calls.attach(begun.id, ADA) is not None

        assert (_sent(fleet), _sent(other)) == ([call.arguments], [])


async def test_somebody_elses_call_is_unknown(settings: Settings) -> None:
    """Whoever asks for it learns as much as of an id that nobody has."""
    call_id = await _begin_and_die(settings)

    async with _fleet(settings) as fleet:
        assert await fleet.begun_calls.attach(call_id, Owner("bob")) is None
        assert await fleet.begun_calls.attach("00000000-0000-4000-8000-000000000000", ADA) is None


@pytest.mark.usefixtures("without_grace")
async def test_a_call_that_nobody_has_begun_has_done_nothing(settings: Settings) -> None:
    """At its deadline whoever follows it ends it: Redis has lost nothing, and no worker has written anything."""
    call_id = await _begin_and_die(settings, seconds=1)

    result = await _end_elsewhere(settings, call_id)

    assert (result.error_code, result.effect_state) == ("expired", "none")


@pytest.mark.usefixtures("without_grace")
async def test_nobody_is_sure_of_a_redis_with_other_data(settings: Settings, redis: Redis) -> None:
    """A worker may have begun it, and Redis have lost that: what happened is unknown."""
    call_id = await _begin_and_die(settings, seconds=1)
    await redis.set(KEYS.data_id, "another")

    result = await _end_elsewhere(settings, call_id)

    assert (result.error_code, result.effect_state) == ("timed_out", "unknown")


@pytest.mark.usefixtures("without_grace")
async def test_a_dead_letter_says_that_the_arguments_were_not_kept(settings: Settings, redis: Redis) -> None:
    """An operator does not replay a call without them by mistake."""
    call_id = await _begin_and_die(settings, seconds=1)
    await redis.set(KEYS.data_id, "another")
    await _end_elsewhere(settings, call_id)

    async with _fleet(settings) as fleet:
        (letter,) = await fleet.dead_letters.list()

    assert isinstance(letter, DeadLetter)
    assert (letter.call_id, letter.is_redacted) == (call_id, True)


async def test_a_call_is_taken_back_elsewhere(settings: Settings) -> None:
    """It has never begun, and both know it."""
    call_id = await _begin_and_die(settings)

    async with _fleet(settings) as fleet:
        handle = await fleet.begun_calls.attach(call_id, ADA)
        assert handle is not None
        await handle.cancel()
        result = await handle.end_within(0)

    assert result is not None
    assert (result.error_code, result.effect_state) == ("cancelled", "none")
    assert (await _end_elsewhere(settings, call_id)).error == result.error


async def test_a_refused_call_leaves_nothing(settings: Settings, redis: Redis) -> None:
    """What is in no queue is not written down."""
    async with _fleet(settings) as fleet:
        calls = [
            ToolCall(tool_name="owls.nap_once", arguments={"seconds": number}, idempotency_key="k") for number in (1, 2)
        ]
        begun, refused = [await fleet.begun_calls.begin(call, CALLER, ADA) for call in calls]

    assert refused.refusal is not None
    assert refused.refusal.error_code == "conflict"
    assert await redis.keys(KEYS.begun_call("*")) == [KEYS.begun_call(begun.id)]


async def test_a_joined_call_of_an_agents_is_followed_and_left_to_it(settings: Settings) -> None:
    """With the key of a call that an agent has made its owner hears of its end, and cancelling ends only the waiting."""
    async with _fleet(settings) as agent, _fleet(settings) as gateway:
        call = ToolCall(tool_name="owls.nap_once", arguments={"seconds": 1}, idempotency_key="k")
        first = await agent.submit(call, CALLER)
        joined = await gateway.begun_calls.begin(call, CALLER, ADA)
        attached = await gateway.begun_calls.attach(first.id, ADA)

        assert joined.id == first.id
        assert attached is not None
        assert attached.is_guest
        attached.leave()
        assert await first.status() == "queued"
