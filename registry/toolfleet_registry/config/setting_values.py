"""Defines the types of settings, and reads one that is a mapping from an environment variable."""

import json
from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode


def _whole(seconds: float) -> float:
    """Return a whole number as an integer: so it is shown and sent."""
    return int(seconds) if seconds.is_integer() else seconds


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_whole)]
Count = Annotated[int, Field(gt=0)]


def read_json(text: str) -> Any:
    """Read a setting's JSON text. Raises `ValueError` with the reason if it is invalid."""
    try:
        return json.loads(text)
    except ValueError as exc:
        raise ValueError(f"must be JSON ({exc})") from exc


def read_list(value: Any) -> Any:
    """Read a setting's list, comma-separated or JSON. Raises `ValueError` with the reason if it is invalid."""
    if not isinstance(value, str):
        return value
    return (
        read_json(value)
        if value.lstrip().startswith("[")
        else [part.strip() for part in value.split(",") if part.strip()]
    )


def _check_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    for network in networks:
        try:
            ip_network(network)
        except ValueError as exc:
            raise ValueError(f"{network!r} is no network such as 10.0.0.0/8 or fd00::/8") from exc
    return networks


Networks = Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_list), AfterValidator(_check_networks)]
"""CIDRs, comma-separated or as a list in JSON."""
