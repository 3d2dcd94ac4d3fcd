"""Users' files: no name, link or user id leads out of a user's own folder."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modules.service import ToolError
from modules.user_files import FileSettings, UserFiles


@pytest.fixture
def settings(tmp_path: Path) -> FileSettings:
    return FileSettings(root=tmp_path / "root", max_bytes=1000, max_files=3)


@pytest.fixture
def files(settings: FileSettings) -> UserFiles:
    files = UserFiles.of("ada", settings)
    files.write("own.txt", b"mine")
    return files


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside.txt"
    path.write_text("secret")
    return path


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../outside.txt",
        "../ada/own.txt",
        "/etc/passwd",
        "folder/own.txt",
        "folder\\own.txt",
        ".hidden",
        "nul\0byte",
        "line\nbreak",
        "carriage\rreturn",
        "tab\there",
        " leading",
        "trailing ",
        "no\u00a0break",
        "line\u2028separator",
        "zero\u200bwidth",
        "right\u202eleft",  # shows txt.exe as exe.txt
        "half\ud800",
        "byte\udcff",  # what Python makes of a file name that is not UTF-8
        "private\ue000use",
        "x" * 201,
        "é" * 101,  # 202 bytes
    ],
)
def test_a_name_that_is_not_plain_is_refused(files: UserFiles, outside: Path, name: str) -> None:
    """Neither read, nor written, nor deleted; and nothing outside changes."""
    for use in (lambda: files.read(name), lambda: files.write(name, b"x"), lambda: files.delete(name)):
        with pytest.raises(ToolError, match="name"):
            use()
    assert outside.read_text() == "secret"
    assert [entry.name for entry in files.entries()] == ["own.txt"]


@pytest.mark.parametrize(
    "name", ["a", "sales 2026.csv", "Übersicht.md", "日本語.txt", "a..b", "x" * 200, "~root", "$HOME", "*"]
)
def test_an_ordinary_name_is_kept(files: UserFiles, name: str) -> None:
    """Other scripts, spaces inside, and what is special to a shell only are fine."""
    files.write(name, b"x")
    assert files.read(name) == b"x"
    assert name in [entry.name for entry in files.entries()]


def test_two_spellings_of_a_name_are_one_file(files: UserFiles) -> None:
    """é as one character or as two is the same name."""
    files.write("caf\u00e9", b"x")
    assert files.read("cafe\u0301") == b"x"


USERS = [
    "ada",
    "Ada",  # some file systems do not tell capitals apart
    "%41da",
    "../ada",
    "..",
    ".",
    "/",
    "/etc",
    "ada/../ada",
    "ada\0",
    "ada ",
    "a da",
    "caf\u00e9",
    "cafe\u0301",
    "ada@example.org",
    "\u202eada",
]


def test_no_user_sees_anothers_files(settings: FileSettings) -> None:
    """Whatever a user is called: the folders differ, and all lie in the root."""
    for user in USERS:
        UserFiles.of(user, settings).write("name.txt", user.encode())
    for user in USERS:
        assert UserFiles.of(user, settings).read("name.txt") == user.encode()
    names = {path.name.lower() for path in settings.root.iterdir()}
    assert len(names) == len(USERS)
    assert {path.name for path in settings.root.parent.iterdir()} == {"root"}


@pytest.mark.parametrize("user_id", [None, "", "x" * 201])
def test_files_belong_to_somebody(settings: FileSettings, user_id: str | None) -> None:
    """Without a user, or with one whose id is too long for a folder, there are no files."""
    with pytest.raises(ToolError, match="user_id"):
        UserFiles.of(user_id, settings)


def test_a_link_inside_leads_nowhere(files: UserFiles, outside: Path) -> None:
    """A link that somebody put into the folder is not read, not listed, and not written through."""
    link = files.folder / "link.txt"
    link.symlink_to(outside)

    with pytest.raises(ToolError, match="not a file"):
        files.read("link.txt")
    assert [entry.name for entry in files.entries()] == ["own.txt"]

    files.write("link.txt", b"new")
    assert outside.read_text() == "secret"
    assert not link.is_symlink()
    assert files.read("link.txt") == b"new"


def test_deleting_a_link_leaves_its_target(files: UserFiles, outside: Path) -> None:
    """Only the link goes."""
    (files.folder / "link.txt").symlink_to(outside)
    assert files.delete("link.txt")
    assert outside.read_text() == "secret"


@pytest.mark.parametrize("target", ["ada", "..", "nowhere", None])  # None: a file
def test_a_link_in_place_of_a_users_folder_is_refused(
    settings: FileSettings, files: UserFiles, target: str | None
) -> None:
    """A folder that leads to another user's, or out of the root, is nobody's; so is what is no folder at all."""
    if target:
        (settings.root / "eve").symlink_to(target)
    else:
        (settings.root / "eve").touch()
    eve = UserFiles.of("eve", settings)
    uses: list[Callable[[], object]] = [
        lambda: eve.read("own.txt"),
        lambda: eve.write("x", b""),
        lambda: eve.delete("own.txt"),
        eve.entries,
    ]
    for use in uses:
        with pytest.raises(ToolError, match="folder"):
            use()
    assert files.read("own.txt") == b"mine"


def test_what_is_no_file_is_left_alone(files: UserFiles) -> None:
    """A named pipe is not read, which could take for ever; a folder is not read, replaced or deleted."""
    (files.folder / "folder").mkdir()
    os.mkfifo(files.folder / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(ToolError, match="not a file"):
            files.read(name)
    with pytest.raises(ToolError, match="not a file"):
        files.write("folder", b"")
    with pytest.raises(ToolError, match="not a file"):
        files.delete("folder")
    assert [entry.name for entry in files.entries()] == ["own.txt"]


def test_a_file_may_not_be_too_large(files: UserFiles) -> None:
    """Neither when written nor when read, should somebody else have put it there."""
    files.write("own.txt", b"x" * 1000)
    with pytest.raises(ToolError, match="1001 bytes; 1000 are allowed"):
        files.write("own.txt", b"x" * 1001)
    (files.folder / "big.txt").write_bytes(b"x" * 1001)
    with pytest.raises(ToolError, match="1001 bytes; 1000 are allowed"):
        files.read("big.txt")


def test_a_user_may_not_have_too_many_files(files: UserFiles) -> None:
    """Those that are there can still be replaced."""
    files.write("two", b"")
    files.write("three", b"")
    with pytest.raises(ToolError, match="3 files"):
        files.write("four", b"")
    assert not files.write("three", b"new")


def test_a_reader_never_sees_half_a_file(files: UserFiles) -> None:
    """A file is replaced in one step."""
    contents = [letter * 1000 for letter in (b"a", b"b")]
    files.write("own.txt", contents[0])
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [files.write("own.txt", contents[i % 2]) for i in range(100)])
        while not writing.done():
            assert files.read("own.txt") in contents
        writing.result()


def test_a_write_that_fails_leaves_the_old_file(files: UserFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no draft. A full disk cannot be had in a test: fsync stands in for it."""

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write("own.txt", b"new")
    assert files.read("own.txt") == b"mine"
    assert [path.name for path in files.folder.iterdir()] == ["own.txt"]


def test_files_are_private(files: UserFiles) -> None:
    """Other users of the machine cannot read them."""
    assert (files.folder / "own.txt").stat().st_mode & 0o077 == 0
    assert files.folder.stat().st_mode & 0o077 == 0


def test_no_descriptor_is_left_open(files: UserFiles) -> None:
    """Refused reads included."""
    (files.folder / "folder").mkdir()
    (files.folder / "link").symlink_to("own.txt")
    before = _open_descriptors()
    for name in ("own.txt", "folder", "link", "missing"):
        try:
            files.read(name)
        except ToolError:
            files.entries()
    assert _open_descriptors() == before


def _open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))
