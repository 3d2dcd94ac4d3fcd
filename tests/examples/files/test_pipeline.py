"""Users' files, in a folder and in S3, with SQLite and with PostgreSQL: the same facts for all four."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from modules.files import FilePipeline, FileRecord, FileRefused, FileSettings, FilesUnavailable
from modules.files.records import Records
from support.files.stored import PAIRS, loose_keys, stored_keys
from support.waiting import PATIENCE_SECONDS

pytestmark = PAIRS

USERS = [
    "ada",
    "Ada",  # some file systems do not tell capitals apart
    "%41da",
    "!41da",
    "../ada",
    "..",
    ".",
    "/",
    "ada/../ada",
    "ada\0",  # PostgreSQL stores no such text
    "ada ",
    "caf\u00e9",
    "cafe\u0301",
    "half\ud800",
    "ada@example.org",
    "\u202eada",
]


async def test_a_saved_file_is_read_and_listed(files: FilePipeline, other: FilePipeline) -> None:
    """By every process, with what is known of it."""
    before = datetime.now(UTC)
    record = await files.save("Ada Ü", "owls.csv", b"day,owls\n", "upload")

    assert await other.read("Ada Ü", "owls.csv") == b"day,owls\n"
    assert await other.find("Ada Ü", "owls.csv") == record
    assert await other.list("Ada Ü") == [record]
    assert (record.user_id, record.name, record.media_type, record.size) == ("Ada Ü", "owls.csv", "text/csv", 9)
    assert (record.source, record.version) == ("upload", 1)
    assert record.sha256 == hashlib.sha256(b"day,owls\n").hexdigest()
    assert before <= record.created_at <= datetime.now(UTC)
    assert await stored_keys(files) == {record.key}
    assert loose_keys(files) == set()


async def test_saving_again_replaces(files: FilePipeline, other: FilePipeline) -> None:
    """There is one file of a name, and one content."""
    first = await files.save("ada", "a", b"old", "upload")
    second = await other.save("ada", "a", b"new", "code_executor")

    assert await files.list("ada") == [second]
    assert await files.read("ada", "a") == b"new"
    assert (second.version, second.source) == (2, "code_executor")
    assert second.file_id != first.file_id
    assert await stored_keys(files) == {second.key}
    assert loose_keys(files) == set()


async def test_a_deleted_file_is_gone(files: FilePipeline) -> None:
    """Its content, too; deleting it again does nothing, and a new one begins anew."""
    await files.save("ada", "a", b"x", "upload")

    assert [await files.delete("ada", "a") for _ in range(2)] == [True, False]
    with pytest.raises(FileRefused, match="There is no file 'a'; list the files"):
        await files.read("ada", "a")
    assert (await stored_keys(files), loose_keys(files), await files.list("ada")) == (set(), set(), [])
    assert (await files.save("ada", "a", b"x", "upload")).version == 1


async def test_no_user_sees_anothers_files(files: FilePipeline) -> None:
    """Whatever a user is called."""
    for user in USERS:
        await files.save(user, "diary", user.encode("utf-8", "surrogatepass"), "upload")
    for user in USERS:
        assert await files.read(user, "diary") == user.encode("utf-8", "surrogatepass")
        assert [record.user_id for record in await files.list(user)] == [user]
    await files.delete("ada", "diary")
    assert len(await stored_keys(files)) == len(USERS) - 1
    assert await files.list("eve") == []


@pytest.mark.parametrize(
    "name", ["sales 2026.csv", "Übersicht.md", "日本語.txt", "🦉", "x" * 200, "%2e", "*", "a'b\"c;--"]
)
async def test_an_ordinary_name_is_kept(files: FilePipeline, name: str) -> None:
    """Other scripts, spaces inside, and what is special to others are fine."""
    await files.save("ada", name, b"x", "upload")
    assert [record.name for record in await files.list("ada")] == [name]
    assert await files.read("ada", name) == b"x"
    assert await files.delete("ada", name)


async def test_two_spellings_of_a_name_are_one_file(files: FilePipeline) -> None:
    """é as one character or as two is the same name."""
    await files.save("ada", "caf\u00e9", b"x", "upload")
    assert await files.read("ada", "cafe\u0301") == b"x"


async def test_a_stream_is_saved(files: FilePipeline) -> None:
    """As a whole, whatever its parts; one that breaks off leaves nothing."""

    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionResetError

    assert (await files.save("ada", "a", _chunks(10, 100), "upload")).size == 1000
    with pytest.raises(ConnectionResetError):
        await files.save("ada", "b", broken(), "upload")
    assert [record.name for record in await files.list("ada")] == ["a"]
    assert len(await stored_keys(files)) == 1


async def test_a_file_may_not_be_too_large(files: FilePipeline) -> None:
    """The old one stays; of a stream no more is read than is needed to know."""
    asked: list[int] = []
    await files.save("ada", "a", b"x" * 1000, "upload")
    with pytest.raises(FileRefused, match=r"^'a' would have 1001 bytes; 1000 are allowed\.$"):
        await files.save("ada", "a", b"x" * 1001, "upload")
    with pytest.raises(FileRefused, match=r"^'a' would have more than the 1000 bytes that are allowed\.$"):
        await files.save("ada", "a", _chunks(10**9, 100, asked), "upload")
    assert len(asked) == 11
    assert await files.read("ada", "a") == b"x" * 1000
    assert len(await stored_keys(files)) == 1


async def test_an_empty_file_is_a_file(files: FilePipeline) -> None:
    """No bytes are a content, too."""
    await files.save("ada", "a", b"", "upload")
    assert await files.read("ada", "a") == b""


async def test_a_user_may_not_have_too_many_files(files: FilePipeline) -> None:
    """Those that are there can still be replaced; another user is not concerned."""
    for name in "abc":
        await files.save("ada", name, b"x", "upload")
    with pytest.raises(FileRefused, match=r"^There are 3 files, the most allowed; delete one first\.$"):
        await files.save("ada", "d", b"x", "upload")
    await files.save("ada", "c", b"new", "upload")
    await files.save("eve", "d", b"x", "upload")
    assert (len(await stored_keys(files)), loose_keys(files)) == (4, set())


async def test_two_at_once_do_not_pass_the_limit(files: FilePipeline, other: FilePipeline) -> None:
    """Neither together: what is too much is refused, and leaves nothing."""
    saving = [side.save("ada", f"{n}", b"x", "upload") for n in range(8) for side in (files, other)]
    ended = await asyncio.gather(*saving, return_exceptions=True)

    assert {type(each) for each in ended if isinstance(each, BaseException)} == {FileRefused}
    records = await files.list("ada")
    assert len(records) == 3
    assert await stored_keys(files) == {record.key for record in records}
    assert loose_keys(files) == set()


async def test_of_two_that_save_one_name_the_last_one_stays(files: FilePipeline, other: FilePipeline) -> None:
    """One record, with the content that belongs to it; the others are gone from the store."""
    saving = [side.save("ada", "a", f"{n}".encode(), "upload") for n in range(8) for side in (files, other)]
    saved = await asyncio.gather(*saving)

    (last,) = await files.list("ada")
    assert sorted(record.version for record in saved) == [*range(1, 17)]
    assert last == max(saved, key=lambda record: record.version)
    assert hashlib.sha256(await files.read("ada", "a")).hexdigest() == last.sha256
    assert (await stored_keys(files), loose_keys(files)) == ({last.key}, set())


async def test_a_reader_never_sees_half_a_file(files: FilePipeline, other: FilePipeline) -> None:
    """Nor none, while it is replaced again and again."""
    contents = [letter * 1000 for letter in (b"a", b"b")]
    await files.save("ada", "a", contents[0], "upload")

    async def replace() -> None:
        for n in range(20):
            await other.save("ada", "a", contents[n % 2], "upload")

    writing = asyncio.create_task(replace())
    while not writing.done():
        assert await files.read("ada", "a") in contents
    await writing


async def test_a_content_that_somebody_changed_is_refused(files: FilePipeline) -> None:
    """Whatever its length; it can be replaced and deleted."""
    record = await files.save("ada", "a", b"mine", "upload")
    for foreign in (b"evil", b"x" * 10**6):
        await files.store.put(record.key, foreign)
        with pytest.raises(FileRefused, match="The content of 'a' was damaged"):
            await files.read("ada", "a")
    await files.save("ada", "a", b"mine", "upload")
    assert await files.read("ada", "a") == b"mine"


async def test_a_content_that_is_lost_is_said_to_be(files: FilePipeline) -> None:
    """The record can be deleted."""
    record = await files.save("ada", "a", b"mine", "upload")
    await files.store.delete(record.key)
    with pytest.raises(FileRefused, match="The content of 'a' is not in the store any more"):
        await files.read("ada", "a")
    assert await files.delete("ada", "a")


async def test_what_was_saved_when_more_was_allowed_is_not_read(files: FilePipeline, settings: FileSettings) -> None:
    """A reader's memory is bounded by its own setting."""
    await files.save("ada", "a", b"x" * 1000, "upload")
    files.max_bytes = 999
    with pytest.raises(FileRefused, match="'a' has 1000 bytes; 999 are allowed"):
        await files.read("ada", "a")


