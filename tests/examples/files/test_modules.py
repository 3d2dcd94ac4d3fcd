"""The modules as real servers on one store in S3 with records in PostgreSQL, set by their environment."""

import asyncio
from pathlib import Path

import pytest

from modules.file_manager.manifest import module_for
from modules.files import FileSettings, open_pipeline
from support.files.stored import stored_keys
from support.modules.example_modules import running, serving
from support.servers.postgres import PostgresServer
from support.servers.s3_server import KEYS, S3Server


async def test_modules_share_users_files_in_s3(s3: S3Server, postgres: PostgresServer, tmp_path: Path) -> None:
    """An upload is a program's input; what the program saves is listed, for its user only; and no file lies on disk."""
    variables = {
        **KEYS,
        "FILES_STORE": f"s3://{s3.make_bucket()}/prefix",
        "FILES_S3_ENDPOINT": s3.url,
        "FILES_DATABASE_URL": postgres.url,
    }
    with (
        running("file_manager", tmp_path, **variables) as file_manager,
        running("code_executor", tmp_path, **variables) as code_executor,
    ):
        await file_manager("create_document", user_id="ada", name="n.txt", content="20")
        code = "n = int(open('n.txt').read())\nopen('output/more.txt', 'w').write(str(n + 1))"
        ran = await code_executor("run_python", user_id="ada", code=code, files=["n.txt"])
        listed = await file_manager("list_files", user_id="ada")
        read = await file_manager("read_document", user_id="ada", name="more.txt")
        others = await file_manager("list_files", user_id="eve")

    assert ran["result"]["saved_files"] == [{"name": "more.txt", "bytes": 2}]
    assert [file["name"] for file in listed["result"]["files"]] == ["more.txt", "n.txt"]
    assert read["result"]["content"] == "21"
    assert others["result"]["files"] == []
    assert not (tmp_path / "files").exists()


@pytest.mark.usefixtures("hasty")
async def test_a_module_without_its_store_answers_in_time(bucket: FileSettings, s3: S3Server) -> None:
    """With a sentence for the model; it starts without its store, and stays healthy."""
    app = module_for(open_pipeline(bucket.model_copy(update={"store": "s3://missing"}))).app
    with s3.frozen(), serving("file_manager", app) as file_manager:
        async with asyncio.timeout(25):
            reply = await file_manager("create_document", user_id="ada", name="a", content="x")
        assert reply["error"] == "The file store does not answer (GenericError); try again later."
        assert (await file_manager.get("/health"))["status"] == "ok"
        assert (await file_manager("list_files", user_id="ada"))["result"]["files"] == []


async def test_a_module_that_is_killed_in_the_middle_of_a_save_leaves_no_half_file(
    s3: S3Server, tmp_path: Path
) -> None:
    """The store does not answer while it is killed. The file is whole or not there, and what is left is swept."""
    settings = {
        "FILES_STORE": f"s3://{s3.make_bucket()}",
        "FILES_S3_ENDPOINT": s3.url,
        "FILES_DATABASE_URL": f"sqlite:///{tmp_path / 'files.db'}",
    }
    with running("file_manager", tmp_path, **KEYS, **settings) as file_manager:
        await file_manager("create_document", user_id="ada", name="a", content="old")
        with s3.frozen():
            call = asyncio.create_task(file_manager.post("create_document", user_id="ada", name="a", content="new"))
            await asyncio.wait({call}, timeout=1)  # it waits for the store by now, or has not begun: both are fine
            assert file_manager.process is not None
            file_manager.process.kill()
            await asyncio.wait({call}, timeout=20)
            assert call.exception() is not None
    with running("file_manager", tmp_path, **KEYS, **settings) as file_manager:
        read = await file_manager("read_document", user_id="ada", name="a")
        assert read["result"]["content"] == "old"


async def test_the_default_store_is_shared_by_processes(tmp_path: Path) -> None:
    """A folder with SQLite: what one process saves, another lists at once."""
    with running("file_manager", tmp_path) as file_manager:
        async with open_pipeline(FileSettings(root=tmp_path / "files")) as files:
            await files.save("ada", "upload.csv", b"1", "upload")
            (file,) = (await file_manager("list_files", user_id="ada"))["result"]["files"]
            assert (file["name"], file["source"], file["media_type"]) == ("upload.csv", "upload", "text/csv")
            await file_manager("delete_file", user_id="ada", name="upload.csv")
            assert (await files.list("ada"), await stored_keys(files)) == ([], set())
