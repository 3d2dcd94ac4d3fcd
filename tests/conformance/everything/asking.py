"""Asks a client for input, as its era does: newer ones answer with the repeated request, older ones on the open session."""

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

from conformance.everything.tools import Context

Responses = Mapping[str, types.InputResponse]

_NEWER = "2026"
_ANSWERS: dict[str, Any] = {
    "elicitation/create": types.ElicitResult,
    "sampling/createMessage": types.CreateMessageResult,
    "roots/list": types.ListRootsResult,
}


async def answers_to(
    context: Context,
    params: types.InputResponseRequestParams,
    requests: Mapping[str, types.InputRequest],
    state: str | None = None,
) -> Responses | types.InputRequiredResult:
    """The client's answers to all `requests`, or what says that they are wanted; `state` comes back with them.

    Raises `MCPError` where a client of the older eras cannot give one.
    """
    if context.protocol_version < _NEWER:
        return {key: await _asked(context, request) for key, request in requests.items()}
    given = params.input_responses or {}
    if all(_fits(request, given.get(key)) for key, request in requests.items()):
        return given
    return types.InputRequiredResult(input_requests=dict(requests), request_state=state)


def form(message: str, properties: Mapping[str, Any]) -> types.ElicitRequest:
    """A request for a form; all of it is required."""
    schema = {"type": "object", "properties": dict(properties), "required": list(properties)}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(text: str, most_tokens: int = 100) -> types.CreateMessageRequest:
    """A request for what a model says to a text."""
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=most_tokens)
    )


def content_of(responses: Responses, key: str) -> Mapping[str, Any]:
    """What was filled in; nothing where it was declined."""
    response = responses[key]
    return (response.content or {}) if isinstance(response, types.ElicitResult) else {}


def check_declared(context: Context, capability: str) -> None:
    """Raise `MCPError` unless the client has said that it can do this."""
    declared = context.session.client_capabilities
    if declared is None or getattr(declared, capability) is None:
        needed: dict[str, Any] = {"requiredCapabilities": {capability: {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, f"it needs {capability}", needed)


def _fits(request: types.InputRequest, response: types.InputResponse | None) -> bool:
    return isinstance(response, _ANSWERS[request.method])


async def _asked(context: Context, request: types.InputRequest) -> types.InputResponse:
    metadata = ServerMessageMetadata(related_request_id=context.request_id)
    kind: type[types.InputResponse] = _ANSWERS[request.method]
    return await context.session.send_request(request, kind, metadata=metadata)