async def test_leftovers_are_swept_when_they_are_old(files: FilePipeline, other: FilePipeline) -> None:
    """Not before: a content that is being written has no record yet. What was swept gets none any more."""
    kept = await files.save("ada", "kept", b"x", "upload")
    swept: list[int] = []
    loop = asyncio.get_running_loop()

    def settle_late(owner: str, record: FileRecord) -> tuple[FileRecord, str | None]:
        for seconds in (3600, -5):  # as if it were in the future
            sweeping = asyncio.run_coroutine_threadsafe(other.sweep(older_than_seconds=seconds), loop)
            swept.append(sweeping.result(PATIENCE_SECONDS))
        return Records.settle(files.records, owner, record)

    files.records.settle = settle_late  # type: ignore[method-assign]
    with pytest.raises(FilesUnavailable, match="Saving 'a' took too long, and was given up; try again"):
        await files.save("ada", "a", b"x", "upload")

    assert swept == [0, 1]
    assert (await stored_keys(files), loose_keys(files)) == ({kept.key}, set())
    assert await files.list("ada") == [kept]


async def _chunks(count: int, size: int, asked: list[int] | None = None) -> AsyncIterator[bytes]:
    for n in range(count):
        if asked is not None:
            asked.append(n)
        yield b"x" * size
