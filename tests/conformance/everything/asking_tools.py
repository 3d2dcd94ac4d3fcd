"""Offers tools that ask for input once."""

from collections.abc import Mapping
from typing import Any

import mcp_types as types

from conformance.everything.asking import answers_to, check_declared, content_of, form, sampling
from conformance.everything.tools import Answer, Call, Tools, said

_TEXT = {"type": "string"}
_DEFAULTS: dict[str, Any] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
_CHOICES: dict[str, Any] = {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {
        "type": "string",
        "oneOf": [{"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second"), 1)],
    },
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
    "titledMulti": {
        "type": "array",
        "items": {
            "anyOf": [
                {"const": f"value{n}", "title": f"{word} Choice"} for n, word in enumerate(("First", "Second"), 1)
            ]
        },
    },
}


def add_asking_tools(tools: Tools) -> None:
    """Offer them."""
    tools.add("test_sampling", _sampling, "Has the client's model say something.", {"prompt": _TEXT})
    tools.add("test_elicitation", _elicitation, "Asks the user.", {"message": _TEXT})
    tools.add("test_elicitation_sep1034_defaults", _defaults, "Asks with defaults.")
    tools.add("test_elicitation_sep1330_enums", _choices, "Asks with choices.")
    tools.add("test_streaming_elicitation", _streaming, "Says how far it is, and asks then.")
    tools.add("test_missing_capability", _missing, "Needs a client that can sample.")


async def _sampling(call: Call) -> Answer:
    check_declared(call.context, "sampling")
    requests = {"answer": sampling(str(call.arguments.get("prompt", "")))}
    given = await answers_to(call.context, call.params, requests)
    if isinstance(given, types.InputRequiredResult):
        return given
    answer = given["answer"]
    block = answer.content if isinstance(answer, types.CreateMessageResult) else None
    return said(f"LLM response: {block.text if isinstance(block, types.TextContent) else ''}")


async def _elicitation(call: Call) -> Answer:
    wanted = {"username": _TEXT, "email": _TEXT}
    return await _asked(call, str(call.arguments.get("message", "")), wanted, "User response:")


async def _defaults(call: Call) -> Answer:
    return await _asked(call, "Please look at the defaults", _DEFAULTS, "Elicitation completed:")


async def _choices(call: Call) -> Answer:
    return await _asked(call, "Please choose", _CHOICES, "Elicitation completed:")


async def _streaming(call: Call) -> Answer:
    await call.context.session.report_progress(1, 2)
    return await _asked(call, "Please go on", {"ok": {"type": "boolean"}}, "Gone on:")


async def _missing(call: Call) -> Answer:
    check_declared(call.context, "sampling")
    return said("The client can sample.")


async def _asked(call: Call, message: str, properties: Mapping[str, Any], words: str) -> Answer:
    check_declared(call.context, "elicitation")
    given = await answers_to(call.context, call.params, {"answer": form(message, properties)})
    if isinstance(given, types.InputRequiredResult):
        return given
    answer = given["answer"]
    action = answer.action if isinstance(answer, types.ElicitResult) else "none"
    return said(f"{words} action={action}, content={dict(content_of(given, 'answer'))}")
