"""A session of the console ends by itself after a working day, and at once when its person signs out."""

import pytest
from redis.asyncio import Redis

from toolfleet_gateway.auth.own_secrets import FleetCodec
from toolfleet_gateway.console.sessions import COOKIE, LASTS_SECONDS, ConsoleSessions
from toolfleet_registry.redis.keys import GatewayKeys, Keys
from toolfleet_registry.system import fleet_clock


async def test_a_session_ends_with_its_day_or_its_person(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for copies of its cookie, and for pages that are open."""
    keys = GatewayKeys(Keys())
    sessions = ConsoleSessions(FleetCodec(redis, keys, (), purpose="console session"), redis, keys)
    day, left = [{COOKIE: await sessions.begin("tf_k1_secret")} for _ in range(2)]
    ours, signed_out = await sessions.find(day), await sessions.find(left)
    assert ours is not None
    assert signed_out is not None
    until = ours.until

    await sessions.end(signed_out)
    monkeypatch.setattr(fleet_clock, "now", lambda: until - 1)
    assert [await sessions.has_ended(each) for each in (ours, signed_out)] == [False, True]
    assert [await sessions.find(cookies) for cookies in (day, left)] == [ours, None]
    monkeypatch.setattr(fleet_clock, "now", lambda: until)
    assert await sessions.has_ended(ours)
    assert await sessions.find(day) is None
    assert LASTS_SECONDS == 12 * 3600
