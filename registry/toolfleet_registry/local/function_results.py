"""Writes a local function's return value as JSON of a bounded size, and its files separately."""

import asyncio
import dataclasses
import json
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from toolfleet_registry.contracts.result_files import MOST_FILES, ResultFile
from toolfleet_registry.errors import BodyTooLarge
from toolfleet_registry.functions.files import File, Gathered
from toolfleet_registry.system.http_bodies import loads_strict

_TURN_BYTES = 2**16  # written before other calls get their turn


async def as_json(value: Any, *, max_bytes: int) -> tuple[Any, tuple[ResultFile, ...]]:
    """Return the value as decoded JSON, and its files, which are replaced by their labels.

    Tuples are lists, names are strings; a pydantic model or a dataclass is its fields. Raises `BodyTooLarge` for more
    than `max_bytes`, files as base64 included, and `ValueError`, with a reason that repeats no value, for a value that
    is no JSON.
    """
    gathered, text, turn = _Bounded(max_bytes), bytearray(), _TURN_BYTES
    try:
        for piece in json.JSONEncoder(allow_nan=False, default=gathered.plain).iterencode(value):
            text += piece.encode()
            gathered.require_space(len(text))
            if len(text) > turn:
                turn = len(text) + _TURN_BYTES
                await asyncio.sleep(0)
    except BodyTooLarge:
        raise
    except TypeError as exc:  # names types only
        raise ValueError(str(exc)) from None
    except (ValueError, RecursionError, RuntimeError) as exc:
        gathered.require_space(len(text))  # it may be this that pydantic words in its own way
        raise ValueError(_reason(exc)) from None
    except Exception:  # noqa: BLE001 - a model's own code runs here, which may raise anything
        gathered.require_space(len(text))
        raise ValueError("a part of it cannot be read") from None
    if len(gathered.files) > MOST_FILES:
        raise ValueError(f"it has {len(gathered.files)} files; at most {MOST_FILES} can be sent")
    return loads_strict(bytes(text)), tuple(gathered.files)


class _Bounded(Gathered):
    """Takes no more than so many bytes of files as base64, before it encodes them."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._taken = 0

    def require_space(self, text_bytes: int = 0) -> None:
        """Raise `BodyTooLarge` if what has come until now is more, with so much text."""
        if self._taken + text_bytes > self._max_bytes:
            raise BodyTooLarge(self._max_bytes)

    def add(self, value: object) -> str:
        """Add a file and return its label. Raises `TypeError` for any other value."""
        if not isinstance(value, File):
            raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
        self._taken += len(value.data) * 4 // 3
        self.require_space()
        return super().add(value)

    def plain(self, value: object) -> Any:
        """Return the JSON form of a value that JSON does not have. Raises `TypeError` if there is none."""
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json", context=self, fallback=self.add, warnings=False)  # they quote values
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return to_jsonable_python(value, inf_nan_mode="constants", context=self, fallback=self.add)
        return self.add(value)


def _reason(exc: Exception) -> str:
    if isinstance(exc, RecursionError) or "Circular" in str(exc):
        return "it is nested too deeply, or contains itself"
    if isinstance(exc, PydanticSerializationError):  # whose words may quote values
        return "a part of it is no JSON"
    if isinstance(exc, RuntimeError):
        return "it was changed while it was being read"
    return "it has a number that is not finite, or too long"
