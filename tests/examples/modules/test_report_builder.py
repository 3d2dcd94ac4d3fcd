"""`report_builder`: slow, real, and quick to stop."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from modules.files import FilePipeline, FileSettings, open_pipeline
from modules.report_builder.manifest import module_for
from modules.report_builder.tools import ReportSettings
from support.modules.example_modules import Module, in_process
from support.waiting import wait_until_answered


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[FilePipeline]:
    async with open_pipeline(FileSettings(root=tmp_path / "files")) as files:
        yield files


@pytest.fixture
async def builder(tmp_path: Path, files: FilePipeline) -> Module:
    """The module in this process, on two documents and one user's file."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("# Owls\n\nThey hunt at night.\n")
    (docs / "b.md").write_text("# Mice | rats\n\nThey hide.\n")
    await files.save("ada", "owls.csv", b"day,owls\n", "upload")
    return in_process("report_builder", module_for(ReportSettings(docs_root=docs), files).app)


async def test_a_report_is_about_documents_and_files(builder: Module) -> None:
    """Chapters of Markdown tables."""
    markdown = (await builder("build_report", title="All", seconds=0, user_id="ada"))["result"]["markdown"]
    assert markdown.startswith("# All\n\n## Overview\n\n| what | how many |\n| --- | --- |\n| documents | 2 |")
    assert "| words in them | 12 |" in markdown
    assert "| a.md | 6 | 1 |\n| b.md | 6 | 1 |" in markdown
    assert "| Mice \\| rats | b.md | 2 |" in markdown
    assert markdown.endswith("## Your files\n\n| file | bytes |\n| --- | --- |\n| owls.csv | 9 |")


async def test_a_report_knows_only_the_callers_files(builder: Module) -> None:
    """Another user, or none, has no files in it."""
    for user_id in ("eve", None):
        markdown = (await builder("build_report", title="All", seconds=0, user_id=user_id))["result"]["markdown"]
        assert "owls.csv" not in markdown


async def test_a_quick_report_is_the_same(builder: Module) -> None:
    """Only its time limit differs."""
    slow, quick = [
        (await builder(tool, title="All", seconds=0, user_id="ada"))["result"]
        for tool in ("build_report", "quick_report")
    ]
    assert slow == quick
    manifest = await builder.get("/manifest")
    assert [tool.get("timeout_seconds") for tool in manifest["tools"]] == [None, 2]


@pytest.mark.parametrize(
    "arguments",
    [{"title": ""}, {"title": "x" * 201}, {"title": "x", "seconds": -1}, {"title": "x", "seconds": 601}, {}],
)
async def test_odd_arguments_are_refused(builder: Module, arguments: dict[str, Any]) -> None:
    """A title has 1 to 200 characters; a report takes 0 to 600 s."""
    assert "Invalid arguments" in (await builder("build_report", **arguments))["error"]


async def test_a_slow_report_delays_nobody(report_builder: Module) -> None:
    """Over real HTTP: a fast call returns while slow ones run; those whose client hangs up are ended and counted."""
    async with report_builder.client() as client:
        body = {"tool_name": "report_builder.build_report", "arguments": {"title": "Slow", "seconds": 600}}
        slow = [asyncio.create_task(client.post("/execute", json=body)) for _ in range(3)]
        await _running(report_builder, 3)

        assert (await report_builder("quick_report", title="Fast", seconds=0))["success"]
        assert not any(call.done() for call in slow)

        for call in slow:
            call.cancel()
        await asyncio.wait(slow)
        await _running(report_builder, 0)
    assert (await report_builder.get("/health"))["cancelled"] == 3


async def _running(module: Module, number: int) -> None:
    """Wait until so many calls run in the module."""

    async def is_so() -> bool:
        return bool((await module.get("/health"))["running"] == number)

    await wait_until_answered(is_so, f"{number} calls run")
