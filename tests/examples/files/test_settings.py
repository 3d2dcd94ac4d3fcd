"""Where users' files are kept: what the environment says, and what cannot be right."""

import sqlite3
from pathlib import Path

import pytest
from pydantic import ValidationError

from modules.files import FileSettings, open_pipeline
from support.modules.example_modules import EXAMPLES


def test_by_default_files_lie_in_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder that `toolfleet up` makes; an empty variable is none."""
    for name in ("FILE_MANAGER_ROOT", "FILES_STORE", "FILES_DATABASE_URL"):
        monkeypatch.setenv(name, "")
    settings = FileSettings()
    assert settings.folder == EXAMPLES.parent / ".toolfleet" / "files"
    assert (settings.max_bytes, settings.max_files) == (2**20, 200)


async def test_a_folder_holds_contents_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`FILE_MANAGER_ROOT` names it; others on this machine cannot look into it."""
    monkeypatch.setenv("FILE_MANAGER_ROOT", str(tmp_path / "new" / "root"))
    monkeypatch.setenv("FILE_MANAGER_MAX_BYTES", "7")
    async with open_pipeline() as files:
        record = await files.save("ada", "owls.txt", b"1234567", "upload")
    root = tmp_path / "new" / "root"
    content = root / record.key
    assert content.read_bytes() == b"1234567"
    assert content.stat().st_mode & 0o077 == 0
    assert (root / "content").stat().st_mode & 0o077 == root.stat().st_mode & 0o077 == 0
    assert (root / "files.sqlite3").stat().st_mode & 0o077 == 0
    with sqlite3.connect(root / "files.sqlite3") as database:
        rows = database.execute("SELECT user_id, name, size, source FROM file_records").fetchall()
    database.close()
    assert rows == [("ada", "owls.txt", 7, "upload")]


async def test_an_open_folder_is_not_closed_to_others(tmp_path: Path) -> None:
    """It may be somebody else's; what lies in it is private all the same."""
    tmp_path.chmod(0o755)
    async with open_pipeline(FileSettings(root=tmp_path)) as files:
        await files.save("ada", "owls.txt", b"x", "upload")
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_a_store_is_chosen_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """`FILES_STORE`, `FILES_S3_ENDPOINT` and `FILES_DATABASE_URL`; the URL is not shown, it may hold a password."""
    monkeypatch.setenv("FILES_STORE", "s3://owls/prefix")
    monkeypatch.setenv("FILES_S3_ENDPOINT", "http://minio:9000")
    monkeypatch.setenv("FILES_DATABASE_URL", "postgresql://owl:secret@db/owls")
    settings = FileSettings()
    assert (settings.folder, settings.store, settings.s3_endpoint) == (None, "s3://owls/prefix", "http://minio:9000")
    assert "secret" not in repr(settings)
    open_pipeline(settings)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"store": "s3://owls"}, "FILES_DATABASE_URL must name the database"),
        ({"store": "s3:///prefix", "database_url": "sqlite:///x"}, "names no bucket"),
        ({"store": "gs://owls"}, "FILES_STORE must be a folder, or s3://bucket/prefix"),
        ({"s3_endpoint": "minio:9000"}, "FILES_S3_ENDPOINT must begin with http:// or https://"),
        ({"database_url": "secret"}, "FILES_DATABASE_URL is no URL"),
        ({"database_url": "mysql://u:secret@db/x"}, "FILES_DATABASE_URL must be of SQLite"),
        ({"database_url": "sqlite://"}, "FILES_DATABASE_URL must name a file"),
        ({"max_bytes": 0}, "greater than 0"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(values: dict[str, object], told: str) -> None:
    """At the start, in one sentence, without a password."""
    with pytest.raises(ValueError, match=told) as refused:
        open_pipeline(FileSettings.model_validate(values, by_name=True))
    assert "u:secret" not in str(refused.value)


def test_what_is_refused_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong is said without what else is set, such as the address of the database."""
    monkeypatch.setenv("FILES_DATABASE_URL", "postgresql://me:hush@host/db")
    monkeypatch.setenv("FILES_STORE", "ftp://owls")
    with pytest.raises(ValidationError, match="FILES_STORE must be") as caught:
        FileSettings()
    assert "hush" not in str(caught.value)
