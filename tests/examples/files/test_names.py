"""Names, users and media types: what becomes of them on their way into the store."""

import string
import unicodedata
from pathlib import PurePosixPath

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from modules.files import FileRefused
from modules.files.names import checked_name, key_of, media_type_of, owner_of, user_of

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=80)  # half characters, too


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../outside.txt",
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
def test_a_name_that_is_not_plain_is_refused(name: str) -> None:
    """In a sentence that can be shown and sent."""
    with pytest.raises(FileRefused, match="name") as told:
        checked_name(name)
    assert str(told.value).isprintable()


@given(ANY_TEXT)
def test_a_name_is_refused_or_plain(name: str) -> None:
    """Whatever it is: what is kept is one visible part of a path, in one spelling, and stays what it is."""
    try:
        kept = checked_name(name)
    except FileRefused as exc:
        assert str(exc).isprintable()  # noqa: PT017 - most texts are no names
        return
    assert kept == unicodedata.normalize("NFC", name) == checked_name(kept)
    assert PurePosixPath(kept).parts == (kept,)
    assert kept not in {".", ".."}
    assert len(kept.encode()) <= 200
    assert kept.isprintable()


@given(st.text(string.ascii_letters + string.digits + "_- ()[]&'äß日🦉", min_size=1, max_size=40))
def test_an_ordinary_name_is_kept(name: str) -> None:
    """But for spaces around it."""
    assume(name == name.strip())
    assert checked_name(name) == unicodedata.normalize("NFC", name)


@given(ANY_TEXT, ANY_TEXT)
def test_two_users_share_nothing(one: str, another: str) -> None:
    """Neither the owner of a row nor a folder, even where capitals and spellings count for nothing; and none leads out."""
    assume(one and another)
    for user_id in (one, another):
        try:
            owner = owner_of(user_id)
        except FileRefused as exc:
            assert "too long" in str(exc)  # noqa: PT017 - some texts are
            return
        assert user_of(owner) == user_id
        assert owner.isascii()
        assert owner.isprintable()
        top, folder, file_id = PurePosixPath(key_of(user_id, "7")).parts
        assert (top, file_id) == ("content", "7")
        assert set(folder) <= {*string.ascii_lowercase, *string.digits, *"!_-"}
    assert (owner_of(one) == owner_of(another)) == (key_of(one, "7") == key_of(another, "7")) == (one == another)


@pytest.mark.parametrize("user_id", [None, "", "x" * 201, "A" * 100, "é" * 50])
def test_files_belong_to_somebody(user_id: str | None) -> None:
    """Without a user, or with one whose id is too long for a folder, there are no files."""
    with pytest.raises(FileRefused, match="user_id"):
        owner_of(user_id)


@pytest.mark.parametrize(
    ("name", "claimed", "kept"),
    [
        ("a.csv", None, "text/csv"),
        ("a.csv", "", "text/csv"),
        ("a.csv", "Text/Plain; charset=utf-8", "text/plain"),
        ("a.png", "application/octet-stream", "image/png"),  # which says nothing
        ("a", None, "application/octet-stream"),
        ("a", "no type", "application/octet-stream"),
        ("a", "text/html\r\nX-Evil: 1", "application/octet-stream"),
        ("a", "x/" + "y" * 1000, "application/octet-stream"),
    ],
)
def test_a_media_type_is_one(name: str, claimed: str | None, kept: str) -> None:
    """The sender's word, if it can be one; else what the name suggests."""
    assert media_type_of(name, claimed) == kept
