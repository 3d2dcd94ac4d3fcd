"""The four registries that every test of the contract runs over."""

from collections.abc import Callable, Iterator

import pytest

from toolfleet.stores import InMemoryToolRegistry, RedisToolRegistry, SQLToolRegistry, ToolRegistry
from toolfleet_registry.redis.keys import Keys


@pytest.fixture
def key_prefix() -> str:
    return "acme:"


@pytest.fixture
def registries(store_url: str, key_prefix: str) -> Iterator[Callable[[], ToolRegistry]]:
    """Opens another registry on the same data; but in memory, where it is the same."""
    opened = list[ToolRegistry]()

    def open_another() -> ToolRegistry:
        if not store_url:
            opened[:] = opened or [InMemoryToolRegistry()]
        elif store_url.startswith("redis"):
            opened.append(RedisToolRegistry(store_url, Keys(key_prefix)))
        else:
            opened.append(SQLToolRegistry(store_url))
        return opened[-1]

    yield open_another
    for each in opened:
        each.close()


@pytest.fixture
def registry(registries: Callable[[], ToolRegistry]) -> ToolRegistry:
    return registries()
