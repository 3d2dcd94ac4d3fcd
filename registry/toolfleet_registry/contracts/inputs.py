"""Defines what modules ask of those who call them, and how much of it there may be.

Methods, parameters and answers are those of the Model Context Protocol; the fleet passes them on as they are.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import Field

from toolfleet_registry.contracts.message import Message

MOST_REQUESTS = 32
"""How much it may ask at once."""
REQUESTS_BYTES = 256 * 1024
"""Of all requests of a round, as ASCII JSON."""
STATE_BYTES = 64 * 1024
"""Of a module's state, as ASCII JSON."""
RESPONSES_BYTES = 128 * 1024
"""Of all answers of a round, as ASCII JSON."""
LONGEST_KEY = 128  # characters


_DEEPEST = 64


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
    """The parameters of the method, as the protocol defines them."""


class PendingInput(Message):
    """The questions that a call waits for. The answer has one JSON object under each key of `requests`."""

    round: int
    """Which question of the call it is, from 1."""
    requests: dict[str, InputRequest]
    """What is asked, by the keys that the answer has, too."""


class CallInputs(Message):
    """The input of a call's next attempt: the answers to question `round`, and the state that the module has handed out.

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


def check_requests(requests: object, state: object) -> None:
    """Raise `ValueError`, with a reason that can be shown, for requests that are none, are too many or too large, or a state that is."""
    if not isinstance(requests, Mapping) or not 1 <= len(requests) <= MOST_REQUESTS:
        raise ValueError(f"'requests' has 1 to {MOST_REQUESTS} requests by their keys")
    for key, request in requests.items():
        if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
            raise ValueError(f"a key of 'requests' has 1 to {LONGEST_KEY} printable characters")
        if not isinstance(request, Mapping) or not isinstance(request.get("params", {}), Mapping):
            raise ValueError("a request is an object with 'method' and 'params'")
        if request.get("method") not in METHODS:
            raise ValueError(f"a request's method is one of {', '.join(METHODS)}")
    if not isinstance(state, str):
        raise ValueError("'state' is a text")
    if _size(requests) > REQUESTS_BYTES:
        raise ValueError(f"'requests' have at most {REQUESTS_BYTES} bytes as JSON")
    if _size(state) > STATE_BYTES:
        raise ValueError(f"'state' has at most {STATE_BYTES} bytes as JSON")


def check_responses(asked: PendingInput, responses: object) -> None:
    """Raise `ValueError`, with a reason that can be shown, for what does not answer each request of `asked` by an object."""
    if not isinstance(responses, Mapping) or set(responses) != set(asked.requests):
        raise ValueError(f"an answer has one object for each of {', '.join(map(repr, sorted(asked.requests)))}")
    if not all(isinstance(response, Mapping) for response in responses.values()):
        raise ValueError("each answer is a JSON object")
    if _size(responses) > RESPONSES_BYTES:
        raise ValueError(f"answers have at most {RESPONSES_BYTES} bytes as JSON")


def _size(content: object) -> int:
    """Return the size in bytes as ASCII JSON.

    Raises `ValueError` for a value that is no JSON, or is nested too deeply to be read.
    """
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except (TypeError, RecursionError) as exc:
        raise ValueError("it is no JSON") from exc
    if max(text.count("["), text.count("{")) > _DEEPEST and _is_deep(content):
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    return len(text)


def _is_deep(content: object) -> bool:
    level = [content]
    for _ in range(_DEEPEST):
        below = list[object]()
        for node in level:
            if isinstance(node, Mapping):
                below.extend(node.values())
            elif isinstance(node, list | tuple):
                below.extend(node)
        level = below
    return bool(level)
