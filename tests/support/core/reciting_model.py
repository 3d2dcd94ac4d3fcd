"""A model that says what a test wrote down for it."""

import json
from collections.abc import Sequence
from typing import Any

from agent_core.models.model import Answer, ModelAway
from toolfleet import ToolCall, ToolDefinition

Line = str | Exception | list[tuple[str, dict[str, Any]]]
"""Words; an error; or tools to call, with their arguments."""


class RecitingModel:
    """`asked` has the messages that it was shown each time, `offered` the names of the tools."""

    def __init__(self, *lines: Line) -> None:
        self.lines = list(lines)
        self.asked: list[list[dict[str, Any]]] = []
        self.offered: list[list[str]] = []

    async def answer(self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolDefinition]) -> Answer:
        self.asked.append(list(messages))
        self.offered.append([tool.name for tool in tools])
        if not self.lines:
            raise ModelAway("There is nothing more to recite.")
        line = self.lines.pop(0)
        if isinstance(line, Exception):
            raise line
        if isinstance(line, str):
            return Answer({"role": "assistant", "content": line})
        calls = [
            {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for number, (name, arguments) in enumerate(line)
        ]
        body = {"role": "assistant", "content": None, "tool_calls": calls}
        return Answer(body, tuple(ToolCall(tool_name=name, arguments=arguments) for name, arguments in line))
