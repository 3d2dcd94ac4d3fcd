"""Defines the types of settings, and reads those that are lists or mappings from an environment variable."""

import json
from ipaddress import ip_network
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

K = TypeVar("K")
V = TypeVar("V")


def read_json(value: Any) -> Any:
    """Read a setting's JSON text; any other value is returned as it is. Raises `ValueError` with the reason if it is invalid."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as exc:
        raise ValueError(f"must be JSON ({exc})") from exc


def read_list(value: Any) -> Any:
    """Read a setting's list, comma-separated or JSON. Raises `ValueError` with the reason if it is invalid."""
    if not isinstance(value, str) or value.lstrip().startswith("["):
        return read_json(value)
    return [part.strip() for part in value.split(",") if part.strip()]


def _check_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    for network in networks:
        try:
            ip_network(network)
        except ValueError as exc:
            raise ValueError(f"{network!r} is no network such as 10.0.0.0/8 or fd00::/8") from exc
    return networks


Count = Annotated[int, Field(gt=0)]

Mapped = Annotated[dict[K, V], NoDecode, BeforeValidator(read_json)]
"""A mapping, as JSON."""

Names = Annotated[frozenset[K], NoDecode, BeforeValidator(read_list)]
"""A set, comma-separated or as a list in JSON."""

Ordered = Annotated[tuple[K, ...], NoDecode, BeforeValidator(read_list)]
"""The same, in an order."""

Networks = Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_list), AfterValidator(_check_networks)]
"""CIDRs, comma-separated or as a list in JSON."""
