"""Defines what a module may ask whoever began a call, before it goes on, and how that is answered.

Methods, parameters and answers are those of the Model Context Protocol; the fleet passes them on as they are.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import Field

from toolfleet_registry.contracts.message import Message

MOST_ROUNDS = 16
"""How often one call may ask."""

InputMethod = Literal["elicitation/create", "sampling/createMessage", "roots/list"]
"""What is asked: of a person, of a model, or where the client's files are."""
METHODS: tuple[InputMethod, ...] = get_args(InputMethod)


class InputRequest(Message):
    """One thing that a module asks."""

    method: InputMethod
    """What kind of request it is, as the Model Context Protocol names it."""
    params: dict[str, Any] = Field(default_factory=dict)
    """What the protocol has beside the method."""


class PendingInput(Message):
    """What a call waits for. The answer has one JSON object under each key of `requests`."""

    round: int
    """Which question of the call it is, from 1."""
    requests: dict[str, InputRequest]
    """What is asked, by the keys that the answer has, too."""


class CallInputs(Message):
    """What the next attempt of a call brings its module: the answers to question `round`, and the state it has given away.

    `so_far`: what the call may have done before it asked.
    """

    round: int = Field(ge=1, le=MOST_ROUNDS)
    responses: dict[str, Any]
    state: str = ""
    so_far: Literal["none", "done", "unknown"] = "unknown"


def requests_of(requests: Mapping[str, Any]) -> dict[str, InputRequest]:
    """Checked requests as messages; what else they say is left out."""
    return {
        key: InputRequest(method=request["method"], params=dict(request.get("params", {})))
        for key, request in requests.items()
    }
