"""Reads a request for the short lane; whatever is not plainly one of 2026-07-28 is left to the SDK, which knows each rule."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
from mcp_types.version import LATEST_MODERN_VERSION

from toolfleet_gateway.mcp.calls.call_tasks import EXTENSION
from toolfleet_gateway.mcp.calls.client_kinds import kinds_of, takes_forms
from toolfleet_gateway.mcp.calls.tool_calls import McpCall
from toolfleet_registry.contracts.logs import is_log_level

Headers = list[tuple[bytes, bytes]]

_METHOD: Final = "tools/call"
_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_BODY: Final = frozenset({"jsonrpc", "id", "method", "params"})
_WANTED: Final = {b"mcp-protocol-version": LATEST_MODERN_VERSION.encode(), b"mcp-method": _METHOD.encode()}
_ACCEPTED: Final = (b"application/json", b"text/event-stream")
_PROGRESS: Final = "progressToken"
_OTHERS: Final = b"mcp-param-"  # arguments that travel as headers, too


@dataclass(frozen=True, slots=True)
class LaneRequest:
    """A request for the lane."""

    id: str | int
    call: McpCall


def named_tool(headers: Headers) -> str | None:
    """The tool that a request's headers name, if they are those of a call that may take the lane."""
    found = {name: value for name, value in headers if name.startswith(b"mcp-") or name == b"accept"}
    if sum(name in found for name, _ in headers) != len(found) or any(name.startswith(_OTHERS) for name in found):
        return None  # one appears twice
    if any(found.get(name) != value for name, value in _WANTED.items()):
        return None
    accepted = found.get(b"accept", b"").lower()
    name = found.get(b"mcp-name", b"")
    if not all(each in accepted for each in _ACCEPTED) or not name.isascii() or name.startswith(b"=?"):
        return None
    return name.decode()


def lane_request(body: bytes, name: str) -> LaneRequest | None:
    """The request, if it is well-formed and calls the tool that its headers name."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict) or asked.keys() != _BODY or asked["jsonrpc"] != "2.0" or asked["method"] != _METHOD:
        return None
    params, number = asked["params"], asked["id"]
    if not _is_token(number) or not isinstance(params, dict):
        return None
    arguments, meta = params.get("arguments", {}), params.get("_meta")
    if not params.keys() <= _PARAMS or params.get("name") != name or not isinstance(arguments, dict):
        return None
    if not isinstance(meta, dict) or not _is_enveloped(meta):
        return None
    declared = meta[types.CLIENT_CAPABILITIES_META_KEY]
    takes_tasks = EXTENSION in (declared.get("extensions") or {})
    kinds, token = kinds_of(declared), meta.get(_PROGRESS)
    level = meta.get(types.LOG_LEVEL_META_KEY)
    has_forms = takes_forms(declared)
    call = McpCall(name, arguments, meta, token, level, takes_tasks=takes_tasks, takes_forms=has_forms, kinds=kinds)
    return LaneRequest(number, call)


def _is_token(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _is_enveloped(meta: Mapping[str, Any]) -> bool:
    """Whether a request says what each must say of its client."""
    token, level = meta.get(_PROGRESS), meta.get(types.LOG_LEVEL_META_KEY)
    return (
        meta.get(types.PROTOCOL_VERSION_META_KEY) == LATEST_MODERN_VERSION
        and isinstance(meta.get(types.CLIENT_CAPABILITIES_META_KEY), dict)
        and (token is None or _is_token(token))
        and (level is None or is_log_level(level))
    )
