"""Translates what an MCP server asks in the middle of a call, and what it is answered, for servers that are called again then."""

import json
from collections.abc import Mapping
from typing import Any

import mcp_types as types

from toolfleet_registry.contracts import EffectState
from toolfleet_registry.contracts.inputs import CallInputs
from toolfleet_registry.functions.failures import InputRequired

TAKES_INPUT = "toolfleet/takesInput"
"""Stands in a call's `_meta` on its way to the dispatcher, and never leaves the host."""

_CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
# A state that is not there differs from an empty one, and must come back as it was.
_STATE = "requestState"


def question_of(answer: Mapping[str, Any], *, effect_state: EffectState) -> InputRequired:
    """Return the question in a server's answer. Raises `ValueError` for one that cannot be asked."""
    state = answer.get(_STATE)
    kept = json.dumps({} if state is None else {_STATE: state})
    return InputRequired(answer.get("inputRequests") or {}, kept, effect_state=effect_state)


def answers_of(inputs: CallInputs | None) -> dict[str, Any]:
    """Return the parameters sent with a call's name and arguments, once it is answered.

    Raises `ValueError` for a foreign state.
    """
    if inputs is None:
        return {}
    state = json.loads(inputs.state)
    if not isinstance(state, dict):
        raise ValueError("a state is an object")  # noqa: TRY004 - as for what is no JSON
    return {"inputResponses": inputs.responses, **{key: value for key, value in state.items() if key == _STATE}}


def asking(meta: Mapping[str, Any]) -> dict[str, Any]:
    """A request's `_meta` for a server that may ask: its client can answer. Older versions declare that in the handshake."""
    declared = meta.get(types.CLIENT_CAPABILITIES_META_KEY)
    if declared is None:
        return dict(meta)
    return {**meta, types.CLIENT_CAPABILITIES_META_KEY: {**declared, **_CAPABILITIES}}
