"""A model of LangChain's that follows a script."""

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall

Asked = tuple[str, dict[str, Any], str]
"""A tool's name, its arguments, and the call's id."""


class ChatScript(GenericFakeChatModel):
    """A model that makes one call a step, and then says "done". `offered` has the tools of each step."""

    offered: list[list[str]]

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        names = [each["function"]["name"] if isinstance(each, dict) else each.name for each in tools]
        self.offered.append(names)
        return self


def script(*steps: Asked) -> ChatScript:
    asked = [AIMessage("", tool_calls=[ToolCall(name=name, args=args, id=call_id)]) for name, args, call_id in steps]
    return ChatScript(messages=iter([*asked, AIMessage("done"), AIMessage("done")]), offered=[])
