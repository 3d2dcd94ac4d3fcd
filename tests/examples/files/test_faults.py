"""Users' files when processes die, and when the store or the database is away, silent, or not what it was."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from modules.files import FilePipeline, FileRecord, FileRefused, FileSettings, FilesUnavailable, open_pipeline, pipeline
from modules.files.records import Records
from support.files import file_saver
from support.files.stored import PAIRS, loose_keys, stored_keys
from support.modules.example_modules import EXAMPLES
from support.servers.postgres import PostgresServer, connections_to
from support.servers.s3_server import S3Server
from toolfleet_cli.local.redis_server import free_port

BOUND_SECONDS = 20  # more than any operation may take, on a busy machine


@pytest.mark.fleet
@PAIRS
@pytest.mark.parametrize("step", file_saver.STEPS)
async def test_a_process_that_is_killed_leaves_one_whole_file(
    files: FilePipeline, settings: FileSettings, step: str
) -> None:
    """The old content or the new one, wherever it dies; the next sweep leaves no other content in the store."""
    await files.save("ada", "a", b"old", "upload")
    saver = _start(settings, "new", count=1, step=step)
    saver.communicate(b"\n")
    assert saver.returncode == -signal.SIGKILL

    is_recorded = step in {"deleting", "forgetting"}
    assert await files.read("ada", "a") == (b"new0" if is_recorded else b"old")
    assert await files.sweep(older_than_seconds=-5) == (step != "announcing")
    (record,) = await files.list("ada")
    assert (await stored_keys(files), loose_keys(files)) == ({record.key}, set())
    assert await files.read("ada", "a") == (b"new0" if is_recorded else b"old")


@pytest.mark.fleet
@PAIRS
async def test_two_processes_save_the_same_name(files: FilePipeline, settings: FileSettings) -> None:
    """Nothing is lost but what was replaced: ten times each, and one whole content of one of them in the end."""
    savers = [_start(settings, letter, count=10, step="none") for letter in "ab"]
    for saver in savers:
        assert saver.stdout is not None
        assert saver.stdout.readline() == b"ready\n"
    for saver in savers:
        assert saver.stdin is not None
        saver.stdin.write(b"\n")
        saver.stdin.flush()
    ended = await asyncio.gather(*(asyncio.to_thread(saver.communicate) for saver in savers))
    assert [(saver.returncode, errors) for saver, (_, errors) in zip(savers, ended, strict=True)] == [(0, b"")] * 2

    (record,) = await files.list("ada")
    assert record.version == 20
    assert await files.read("ada", "a") in {b"a9", b"b9"}
    assert (await stored_keys(files), loose_keys(files)) == ({record.key}, set())


async def test_a_save_whose_end_was_not_heard_of_keeps_its_content(files: FilePipeline) -> None:
    """The database has it, and its answer was lost: a sweep does not take for a leftover what a record names."""

    def lose_the_answer(owner: str, record: FileRecord) -> tuple[FileRecord, str | None]:
        Records.settle(files.records, owner, record)
        raise FilesUnavailable("lost")

    files.records.settle = lose_the_answer  # type: ignore[method-assign]
    with pytest.raises(FilesUnavailable):
        await files.save("ada", "a", b"x", "upload")
    assert await files.sweep(older_than_seconds=-5) == 0
    assert await files.read("ada", "a") == b"x"


async def test_a_cancelled_save_leaves_nothing_for_ever(files: FilePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is swept."""
    began = asyncio.Event()

    async def wait(*_: object) -> None:
        began.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(files.store, "put", wait)
        saving = asyncio.create_task(files.save("ada", "a", b"x", "upload"))
        await began.wait()
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
    assert len(loose_keys(files)) == 1
    assert await files.sweep(older_than_seconds=-5) == 1
    assert loose_keys(files) == set()


