"""Defines the types of settings, and reads those that are lists or mappings from an environment variable."""

import functools
import json
from collections.abc import Callable
from ipaddress import ip_network
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter
from pydantic_core import CoreSchema, core_schema
from pydantic_settings import NoDecode

K = TypeVar("K")
V = TypeVar("V")

_SWITCH = TypeAdapter(bool)


def read_json(value: Any) -> Any:
    """Read a setting's JSON text; any other value is returned as it is. Raises `ValueError` with the reason if it is invalid."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as exc:
        raise ValueError(f"must be JSON ({exc})") from exc


def read_switched(value: Any) -> Any:
    """Read a setting that is a switch, or on with a table of its own; off is none. Raises `ValueError` if it is invalid."""
    try:
        return {} if _SWITCH.validate_python(value) else None
    except ValueError:
        return read_json(value)


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


class _Later:
    """Has pydantic build a setting's validator with its first value: those of agents and hosts take half as long as all others."""

    def __get_pydantic_core_schema__(self, source: type[Any], _: Callable[[Any], CoreSchema]) -> CoreSchema:
        adapter = functools.cache(lambda: TypeAdapter[Any](source))
        return core_schema.no_info_plain_validator_function(
            lambda value: adapter().validate_python(value) if value != {} else {}
        )

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        return {"type": "object"}


Count = Annotated[int, Field(gt=0)]

Mapped = Annotated[dict[K, V], NoDecode, BeforeValidator(read_json)]
"""A mapping, as JSON."""

MappedModels = Annotated[dict[K, V], NoDecode, _Later(), BeforeValidator(read_json)]
"""The same, for values that few processes have, and whose validators take long to build."""

Names = Annotated[frozenset[K], NoDecode, BeforeValidator(read_list)]
"""A set, comma-separated or as a list in JSON."""

Ordered = Annotated[tuple[K, ...], NoDecode, BeforeValidator(read_list)]
"""The same, in an order."""

Networks = Annotated[tuple[str, ...], NoDecode, BeforeValidator(read_list), AfterValidator(_check_networks)]
"""CIDRs, comma-separated or as a list in JSON."""
