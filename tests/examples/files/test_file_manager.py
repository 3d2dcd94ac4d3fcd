"""`file_manager` over real HTTP."""

import pytest

from support.modules.example_modules import Module

EMPTY: list[dict[str, object]] = [{"content": ""}, {"rows": []}]


async def test_a_document_is_written_and_read(file_manager: Module) -> None:
    """What was written comes back, under the user's own list of files."""
    written = await file_manager("create_document", user_id="reader", name="owls.txt", content="Eulen — 🦉\n")
    assert written["result"] == {"name": "owls.txt", "bytes": 15, "created": True}

    read = await file_manager("read_document", user_id="reader", name="owls.txt")
    assert read["result"] == {"name": "owls.txt", "content": "Eulen — 🦉\n", "start": 0, "total_chars": 10}

    (entry,) = (await file_manager("list_files", user_id="reader"))["result"]["files"]
    assert (entry["name"], entry["bytes"]) == ("owls.txt", 15)


async def test_rows_become_a_csv_file(file_manager: Module) -> None:
    """Values with commas, quotes and line breaks are quoted."""
    rows = [["name", "note", "n"], ["a,b", 'say "hi"', 1], ["two\nlines", None, 2.5], ["", True, 0]]
    await file_manager("create_document", user_id="csv", name="t.csv", rows=rows)
    read = await file_manager("read_document", user_id="csv", name="t.csv")
    assert read["result"]["content"] == 'name,note,n\n"a,b","say ""hi""",1\n"two\nlines",,2.5\n,True,0\n'


@pytest.mark.parametrize("arguments", [{}, {"content": "x", "rows": []}])  # nothing; both
async def test_a_document_has_content_or_rows(file_manager: Module, arguments: dict[str, object]) -> None:
    """Neither or both is refused."""
    reply = await file_manager("create_document", user_id="either", name="x", **arguments)
    assert reply["error"] == "Give either content (text) or rows (the lines of a CSV file)."


async def test_an_empty_document_is_a_document(file_manager: Module) -> None:
    """No text and no rows are content too."""
    for arguments in EMPTY:
        reply = await file_manager("create_document", user_id="empty", name="x", **arguments)
        assert reply["result"]["bytes"] == 0


async def test_users_do_not_see_each_other(file_manager: Module) -> None:
    """The same name is two users' two files; deleting one leaves the other."""
    for user in ("ada", "../ada"):
        await file_manager("create_document", user_id=user, name="diary", content=user)
    await file_manager("delete_file", user_id="ada", name="diary")

    assert "There is no file 'diary'" in (await file_manager("read_document", user_id="ada", name="diary"))["error"]
    assert (await file_manager("read_document", user_id="../ada", name="diary"))["result"]["content"] == "../ada"


async def test_a_call_without_a_user_is_refused(file_manager: Module) -> None:
    """The model cannot choose a user either."""
    reply = await file_manager("list_files")
    assert reply["error"] == "Files belong to a user, and this call has no user_id."


async def test_a_long_document_is_read_in_parts(file_manager: Module) -> None:
    """`start` and `max_chars` count characters, not bytes."""
    await file_manager("create_document", user_id="parts", name="x", content="äöü" * 10)
    part = await file_manager("read_document", user_id="parts", name="x", start=1, max_chars=3)
    assert part["result"] == {"name": "x", "content": "öüä", "start": 1, "total_chars": 30}


async def test_deleting_twice_does_nothing_more(file_manager: Module) -> None:
    """The tool is idempotent, as it says: a repeat succeeds, and tells that nothing was there."""
    await file_manager("create_document", user_id="twice", name="x", content="")
    replies = [await file_manager("delete_file", user_id="twice", name="x") for _ in range(2)]
    assert [reply["result"] for reply in replies] == [{"name": "x", "deleted": True}, {"name": "x", "deleted": False}]