async def test_a_content_that_cannot_be_deleted_now_is_deleted_later(
    files: FilePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing and deleting succeed all the same."""

    async def refuse(_key: str) -> None:
        raise FilesUnavailable("away")

    await files.save("ada", "a", b"1", "upload")
    with monkeypatch.context() as patch:
        patch.setattr(files.store, "delete", refuse)
        await files.save("ada", "a", b"2", "upload")
        assert await files.delete("ada", "a")
        assert await files.sweep() == 0
    assert len(await stored_keys(files)) == 2
    assert await files.sweep() == 2
    assert (await stored_keys(files), loose_keys(files)) == (set(), set())


@pytest.mark.fleet
async def test_half_a_content_is_swept(tmp_path: Path) -> None:
    """A process that is killed while it writes to a folder leaves a draft there: it goes with the rest."""
    settings = FileSettings(root=tmp_path / "root", max_bytes=2**30)
    saver = _start(settings, "x" * 400, count=1, step="drafting")
    saver.communicate(b"\n")
    assert saver.returncode == -signal.SIGKILL
    (draft,) = (settings.root / "content" / "ada").iterdir()
    assert "#" in draft.name
    async with open_pipeline(settings) as files:
        assert await files.sweep(older_than_seconds=-5) == 1
        assert [*(settings.root / "content" / "ada").iterdir()] == []


@pytest.mark.fleet
async def test_a_pipeline_sweeps_of_its_own_accord(local: FileSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """When something is saved, and then not again for a while."""
    saver = _start(local, "new", count=1, step="recording")
    saver.communicate(b"\n")
    monkeypatch.setattr(pipeline, "_LEFTOVER_SECONDS", -5)
    async with open_pipeline(local) as files:
        record = await files.save("ada", "b", b"x", "upload")
        assert await stored_keys(files) == {record.key}


async def test_a_save_that_fails_leaves_the_old_file(local: FileSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no half one for long. A full disk cannot be had in a test: fsync stands in for it."""

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    async with open_pipeline(local) as files:
        record = await files.save("ada", "a", b"old", "upload")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(FilesUnavailable, match="The file store does not answer"):
                await files.save("ada", "a", b"new", "upload")
        assert await files.read("ada", "a") == b"old"
        assert await files.sweep(older_than_seconds=-5) == 1
        assert await stored_keys(files) == {record.key}


async def test_a_folder_that_was_removed_is_made_anew(local: FileSettings) -> None:
    """What was in it is lost, and at most one call is."""
    async with open_pipeline(local) as files:
        await files.save("ada", "a", b"x", "upload")
        shutil.rmtree(local.root)
        with pytest.raises(FilesUnavailable):
            await files.read("ada", "a")
        assert await files.list("ada") == []
        await files.save("ada", "b", b"y", "upload")
        assert await files.read("ada", "b") == b"y"
        assert (local.root / "content").stat().st_mode & 0o077 == 0


async def test_no_descriptor_is_left_open(local: FileSettings) -> None:
    """Refused uses included."""
    async with open_pipeline(local) as files:
        record = await files.save("ada", "a", b"x", "upload")
        await files.store.put(record.key, b"y")
        before = _descriptors_below(local.folder)
        for name in ("a", "missing", "../a"):
            with pytest.raises(FileRefused):
                await files.read("ada", name)
        await files.save("ada", "a", b"y", "upload")
        assert await files.delete("ada", "a")
        assert _descriptors_below(local.folder) == before


@pytest.mark.usefixtures("hasty")
async def test_a_frozen_store_is_an_error_in_time(bucket: FileSettings, s3: S3Server) -> None:
    """It takes connections and says nothing. Later all is as it was."""
    async with open_pipeline(bucket) as files:
        await files.save("ada", "a", b"x", "upload")
        await _assert_away(files, s3.frozen)
        assert await files.read("ada", "a") == b"x"


@pytest.mark.usefixtures("hasty", "no_collector")
async def test_a_frozen_database_is_an_error_in_time(postgres: PostgresServer, tmp_path: Path) -> None:
    """The same. What has failed is closed at once, and not when the garbage collector finds it."""
    async with open_pipeline(
        FileSettings.model_validate({"root": tmp_path, "database_url": postgres.url}, by_name=True)
    ) as files:
        await files.save("ada", "a", b"x", "upload")
        await _assert_away(files, lambda: _frozen(postgres))
        assert connections_to(postgres.port) == []
        assert await files.read("ada", "a") == b"x"


@pytest.mark.parametrize("what", ["endpoint", "bucket", "database", "folder", "keys"])
async def test_a_store_that_is_not_there_is_an_error_in_time(
    bucket: FileSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """One sentence, without an address; a missing bucket is not a missing file."""
    nobody = f"127.0.0.1:{free_port()}"
    (tmp_path / "file").touch()
    settings = {
        "endpoint": lambda: bucket.model_copy(update={"s3_endpoint": f"http://{nobody}"}),
        "bucket": lambda: bucket.model_copy(update={"store": "s3://missing"}),
        "database": lambda: bucket.model_copy(update={"database_url": f"postgresql+pg8000://u:pw@{nobody}/db"}),
        "folder": lambda: FileSettings(root=tmp_path / "file" / "root"),
        "keys": lambda: bucket,
    }[what]()
    if what == "keys":  # then it asks the machine's own service for them, which is not there
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{nobody}")
    began = time.monotonic()
    async with open_pipeline(settings) as files:
        with pytest.raises(
            FilesUnavailable, match=r"^The (file store|database of file records) does not answer"
        ) as told:
            await files.save("ada", "a", b"x", "upload")
    assert time.monotonic() - began < BOUND_SECONDS
    assert not any(secret in str(told.value) for secret in (nobody, "pw", str(tmp_path), "secret"))


@pytest.mark.usefixtures("hasty")
async def test_a_locked_database_is_an_error_in_time(local: FileSettings, tmp_path: Path) -> None:
    """A process that stands still in a transaction holds up those that write, not those that read."""
    async with open_pipeline(local) as files, open_pipeline(local) as other:
        await files.save("ada", "a", b"x", "upload")
        with other.records._database.writing(0):
            assert await files.read("ada", "a") == b"x"
            began = time.monotonic()
            with pytest.raises(FilesUnavailable, match="The database of file records does not answer"):
                await files.save("ada", "a", b"y", "upload")
            assert time.monotonic() - began < BOUND_SECONDS
        assert (await files.save("ada", "a", b"y", "upload")).version == 2


def _descriptors_below(folder: Path | None) -> list[Path]:
    """What this process has open there; elsewhere others may open and close something meanwhile."""
    assert folder is not None
    found = list[Path]()
    for descriptor in Path("/dev/fd").iterdir():
        with suppress(OSError):
            found.append(descriptor.readlink())
    return sorted(path for path in found if path.is_relative_to(folder))


@contextmanager
def _frozen(postgres: PostgresServer) -> Generator[None]:
    """With the processes that serve connections, which are in groups of their own."""
    servants = psutil.Process(postgres.process.pid).children(recursive=True)
    with postgres.frozen():
        for servant in servants:
            servant.suspend()
        try:
            yield
        finally:
            for servant in servants:
                servant.resume()


async def _assert_away(files: FilePipeline, frozen: Callable[[], AbstractContextManager[None]]) -> None:
    with frozen():
        began = time.monotonic()
        uses = [files.save("ada", "b", b"x", "upload"), files.read("ada", "a")]
        ended = await asyncio.gather(*uses, return_exceptions=True)
        assert time.monotonic() - began < BOUND_SECONDS
    assert [type(each) for each in ended] == [FilesUnavailable] * 2


def _start(settings: FileSettings, content: str, *, count: int, step: str) -> subprocess.Popen[bytes]:
    assert file_saver.__file__ is not None
    words = [settings.model_dump_json(), "ada", "a", content, str(count), step]
    return subprocess.Popen(
        [sys.executable, file_saver.__file__, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
    )
