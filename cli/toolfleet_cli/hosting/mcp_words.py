"""Reads how an MCP server is served from the words of a command."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from toolfleet_registry.config.host_settings import McpSpec
from toolfleet_registry.errors import SettingsError


def spec_of(*, env: Sequence[str], headers: Sequence[str], **facts: Any) -> McpSpec:
    """Return the spec of the options of `toolfleet host mcp`. Raises `SettingsError`."""
    return checked_spec({**facts, "env": _pairs(env, "=", "--env"), "headers": _pairs(headers, ":", "--header")})


def checked_spec(facts: Mapping[str, Any]) -> McpSpec:
    """A spec of these facts. Raises `SettingsError`, which shows no value."""
    try:
        return McpSpec.model_validate(dict(facts))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        words = first["msg"].removeprefix("Value error, ")
        raise SettingsError(f"{place}: {words}." if place else f"{words[:1].upper()}{words[1:]}.") from None


def _pairs(words: Sequence[str], sign: str, option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, said, value = word.partition(sign)
        if not said or not key.strip():
            raise SettingsError(f"{option} takes a name, '{sign}' and a value.")
        found[key.strip()] = value.strip()
    return found
