"""What the providers' own packages say of a list of tools, of a call and of a result."""

from collections.abc import Callable
from typing import Any

import mcp.types
from anthropic.types import ToolParam, ToolResultBlockParam, ToolUseBlock
from google.genai import types as gemini
from mcp.shared.tool_name_validation import validate_tool_name
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionToolMessageParam
from openai.types.chat.chat_completion_message_function_tool_call import ChatCompletionMessageFunctionToolCall
from openai.types.responses import (
    FunctionToolParam,
    ResponseFunctionToolCall,
    ResponseToolSearchOutputItemParamParam,
    ToolSearchOutputNamespaceToolParam,
    ToolSearchToolParam,
)
from openai.types.responses.response_input_item_param import FunctionCallOutput
from openai.types.responses.tool_search_output_namespace_tool_param import ToolFunction
from pydantic import ConfigDict, TypeAdapter, with_config

from toolfleet_registry.formats import Format


def accepts_tools(provider: Format, offers: list[dict[str, Any]]) -> None:
    """Raises what the provider's package raises for a list that is not what its request takes."""
    if provider == "gemini":
        gemini.GenerateContentConfig.model_validate({"tools": offers})
        for tool in offers:
            gemini.Tool.model_validate(tool)
    elif provider == "mcp":
        listed = mcp.types.ListToolsResult.model_validate({"tools": offers})
        assert all(validate_tool_name(tool.name).is_valid for tool in listed.tools)
        _STRICT_MCP.validate_python(offers)
    else:
        for offer in offers:
            (_SEARCH if offer.get("type") == "tool_search" else _TOOL[provider]).validate_python(offer)


def accepts_result(provider: Format, message: dict[str, Any]) -> None:
    """Raises for a message that the provider's package does not take."""
    if provider == "gemini":
        gemini.Part.model_validate(message)
    elif provider == "mcp":
        mcp.types.CallToolResult.model_validate(message)
    elif message.get("type") == "tool_search_output":
        _FOUND.validate_python(message)
        for namespace in message["tools"]:
            _NAMESPACE.validate_python(namespace)
            for tool in namespace["tools"]:
                _LOADED.validate_python(tool)
    else:
        _RESULT[provider].validate_python(message)


def made_call(provider: Format, name: str, arguments: dict[str, Any], text: str) -> Any:
    """A tool call as the provider's package has it; `text` is the arguments as JSON."""
    makers: dict[Format, Callable[[], Any]] = {
        "openai_chat": lambda: ChatCompletionMessageFunctionToolCall.model_validate(
            {"id": "call_1", "type": "function", "function": {"name": name, "arguments": text}}
        ),
        "openai_responses": lambda: ResponseFunctionToolCall(
            arguments=text, call_id="call_1", name=name, type="function_call"
        ),
        "anthropic": lambda: ToolUseBlock(id="toolu_1", input=dict(arguments), name=name, type="tool_use"),
        "gemini": lambda: gemini.Part(function_call=gemini.FunctionCall(id="1", name=name, args=arguments)),
        "mcp": lambda: mcp.types.CallToolRequest(
            params=mcp.types.CallToolRequestParams(name=name, arguments=arguments)
        ),
    }
    return makers[provider]()


def _closed(typed: Any) -> TypeAdapter[Any]:
    """A TypedDict that takes no keys but its own."""
    return TypeAdapter(with_config(ConfigDict(extra="forbid"))(typed))


_TOOL: dict[Format, TypeAdapter[Any]] = {
    "openai_chat": _closed(ChatCompletionFunctionToolParam),
    "openai_responses": _closed(FunctionToolParam),
    "anthropic": _closed(ToolParam),
}
_RESULT: dict[Format, TypeAdapter[Any]] = {
    "openai_chat": _closed(ChatCompletionToolMessageParam),
    "openai_responses": _closed(FunctionCallOutput),
    "anthropic": _closed(ToolResultBlockParam),
}
_SEARCH = _closed(ToolSearchToolParam)
_FOUND = _closed(ResponseToolSearchOutputItemParamParam)
_NAMESPACE = _closed(ToolSearchOutputNamespaceToolParam)
_LOADED = _closed(ToolFunction)
_STRICT_MCP = TypeAdapter(list[mcp.types.Tool])
