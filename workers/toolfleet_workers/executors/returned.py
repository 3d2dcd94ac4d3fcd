"""What a local function returned, as JSON of a bounded size."""

import asyncio
import json
from typing import Any

from pydantic import BaseModel

from toolfleet_registry.bodies import loads_strict
from toolfleet_registry.errors import BodyTooLarge

_TURN_BYTES = 2**16  # written before other calls get their turn


async def as_json(value: Any, *, max_bytes: int) -> Any:
    """The value as it comes out of JSON: tuples are lists, names are strings; a pydantic model is its fields.

    Raises `BodyTooLarge` as soon as it is more than `max_bytes`, and `ValueError`, with a reason that repeats no value,
    for what is no JSON.
    """
    content = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    text, turn = bytearray(), _TURN_BYTES
    try:
        for piece in _JSON.iterencode(content):
            text += piece.encode()
            if len(text) > max_bytes:
                raise BodyTooLarge(max_bytes)
            if len(text) > turn:
                turn = len(text) + _TURN_BYTES
                await asyncio.sleep(0)
    except TypeError as exc:  # names types only
        raise ValueError(str(exc)) from None
    except (ValueError, RecursionError, RuntimeError) as exc:
        raise ValueError(_reason(exc)) from None
    return loads_strict(bytes(text))


def _reason(exc: Exception) -> str:
    if isinstance(exc, RecursionError) or "Circular" in str(exc):
        return "it is nested too deeply, or contains itself"
    if isinstance(exc, RuntimeError):
        return "it was changed while it was being read"
    return "it has a number that is not finite, or too long"


_JSON = json.JSONEncoder(allow_nan=False)
