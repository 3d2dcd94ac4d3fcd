"""How our messages are written down: as one JSON string, which is all that Celery and kombu get to see.

Kombu's own JSON decoder turns a dictionary of the shape {"__type__": …} into a Python object, or raises. Arguments
and results are other people's data and must pass unchanged, so no decoder but this one ever looks inside.
"""

import json
from typing import TypeVar

from pydantic_core import from_json

from toolfleet_registry.contracts import Message

M = TypeVar("M", bound=Message)

# pydantic's own JSON would write null for NaN. The only things here that JSON does not have are sets of names.
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=sorted).encode


def dump(message: Message) -> str:
    """A message as ASCII JSON; a lone surrogate in somebody's text stays the escape that it came as.

    Raises `ValueError` for NaN and infinities, which are no JSON.
    """
    try:
        text = message.model_dump_json(exclude_defaults=True)
    except ValueError:  # a lone surrogate
        text = ""
    # A third of the time of the other way, which is for what pydantic would write differently: null for NaN is among it.
    if text.isascii() and text and "null" not in text:
        return text
    return _encode(message.model_dump(exclude_defaults=True))


def load(kind: type[M], text: str) -> M:
    """Read what `dump` wrote. Raises `ValueError` (pydantic's among them) for anything else."""
    try:
        return kind.model_validate(_read(text))
    except RecursionError as exc:  # thousands of brackets
        raise ValueError("nested too deeply") from exc


def _read(text: str) -> object:
    try:
        # To look each text up among those seen before takes longer than to make it; names are worth it.
        return from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return json.loads(text)  # takes a lone surrogate
