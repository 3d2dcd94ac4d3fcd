"""The guide's programs that defer jobs do what it says."""

import asyncio
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from agents.testing import ScriptedModel, assistant_message, function_call
from langgraph.checkpoint.memory import InMemorySaver
from pydantic_ai import ToolCallPart

from support.documents import programs
from support.frameworks.chat_script import script
from support.frameworks.pydantic_script import PydanticScript
from support.frameworks.written_program import import_program
from support.modules.works import Works
from support.waiting import PATIENCE_SECONDS, wait_until
from toolfleet import ToolFleet

GUIDE = programs("docs/guides/agent-frameworks.md")


def program(text: str, folder: Path) -> ModuleType:
    """The guide's, with the tools and the seconds of the test."""
    text = text.replace("builds.start", "works.begin").replace("builds.state", "works.state")
    quick = text.replace("interval_seconds=5", "interval_seconds=0.1").replace("defer_after=20", "defer_after=0.1")
    return import_program(quick, folder)


@pytest.fixture
def works(modules: tuple[Any, Any, Works]) -> Works:
    found = modules[2]
    found.server.forget()
    found.pieces.clear()
    return found


async def complete(works: Works) -> None:
    await wait_until(lambda: bool(works.pieces), "the job has begun")
    works.pieces.update(dict.fromkeys(works.pieces, "completed"))


async def test_pydantic_ai(fleet: ToolFleet, works: Works, tmp_path: Path) -> None:
    """What is kept is text, and the job is done once."""
    guide = program(GUIDE["pydantic-ai-jobs"], tmp_path)
    run = await guide.begin(fleet, PydanticScript([ToolCallPart("works__begin", {}, "c1")]).model(), "Build.")
    assert set(run) == {"messages", "requests"}
    await complete(works)

    assert await guide.go_on(fleet, PydanticScript().model(), run) == {"answer": "done"}
    assert len(works.server.calls("begin")) == 1


async def test_langgraph(fleet: ToolFleet, works: Works, tmp_path: Path) -> None:
    """An empty answer says that it still waits."""
    guide, saver = program(GUIDE["langchain-jobs"], tmp_path), InMemorySaver()
    assert await guide.ask(fleet, script(("works__begin", {}, "c1")), saver, "Build.") == ""
    assert await guide.ask(fleet, script(), saver, None) == ""
    await complete(works)

    answer = ""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not answer:
            answer = await guide.ask(fleet, script(), saver, None)
    assert answer == "done"
    assert len(works.server.calls("begin")) == 1


async def test_openai_agents(fleet: ToolFleet, works: Works, tmp_path: Path) -> None:
    """What is kept is JSON, and the job is done once."""
    guide = program(GUIDE["openai-agents-jobs"], tmp_path)
    call = function_call("works__begin", "{}", call_id="c1")
    kept = await guide.begin(fleet, ScriptedModel([[call]]), "Build.", "turn-1")
    assert isinstance(kept, dict)
    await complete(works)

    assert await guide.go_on(fleet, ScriptedModel([[assistant_message("done")]]), kept, "turn-1") == "done"
    assert len(works.server.calls("begin")) == 1
