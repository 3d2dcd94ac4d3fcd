"""Real tools through every format and back: the table in `real_tools.md`, which this file writes when it is run.

From the repository: `PYTHONPATH=tests:examples .venv/bin/python tests/integration/registry/formats/test_real_tools.py`.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.schemas.json_schemas import is_valid
from support.schemas.provider_judges import accepts_result, accepts_tools, made_call
from support.schemas.real_tools import SERVERS, example_tools, sample_arguments, server_tools
from toolfleet_registry.contracts import ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.contracts.names import provider_name
from toolfleet_registry.formats import Format, convert, from_result, to_call
from toolfleet_registry.formats.dialects import DIALECTS
from toolfleet_registry.schemas.definition import input_schema

TABLE = Path(__file__).with_name("real_tools.md")
HEAD = """# Real tools through every format and back

What each format leaves out of real tools. Each tool was converted, its list was read by the provider's own package, and
calls made with that package's types came back as the same `ToolCall`; so did a result. `=`: nothing is lost. `dropped`:
keywords that decide nothing. `relaxed`: checked by the fleet only. `closed`: takes only the named properties. `strict`:
the provider enforces the schema; `(no)`: it does not, and a note says why.
`test_real_tools.py` makes and checks this page.

| tools | OpenAI Chat | OpenAI Responses | Anthropic | Gemini | MCP | OpenAI strict | Anthropic strict |
|---|---|---|---|---|---|---|---|
"""


async def real_tools() -> list[ToolDefinition]:
    listed = await asyncio.gather(*map(server_tools, SERVERS))
    return [*example_tools(), *(tool for tools in listed for tool in tools)]


def cell(tool: ToolDefinition, tools: Sequence[ToolDefinition], provider: Format, *, strict: bool = False) -> str:
    """What one format made of one tool, after it went there and came back."""
    offers = convert(tools, provider, strict=strict)
    accepts_tools(provider, offers)
    for all_of_them in (False, True):
        arguments = sample_arguments(input_schema(tool), all_of_them=all_of_them)
        assert is_valid(arguments, input_schema(tool))
        call = made_call(provider, provider_name(tool.name), arguments, json.dumps(arguments))
        assert to_call(call, provider, tools) == ToolCall(tool_name=tool.name, arguments=arguments)
    accepts_result(provider, from_result(ToolResult.ok(tool.name, {"found": [1, None]}), provider, "call_1"))
    notes = [note for note in offers.notes if note.tool == tool.name]
    kinds = Counter(note.kind for note in notes if note.path != "strict")
    said = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    refused = any(note.path == "strict" for note in notes)
    words = [*((["(no)"] if refused else ["strict"]) if strict else []), *([said] if said else [])]
    return ": ".join(words) or "="


def table(tools: Sequence[ToolDefinition]) -> str:
    """Return the page: tools of which every format makes the same stand in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for tool in tools:
        cells = [cell(tool, tools, provider) for provider in DIALECTS]
        cells += [cell(tool, tools, provider, strict=True) for provider in ("openai_chat", "anthropic")]
        rows.setdefault(tuple(cells), []).append(f"`{tool.name}`")
    return HEAD + "".join(f"| {', '.join(names)} | {' | '.join(cells)} |\n" for cells, names in rows.items())


@pytest.fixture(scope="module")
def tools() -> list[ToolDefinition]:
    return asyncio.run(real_tools())


def test_real_tools_go_through_every_format_and_back(tools: list[ToolDefinition]) -> None:
    """Of the example modules and three MCP servers; the table beside this file says what became of them."""
    made = table(tools)
    assert made == TABLE.read_text()
    assert all(f"`{tool.name}`" in made for tool in tools)
    assert len(tools) >= 20


def strings_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {name for name in value if isinstance(name, str)}.union(*map(strings_in, value.values()))
    return set[str]().union(*map(strings_in, value)) if isinstance(value, list) else set()


def test_no_list_has_what_its_provider_refuses(tools: list[ToolDefinition]) -> None:
    """The keywords that have made whole requests fail."""
    for provider in DIALECTS:
        if provider == "mcp":
            continue
        keys = strings_in(list(convert(tools, provider)))
        assert not keys & {"$schema", "$id", "oneOf", "const", "x-order"}


if __name__ == "__main__":
    text = table(asyncio.run(real_tools()))
    TABLE.write_text(text)
    sys.stdout.write(text)
