"""Offers prompts, and completes their arguments."""

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from conformance.everything.asking import answers_to, content_of, form
from conformance.everything.content_tools import embedded, image
from conformance.everything.tools import Context

_WORDS = ("paris", "park", "party", "test", "tester")
_CONTEXT = {"context": {"type": "string"}}


class Prompts:
    """What is offered now: one of them comes and goes."""

    def __init__(self) -> None:
        both = [_argument("arg1"), _argument("arg2")]
        self.listed = {
            "test_simple_prompt": _prompt("test_simple_prompt"),
            "test_prompt_with_arguments": _prompt("test_prompt_with_arguments", both),
            "test_prompt_with_embedded_resource": _prompt(
                "test_prompt_with_embedded_resource", [_argument("resourceUri")]
            ),
            "test_prompt_with_image": _prompt("test_prompt_with_image"),
            "test_input_required_result_prompt": _prompt("test_input_required_result_prompt"),
        }

    def change(self) -> None:
        """Have one more, or one fewer."""
        if self.listed.pop("test_passing_prompt", None) is None:
            self.listed["test_passing_prompt"] = _prompt("test_passing_prompt")

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        """All."""
        return types.ListPromptsResult(prompts=[self.listed[name] for name in sorted(self.listed)])

    async def get(
        self, context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        """One, filled in."""
        if params.name not in self.listed:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name!r}")
        if params.name != "test_input_required_result_prompt":
            return types.GetPromptResult(messages=_messages(params.name, params.arguments or {}))
        requests = {"user_context": form("What context should the prompt use?", _CONTEXT)}
        given = await answers_to(context, params, requests)
        if isinstance(given, types.InputRequiredResult):
            return given
        return types.GetPromptResult(messages=[_said(f"In {content_of(given, 'user_context').get('context')}.")])


async def complete(context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    """The words that begin so."""
    values = [word for word in _WORDS if word.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


def _prompt(name: str, arguments: list[types.PromptArgument] | None = None) -> types.Prompt:
    return types.Prompt(name=name, description=f"The prompt {name}.", arguments=arguments)


def _argument(name: str) -> types.PromptArgument:
    return types.PromptArgument(name=name, description=f"The argument {name}.", required=True)


def _messages(name: str, arguments: Mapping[str, Any]) -> list[types.PromptMessage]:
    match name:
        case "test_prompt_with_arguments":
            first, second = arguments.get("arg1"), arguments.get("arg2")
            return [_said(f"Prompt with arguments: arg1='{first}', arg2='{second}'")]
        case "test_prompt_with_embedded_resource":
            uri = str(arguments.get("resourceUri", "test://nothing"))
            resource = embedded(uri, "text/plain", "Embedded resource content for testing.")
            return [
                types.PromptMessage(role="user", content=resource),
                _said("Please process the embedded resource above."),
            ]
        case "test_prompt_with_image":
            return [types.PromptMessage(role="user", content=image()), _said("Please analyze the image above.")]
        case _:
            return [_said("This is a simple prompt for testing.")]


def _said(text: str) -> types.PromptMessage:
    return types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
