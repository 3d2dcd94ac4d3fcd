"""`load_file`: a user's own stored file, as text, and by name or id."""

from pathlib import Path

import pytest

from modules.code_executor.limits import Limits
from modules.code_executor.manifest import module_for
from modules.files import FilePipeline, FileSettings, open_pipeline
from support.modules.example_modules import Module, in_process


@pytest.fixture
def files(tmp_path: Path) -> FilePipeline:
    return open_pipeline(FileSettings(root=tmp_path / "files"))


@pytest.fixture
def executor(files: FilePipeline) -> Module:
    """It has the files of the test."""
    return in_process("code_executor", module_for(Limits(), files).app)


async def test_a_file_is_loaded_by_its_name_or_its_id(files: FilePipeline, executor: Module) -> None:
    """Its text, and what is known of it."""
    record = await files.save("ada", "owls.csv", b"owls,7\n", "upload")
    by_name = await executor("load_file", user_id="ada", file="owls.csv")
    by_id = await executor("load_file", user_id="ada", file=record.file_id)

    assert by_name["result"] == by_id["result"]
    assert by_name["result"] == {
        "name": "owls.csv",
        "file_id": record.file_id,
        "media_type": "text/csv",
        "bytes": 7,
        "is_text": True,
        "content": "owls,7\n",
        "start": 0,
        "total_chars": 7,
    }


async def test_a_long_text_comes_in_parts(files: FilePipeline, executor: Module) -> None:
    """As many characters as asked for, from where asked for; 20,000 if nothing is said, and never more than 200,000."""
    await files.save("ada", "long.txt", ("ä" * 30_000 + "end").encode(), "upload")
    whole = await executor("load_file", user_id="ada", file="long.txt")
    end = await executor("load_file", user_id="ada", file="long.txt", start=30_000, max_chars=2)
    refused = await executor("load_file", user_id="ada", file="long.txt", max_chars=200_001)

    assert (len(whole["result"]["content"]), whole["result"]["total_chars"]) == (20_000, 30_003)
    assert end["result"]["content"] == "en"
    assert "max_chars" in refused["error"]


async def test_what_is_no_text_is_described(files: FilePipeline, executor: Module) -> None:
    """A program reads it, under the name that is told, also if it was given the id."""
    record = await files.save("ada", "owl.png", b"\x89PNG\xff", "upload")
    told = (await executor("load_file", user_id="ada", file="owl.png"))["result"]
    code = "print(len(open('owl.png', 'rb').read()))"
    ran = await executor("run_python", user_id="ada", code=code, files=[record.file_id])

    assert (told["is_text"], told["bytes"], told["media_type"]) == (False, 5, "image/png")
    assert "content" not in told
    assert ran["result"]["stdout"] == "5\n"


async def test_another_users_file_is_not_there(files: FilePipeline, executor: Module) -> None:
    """In the same words as one that nobody has, by its name and by its id, for loading and for running."""
    record = await files.save("ada", "diary.txt", b"secret", "upload")
    for named in ("diary.txt", record.file_id, "nobody.txt"):
        loaded = await executor("load_file", user_id="bob", file=named)
        ran = await executor("run_shell", user_id="bob", commands="cat *", files=[named])

        assert loaded["error"] == ran["error"] == f"There is no file {named!r}; list the files to see which there are."
        assert not loaded["success"]
    assert "no user_id" in (await executor("load_file", file=record.file_id))["error"]


async def test_a_name_comes_before_an_id(files: FilePipeline, executor: Module) -> None:
    """A file that is called like another one's id is the one that is meant."""
    record = await files.save("ada", "one.txt", b"one", "upload")
    await files.save("ada", record.file_id, b"two", "upload")

    assert (await executor("load_file", user_id="ada", file=record.file_id))["result"]["content"] == "two"


@pytest.mark.parametrize("name", ["", "../diary.txt", "/etc/passwd", ".hidden", "x" * 300, "a\x00b"])
async def test_what_is_no_name_is_one_clear_error(executor: Module, name: str) -> None:
    """There are no folders to climb in."""
    reply = await executor("load_file", user_id="ada", file=name)

    assert "name" in reply["error"]
    assert reply["effect_state"] == "none"


async def test_a_program_cannot_have_a_file_called_as_its_output(files: FilePipeline, executor: Module) -> None:
    """Under its name or its id; that folder is the program's."""
    record = await files.save("ada", "output", b"x", "upload")
    for named in ("output", record.file_id):
        reply = await executor("run_python", user_id="ada", code="", files=[named])
        assert "the name of the program's output folder" in reply["error"]
