"""LangChain's tools in a folder are served as they are, and what one has that is no tool of ours is named."""

from pathlib import Path
from typing import Any

import pytest

from support.documents import programs
from support.hosts.tool_folder import GREET, hosted

pytestmark = pytest.mark.asyncio

TOOLS = '''
import asyncio
from typing import Annotated, Literal

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, Tool, ToolException, tool
from pydantic import BaseModel, Field, field_validator


@tool
def reverse(text: str, times: int = 1) -> str:
    """Reverse a text."""
    return text[::-1] if times % 2 else text


@tool(parse_docstring=True)
async def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    await asyncio.sleep(0)
    return {"sum": a + b}


class Order(BaseModel):
    item: str = Field(description="What is ordered.")
    count: int = Field(default=1, ge=1)

    @field_validator("item")
    @classmethod
    def _known(cls, item: str) -> str:
        if item == "unicorn":
            raise ValueError("there are no unicorns")
        return item


@tool("place_order", args_schema=Order)
def order(item: str, count: int, config: RunnableConfig) -> list[str]:
    """Order something."""
    return [item] * count


class Node(BaseModel):
    name: str
    children: list["Node"] = []


@tool
def count_nodes(root: Node) -> int:
    """Count a tree."""
    return 1 + sum(count_nodes.func(each) for each in root.children)


class Query(BaseModel):
    q: str = Field(alias="query")


@tool(args_schema=Query)
def search(q: str) -> str:
    """Search."""
    return q


@tool
def remember(text: str, where: Annotated[str, InjectedToolArg] = "here") -> str:
    """Remember."""
    return f"{text} {where}"


@tool
def fail(how: Literal["word", "bug"]) -> str:
    """Fail."""
    raise ToolException("There is no such owl: ask for another.") if how == "word" else ValueError("a secret")


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


class Whisper(BaseTool):
    name: str = "whisper"
    description: str = "Whisper."

    def _run(self, text: str) -> str:
        return text.lower()

    async def _arun(self, text: str) -> str:
        return f"{text.lower()} (async)"


MORE = [
    StructuredTool.from_function(shout, name="shout"),
    Whisper(),
    Tool(name="plain", description="Take one text.", func=lambda text: f"<{text}>"),
    StructuredTool(
        name="by_schema",
        description="Take what a schema says.",
        args_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        func=lambda n: n + 1,
    ),
]
'''

IMPORTING = '''
from langchain_core.tools import tool
from .lc import reverse
from ._kinds import Echo

echo = Echo()


@tool
def twice(text: str) -> str:
    """Reverse a text twice."""
    return reverse.invoke({"text": reverse.invoke({"text": text})})
'''

KINDS = """
from langchain_core.tools import BaseTool

class Echo(BaseTool):
    name: str = "echo"
    description: str = "Echo."

    def _run(self, text: str) -> str:
        return text
"""

CALLS: list[tuple[str, dict[str, Any], Any]] = [
    ("reverse", {"text": "owl"}, "lwo"),
    ("reverse", {"text": "owl", "times": 2}, "owl"),
    ("add", {"a": 1, "b": 2}, {"sum": 3}),
    ("place_order", {"item": "owl", "count": 2}, ["owl", "owl"]),
    ("place_order", {"item": "owl"}, ["owl"]),
    ("count_nodes", {"root": {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]}}, 3),
    ("search", {"query": "owl"}, "owl"),
    ("remember", {"text": "owl"}, "owl here"),
    ("shout", {"text": "hoo"}, "HOO"),
    ("whisper", {"text": "HOO"}, "hoo (async)"),
    ("by_schema", {"n": 1}, 2),
    ("twice", {"text": "owl"}, "owl"),
    ("echo", {"text": "hoo"}, "hoo"),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("reverse", {"txt": "owl"}, "did you mean 'text'"),
    ("reverse", {"text": 3}, "text"),
    ("place_order", {"item": "owl", "count": 0}, "count"),
    ("place_order", {"item": "unicorn"}, "there are no unicorns"),
    ("by_schema", {"n": "one"}, "n"),
    ("count_nodes", {"root": {"name": "a", "children": [{"name": 3}]}}, "name"),
    ("remember", {"text": "owl", "where": "there"}, "where"),
]


