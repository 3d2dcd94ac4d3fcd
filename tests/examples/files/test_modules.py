"""The modules over real HTTP on one store in S3 with records in PostgreSQL, set by their environment."""

from pathlib import Path

import pytest

from modules.file_manager.manifest import module_for
from modules.files import FileSettings, open_pipeline
from support.modules.example_modules import serving, serving_here
from support.servers.postgres import PostgresServer
from support.servers.s3_server import KEYS, S3Server


async def test_modules_share_users_files_in_s3(
    s3: S3Server, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload is a program's input; what the program saves is listed, for its user only; and no file lies on disk."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    variables = {
        "FILES_STORE": f"s3://{s3.make_bucket()}/prefix",
        "FILES_S3_ENDPOINT": s3.url,
        "FILES_DATABASE_URL": postgres.url,
    }
    with (
        serving_here("file_manager", tmp_path, **variables) as file_manager,
        serving_here("code_executor", tmp_path, **variables) as code_executor,
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
        reply = await file_manager("create_document", user_id="ada", name="a", content="x")
        assert reply["error"] == "The file store does not answer (GenericError); try again later."
        assert (await file_manager.get("/health"))["status"] == "ok"
        assert (await file_manager("list_files", user_id="ada"))["result"]["files"] == []
