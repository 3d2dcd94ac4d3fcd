"""Reads how MCP servers are served: from the words of a command, or from a file of servers in the form of other programs."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from toolfleet_registry.config.host_settings import McpSpec
from toolfleet_registry.contracts.names import RESERVED, is_module_name
from toolfleet_registry.errors import SettingsError

_MOST_BYTES = 4 * 2**20
_DIGEST = 8  # hex digits
_OLD = {"sse"}  # transports that are no longer used


def servers_in(file: Path, *, may_be_none: bool = False) -> dict[str, McpSpec]:
    """Return the servers by the names of their modules; disabled servers are left out.

    Raises `SettingsError` for a file that is none, and for a server that cannot be meant; it shows no value. So it does for a
    file without servers, unless there `may_be_none`.
    """
    listed = _listed(file)
    found: dict[str, McpSpec] = {}
    for name, facts in listed.items():
        if isinstance(facts, Mapping) and facts.get("disabled") is True:
            continue
        try:
            found[module_of(name)] = _spec(facts)
        except SettingsError as exc:
            raise SettingsError(f"The server {name[:80]!r} in {file}: {exc}") from None
    if not found and not may_be_none:
        raise SettingsError(f"{file} has no servers.")
    return found


def module_of(name: str) -> str:
    """Return the module's name for a server: the server's name if it is valid, else its readable part and a digest of it."""
    if is_module_name(name) and name not in RESERVED:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", name, flags=re.ASCII).strip("-")[:40]
    return f"{readable or 'server'}-{digest}"


def _listed(file: Path) -> Mapping[str, Any]:
    try:
        data = file.read_bytes()
    except OSError as exc:
        raise SettingsError(f"{file} cannot be read: {exc.strerror}.") from None
    if len(data) > _MOST_BYTES:
        raise SettingsError(f"{file} has more than {_MOST_BYTES} bytes.")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise SettingsError(f"{file} is not JSON.") from None
    listed = document.get("mcpServers", document.get("servers")) if isinstance(document, dict) else None
    if not isinstance(listed, dict):
        raise SettingsError(f"{file} has no object `mcpServers`.")
    return listed


def _spec(facts: Any) -> McpSpec:
    """Return the spec of a server's table. Fields that only other programs understand are ignored."""
    if not isinstance(facts, dict):
        raise SettingsError("it is no object.")
    if facts.get("type") in _OLD or facts.get("transport") in _OLD:
        raise SettingsError("it speaks the transport `sse`, which was replaced by Streamable HTTP in 2025.")
    args = facts.get("args") or []
    if not isinstance(args, list):
        raise SettingsError("args: it is no list.")
    program = facts.get("command")
    said: dict[str, Any] = {
        "command": () if program is None else (program, *args),
        "url": facts.get("url", facts.get("serverUrl")),
        "directory": facts.get("cwd"),
        "env": _texts(facts, "env"),
        "headers": _texts(facts, "headers"),
    }
    own = facts.get("toolfleet")
    return checked_spec({**said, **(own if isinstance(own, dict) else {})})


def _texts(facts: Mapping[str, Any], key: str) -> Any:
    """Return variables or headers with `${NAME}` in place of `${env:NAME}`."""
    texts = facts.get(key) or {}
    if not isinstance(texts, dict):
        return texts
    return {name: text.replace("${env:", "${") if isinstance(text, str) else text for name, text in texts.items()}


def spec_of(*, env: Sequence[str], headers: Sequence[str], **facts: Any) -> McpSpec:
    """Return the spec of the options of `toolfleet host mcp`. Raises `SettingsError`."""
    return checked_spec({**facts, "env": _pairs(env, "=", "--env"), "headers": _pairs(headers, ":", "--header")})


def checked_spec(facts: Mapping[str, Any]) -> McpSpec:
    """Return a spec with these fields. Raises `SettingsError`, which shows no value."""
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
