"""Defines the types of settings, and reads one that is a mapping from an environment variable."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, Field


def _whole(seconds: float) -> float:
    """Without a fraction, an integer: so it is shown and sent."""
    return int(seconds) if seconds.is_integer() else seconds


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_whole)]
Count = Annotated[int, Field(gt=0)]


def read_json(text: str) -> Any:
    """Read a setting's JSON text. Raises `ValueError` that says what is wrong with it."""
    try:
        return json.loads(text)
    except ValueError as exc:
        raise ValueError(f"must be JSON ({exc})") from exc
