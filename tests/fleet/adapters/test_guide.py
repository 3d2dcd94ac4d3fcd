"""The guide's programs do what it says, letter for letter. That for Claude's SDK: `tests/clients/test_claude.py`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from anthropic.types import Message, MessageParam, ToolParam, ToolUseBlock, Usage
from pydantic import TypeAdapter
from pydantic_ai import ToolApproved, ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

from support.documents import programs
from support.frameworks.chat_script import script
from support.frameworks.pydantic_script import PydanticScript
from support.frameworks.written_program import import_program
from support.local_tools.talkers import Talker
from support.module_server import ModuleServer
from toolfleet import Approver, ToolFleet

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


class _Messages:
    """Anthropic's API for a model that searches, calls what it has found, and says so; its own package reads what it is sent."""

    def __init__(self) -> None:
        self.turns = [("search_tools", {"query": "echo"}), ("owls__echo", {"text": "hoo"})]
        self.sent = list[Any]()

    async def create(self, *, messages: Any, tools: Any, **_: Any) -> Message:
        TypeAdapter(list[ToolParam]).validate_python(tools)
        TypeAdapter(list[MessageParam]).validate_python(messages)
        self.sent = list(messages)
        if not self.turns:
            return _message()
        name, arguments = self.turns.pop(0)
        return _message(ToolUseBlock(id=name, input=arguments, name=name, type="tool_use"))


def _message(*content: ToolUseBlock) -> Message:
    usage = Usage(input_tokens=1, output_tokens=1)
    return Message(id="1", type="message", role="assistant", model="a model", content=list(content), usage=usage)


async def test_a_model_finds_a_tool_on_demand(fleet: ToolFleet, owls: ModuleServer, tmp_path: Path) -> None:
    """The search is answered with references to tools of the request, and the tool is called."""
    program = import_program(programs("docs/guides/calling-tools.md")["on-demand"], tmp_path)
    messages = _Messages()

    await program.ask(fleet, SimpleNamespace(messages=messages), "a model", "Ask the owl.")

    found, result = (each["content"][0] for each in messages.sent[2::2])
    assert found["content"][0] == {"type": "tool_reference", "tool_name": "owls__echo"}
    assert result["content"] == '{"text":"hoo"}'
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


BOB = Approver("web", "bob", "admin")


async def _pydantic_word(requests: DeferredToolRequests) -> tuple[DeferredToolResults, Approver]:
    return DeferredToolResults(approvals={"c1": ToolApproved(override_args={"text": "hoo", "n": 2})}), BOB


async def _openai_word(asked: dict[str, Any]) -> tuple[dict[str, Any], Approver]:
    named = {"id": asked["id"], "digest": asked["digest"]}
    return {"decision": "approve", "arguments": {"n": 2}, **named}, BOB


async def _langchain_word(asked: dict[str, Any]) -> dict[str, Any]:
    return {"arguments": {"n": 2}, "by": "bob"}


@pytest.mark.parametrize(
    ("text", "make_model", "decide"),
    [
        (GUIDE["pydantic-ai-approvals"], _pydantic_model, _pydantic_word),
        (GUIDE["openai-agents-approvals"], _openai_model, _openai_word),
        (GUIDE["langchain-approvals"], _langchain_model, _langchain_word),
    ],
    ids=["pydantic-ai", "openai-agents", "langchain"],
)
async def test_the_program_that_asks_people_goes_on_with_their_word(
    fleet: ToolFleet, owls: ModuleServer, tmp_path: Path, text: str, make_model: Any, decide: Any
) -> None:
    """The call begins with somebody's approval, once, with the arguments that they have written."""
    program = import_program(text.replace('agent="production"', 'agent="asks"'), tmp_path)

    assert await program.ask(fleet, make_model(), "Ask the owl.", decide) == "done"
    assert [call["arguments"] for call in owls.calls("echo")] == [{"text": "hoo", "n": 2}]
