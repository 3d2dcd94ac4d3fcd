"""Offers tools that ask for input in several ways and rounds."""

from collections.abc import Mapping
from typing import Any

import mcp_types as types

from conformance.everything.asking import answers_to, content_of, form, sampling
from conformance.everything.tools import Answer, Call, Tools, said

_NAME = {"name": {"type": "string"}}
_OK = {"ok": {"type": "boolean"}}
_PREFIX = "test_input_required_result_"


def add_round_tools(tools: Tools) -> None:
    """Offer them."""
    tools.add(f"{_PREFIX}elicitation", _elicitation, "Asks for a name.")
    tools.add(f"{_PREFIX}sampling", _sampling, "Asks a model for a capital.")
    tools.add(f"{_PREFIX}list_roots", _roots, "Asks for the client's roots.")
    tools.add(f"{_PREFIX}request_state", _state, "Asks, and has its state come back.")
    tools.add(f"{_PREFIX}tampered_state", _state, "Asks, and takes no other state back.")
    tools.add(f"{_PREFIX}multiple_inputs", _several, "Asks for three things at once.")
    tools.add(f"{_PREFIX}multi_round", _rounds, "Asks twice.")
    tools.add(f"{_PREFIX}capabilities", _capable, "Asks for what the client can give.")


async def _elicitation(call: Call) -> Answer:
    given = await answers_to(call.context, call.params, {"user_name": form("What is your name?", _NAME)})
    if isinstance(given, types.InputRequiredResult):
        return given
    return said(f"Hello, {content_of(given, 'user_name').get('name')}!")


async def _sampling(call: Call) -> Answer:
    return await _completed(call, {"capital_question": sampling("What is the capital of France?")})


async def _roots(call: Call) -> Answer:
    return await _completed(call, {"client_roots": types.ListRootsRequest()})


async def _state(call: Call) -> Answer:
    given = await answers_to(call.context, call.params, {"confirm": form("Please confirm", _OK)}, state="asked")
    if isinstance(given, types.InputRequiredResult):
        return given
    return said("state-ok" if call.params.request_state in {"asked", None} else "another state")


async def _several(call: Call) -> Answer:
    requests: dict[str, types.InputRequest] = {
        "user_name": form("What is your name?", _NAME),
        "greeting": sampling("Generate a greeting", 50),
        "client_roots": types.ListRootsRequest(),
    }
    return await _completed(call, requests, state="asked")


async def _rounds(call: Call) -> Answer:
    """The state says which round it is, and has the answers of those before."""
    first = {"step1": form("Step 1: What is your name?", _NAME)}
    second = {"step2": form("Step 2: What is your favorite color?", {"color": {"type": "string"}})}
    name = (call.params.request_state or "").removeprefix("named:") or None
    if name is None or name == "asked":
        given = await answers_to(call.context, call.params, first, state="asked")
        if isinstance(given, types.InputRequiredResult):
            return given
        name = str(content_of(given, "step1").get("name"))
    given = await answers_to(call.context, call.params, second, state=f"named:{name}")
    if isinstance(given, types.InputRequiredResult):
        return given
    return said(f"{name} likes {content_of(given, 'step2').get('color')}.")


async def _capable(call: Call) -> Answer:
    declared = call.context.session.client_capabilities or types.ClientCapabilities()
    requests: dict[str, types.InputRequest] = {}
    if declared.sampling is not None:
        requests["sampled"] = sampling("Say something")
    if declared.elicitation is not None:
        requests["filled"] = form("Please confirm", _OK)
    if not requests:
        return said("The client can give nothing.")
    return await _completed(call, requests)


async def _completed(call: Call, requests: Mapping[str, Any], state: str | None = None) -> Answer:
    given = await answers_to(call.context, call.params, requests, state)
    if isinstance(given, types.InputRequiredResult):
        return given
    return said("; ".join(f"{key}: {response.model_dump_json()}" for key, response in given.items()))