async def test_langchains_tools_are_served_as_they_are(tmp_path: Path) -> None:
    """Decorated functions, structured tools and subclasses, each with its name and schema; wrong arguments and failures are told."""
    async with hosted(tmp_path, {"lc.py": TOOLS, "more.py": IMPORTING, "_kinds.py": KINDS}) as folder:
        assert folder.errors() == {}
        definitions = {name.removeprefix("owls."): each.definition for name, each in folder.host.tools.items()}
        assert set(definitions) == {
            "reverse", "add", "place_order", "fail", "shout", "whisper", "plain", "by_schema", "twice", "echo",
            "count_nodes", "search", "remember",
        }  # fmt: skip
        assert definitions["add"].description == "Add two numbers."
        assert {each.name: each.description for each in definitions["add"].parameters} == {
            "a": "The first.",
            "b": "The second.",
        }
        schema = definitions["place_order"].input_schema or {}
        assert (schema["required"], set(schema["properties"])) == (["item"], {"item", "count"})
        for name, arguments, expected in CALLS:
            result = await folder.call(name, **arguments)
            assert (name, result.result, result.error) == (name, expected, None)
        (only,) = definitions["plain"].parameters
        assert (await folder.call("plain", **{only.name: "hoo"})).result == "<hoo>"

        for name, arguments, said in REFUSED:  # also by a model's own validators
            result = await folder.call(name, **arguments)
            assert said in str(result.error)
            assert (name, arguments, result.effect_state) == (name, arguments, "none")
        assert (await folder.call("fail", how="word")).error == "There is no such owl: ask for another."
        assert "secret" not in str((await folder.call("fail", how="bug")).error)


HANDLED = '''
from langchain_core.tools import StructuredTool, ToolException

def fail(x: str) -> str:
    """Fail."""
    raise ToolException(x)

ALL = [
    StructuredTool.from_function(fail, name="as_text", handle_tool_error="Ask again."),
    StructuredTool.from_function(fail, name="as_said", handle_tool_error=True),
    StructuredTool.from_function(fail, name="by_function", handle_tool_error=lambda exc: f"It says {exc}."),
]
'''


async def test_an_error_that_langchain_would_handle_is_a_failure(tmp_path: Path) -> None:
    """Its words reach the model, as LangChain would word them, and no failure is a success. The guide's file works beside it."""
    guide = programs("docs/guides/tool-folders.md")["langchain-tool"]
    async with hosted(tmp_path, {"lc.py": HANDLED, "guide.py": guide}) as folder:
        assert (await folder.call("reverse", text="owl")).result == "lwo"
        found = {name: await folder.call(name, x="no") for name in ("as_text", "as_said", "by_function")}

        assert {name: (each.success, each.error) for name, each in found.items()} == {
            "as_text": (False, "Ask again."),
            "as_said": (False, "no"),
            "by_function": (False, "It says no."),
        }


ONLY_AGENTS = '''
from typing import Annotated
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, tool

@tool
def remember(text: str, state: Annotated[dict, InjectedToolArg]) -> str:
    """Remember."""
    return text
'''
FOREIGN = '''
class _Tool:
    def __init__(self, function): self.function = function

def tool(function): return _Tool(function)

@tool
def greet(name: str) -> str:
    """Greet."""
    return name
'''


async def test_a_marked_file_that_offers_nothing_is_an_error(tmp_path: Path) -> None:
    """What only an agent of LangChain's fills in, and what another library's `tool` makes, is named, and costs no other file."""
    files = {"good.py": GREET, "agents.py": ONLY_AGENTS, "foreign.py": FOREIGN}
    async with hosted(tmp_path, files) as folder:
        assert set(folder.host.tools) == {"owls.greet"}
        said = {Path(each.file).name: each for each in folder.host.manifest.load_errors or ()}
        assert {name: (each.error_type, each.in_effect) for name, each in said.items()} == {
            "agents.py": ("InvalidTool", "none"),
            "foreign.py": ("InvalidTool", "none"),
        }
        assert said["agents.py"].message == "remember needs 'state', which only an agent of LangChain's fills in."
        assert "toolfleet.sdk" in said["foreign.py"].message
