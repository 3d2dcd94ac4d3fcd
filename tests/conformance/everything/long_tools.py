"""Offers tools that take a second or more: whoever calls them wants to follow them as tasks, of which this server knows nothing."""

import asyncio

import mcp_types as types
from mcp.shared.exceptions import MCPError

from conformance.everything.asking import answers_to, content_of, form
from conformance.everything.tools import Answer, Call, Tools, said

_LONG_SECONDS = 1.0
_TEXT = {"type": "string"}
_CONFIRMED = {"confirm": {"type": "boolean"}}
_NAME = {"name": _TEXT}


def add_long_tools(tools: Tools) -> None:
    """Offer them, and one that is quick."""
    tools.add("greet", _greet, "Greets at once.", {"name": _TEXT})
    tools.add("slow_compute", _compute, "Takes as long as it is told.", {"seconds": {"type": "number"}, "label": _TEXT})
    tools.add("failing_job", _failing, "Fails after a second.")
    tools.add("protocol_error_job", _broken, "Ends after a second with an error of the protocol.")
    tools.add("confirm_delete", _delete, "Asks after a second whether it may.", {"filename": _TEXT})
    tools.add("multi_input", _several, "Asks two things after a second.")
    tools.add("test_tool_with_task", _named, "Asks for a name at once, and takes a second then.")


async def _greet(call: Call) -> Answer:
    return said(f"Hello, {call.arguments.get('name')}!")


async def _compute(call: Call) -> Answer:
    await asyncio.sleep(float(call.arguments.get("seconds", 0)))
    return said(f"{call.arguments.get('label', 'It')} is computed.")


async def _failing(call: Call) -> Answer:
    await asyncio.sleep(_LONG_SECONDS)
    return said("The job failed.", is_error=True)


async def _broken(call: Call) -> Answer:
    await asyncio.sleep(_LONG_SECONDS)
    raise MCPError(types.INTERNAL_ERROR, "The job broke.")


async def _delete(call: Call) -> Answer:
    if not call.params.input_responses:
        await asyncio.sleep(_LONG_SECONDS)
    name = call.arguments.get("filename")
    given = await answers_to(call.context, call.params, {"confirmed": form(f"Delete {name}?", _CONFIRMED)})
    if isinstance(given, types.InputRequiredResult):
        return given
    return said(f"{name} is deleted." if content_of(given, "confirmed").get("confirm") else f"{name} is left.")


async def _several(call: Call) -> Answer:
    if not call.params.input_responses:
        await asyncio.sleep(_LONG_SECONDS)
    requests: dict[str, types.InputRequest] = {"first": form("Who?", _NAME), "second": form("Sure?", _CONFIRMED)}
    given = await answers_to(call.context, call.params, requests)
    return given if isinstance(given, types.InputRequiredResult) else said("Both are answered.")


async def _named(call: Call) -> Answer:
    given = await answers_to(call.context, call.params, {"user_name": form("What is your name?", _NAME)}, state="asked")
    if isinstance(given, types.InputRequiredResult):
        return given
    await asyncio.sleep(_LONG_SECONDS)
    return said(f"Hello, {content_of(given, 'user_name').get('name')}!")
