"""Users' files in each kind of store, with their records in each kind of database."""

from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest

from modules.files import FilePipeline, FileSettings, open_pipeline
from support.servers.postgres import PostgresServer
from support.servers.s3_server import KEYS, S3Server, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Generator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Where contents lie."""
    if request.param == "folder":
        return {"store": str(tmp_path / "root")}
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    server: S3Server = request.getfixturevalue("s3")
    return {"store": f"s3://{server.make_bucket()}/some/prefix", "s3_endpoint": server.url}


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where records lie."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'records' / 'files.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url


@pytest.fixture
def settings(place: dict[str, Any], database: str) -> FileSettings:
    return _settings(database_url=database, max_bytes=1000, max_files=3, **place)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patience with stores and databases is half a second: tests would wait for its end."""
    for name in ("store._REQUEST_SECONDS", "store._TRIES_SECONDS", "database._PATIENCE_SECONDS"):
        monkeypatch.setattr(f"modules.files.{name}", 0.5)


@pytest.fixture
async def files(settings: FileSettings) -> AsyncIterator[FilePipeline]:
    async with open_pipeline(settings) as files:
        yield files


@pytest.fixture
async def other(settings: FileSettings) -> AsyncIterator[FilePipeline]:
    """As another process has it: nothing in common but the store and the database."""
    async with open_pipeline(settings) as files:
        yield files


@pytest.fixture
def local(tmp_path: Path) -> FileSettings:
    """Contents in a folder, records in SQLite beside them."""
    return FileSettings(root=tmp_path / "root", max_bytes=1000, max_files=3)


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileSettings:
    """Contents in S3, records in SQLite."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    database_url = f"sqlite:///{tmp_path / 'files.db'}"
    return _settings(store=f"s3://{s3.make_bucket()}", s3_endpoint=s3.url, database_url=database_url)


def _settings(**values: object) -> FileSettings:
    """By the fields' names, some of which type checkers know by their variables' only."""
    return FileSettings.model_validate(values, by_name=True)
