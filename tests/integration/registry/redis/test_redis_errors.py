"""Why a Redis does not answer is said in words for people, and not in Python's."""

import errno

import pytest

from support.programs.closed_port import closed_port
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.redis_errors import answering, reason_of
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.store.redis import RedisToolRegistry


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # the second perhaps at several addresses
async def test_where_nobody_listens_that_is_said(host: str) -> None:
    """Asked with a loop or in a thread."""
    port = closed_port()
    url, said = f"redis://{host}:{port}/0", f"^Redis at {host}:{port} does not answer: nobody listens there$"
    async with async_client(url) as redis:
        with pytest.raises(FleetUnavailable, match=said):
            async with answering(redis, seconds=5):
                await redis.ping()
    with pytest.raises(FleetUnavailable, match=said):
        RedisToolRegistry(url).revision()


async def test_a_name_that_is_no_hosts_is_said() -> None:
    """As for a module."""
    async with async_client("redis://owls.invalid:6379/0") as redis:
        with pytest.raises(FleetUnavailable, match=r"does not answer: its host name cannot be resolved$"):
            async with answering(redis, seconds=20):
                await redis.ping()


def test_anything_else_is_said_as_it_comes() -> None:
    """Or, where nothing comes, in the words of who asked; what it was made of is looked at, and not for ever."""
    ring = ValueError("owls")
    ring.__context__ = ValueError("more owls")
    ring.__context__.__context__ = ring
    one = f"[Errno {errno.ECONNREFUSED}] Connect call failed"
    several = OSError(f"Multiple exceptions: {one} ('::1', 1), {one} ('127.0.0.1', 1)")

    assert reason_of(ring, "it is late") == "owls"
    assert reason_of(TimeoutError(), "it is late") == "it is late"
    assert reason_of(several, "it is late") == "nobody listens there"
