"""What tests of the transport ask Redis with: they do that between two steps of the loop."""

from collections.abc import Iterator

import pytest
from redis import Redis


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        yield redis
