"""The guide's programs do what it says, letter for letter. That for Claude's SDK: `tests/clients/test_claude.py`."""

from pathlib import Path
from typing import Any

import pytest
from agents import set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic_ai import ToolCallPart

from support.documents import programs
from support.frameworks.chat_script import script
from support.frameworks.pydantic_script import PydanticScript
from support.frameworks.written_program import import_program
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from toolfleet import ToolFleet

GUIDE = programs("docs/guides/agent-frameworks.md")


def _pydantic_model() -> Any:
    return PydanticScript([ToolCallPart("owls__echo", {"text": "hoo"}, "c1")]).model()


def _openai_model() -> Any:
    set_tracing_disabled(disabled=True)
    call = function_call("owls__echo", '{"text": "hoo"}', call_id="c1")
    return ScriptedModel([[call], [assistant_message("done")]])


def _langchain_model() -> Any:
    return script(("owls__echo", {"text": "hoo"}, "c1"))


@pytest.mark.parametrize(
    ("text", "make_model"),
    [
        (GUIDE["pydantic-ai"], _pydantic_model),
        (GUIDE["openai-agents"], _openai_model),
        (GUIDE["langchain"], _langchain_model),
    ],
    ids=["pydantic-ai", "openai-agents", "langchain"],
)
async def test_a_program_has_its_model_call_the_fleet(
    fleet: ToolFleet, owls: ModuleServer, tmp_path: Path, text: str, make_model: Any
) -> None:
    """The model calls a tool, and the program returns what it says then."""
    program = import_program(text, tmp_path)

    assert await program.ask(fleet, make_model(), "Ask the owl.") == "done"
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo"}]


async def test_the_program_that_defers_makes_a_long_call_once(
    fleet: ToolFleet, owls: ModuleServer, talker: Talker, tmp_path: Path
) -> None:
    """Its second run has the result of the first one's call."""
    talker.forget()
    text = GUIDE["pydantic-ai-deferred"].replace("defer_after=20", "defer_after=0.1")
    ended = text.replace("        results =", "        go_on()\n        results =")
    program = import_program(ended, tmp_path)
    vars(program)["go_on"] = lambda: talker.go_on(3)
    model = PydanticScript([ToolCallPart("owls__talk", {}, "c1")]).model()

    assert await program.ask(fleet, model, "Talk.") == "done"
    assert len(owls.calls("talk")) == 1
