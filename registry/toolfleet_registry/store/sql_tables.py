"""The tables of a registry in SQLite or PostgreSQL, and what is in their rows.

Names and versions are stored as JSON: any text has such a form, and PostgreSQL takes not every text.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import BigInteger, Boolean, Column, Integer, MetaData, String, Table, Text

from toolfleet_registry.specs import RegistryEvent, ToolRegistration, ToolSpec
from toolfleet_registry.store import rules
from toolfleet_registry.store.rules import Standing

METADATA = MetaData()

TOOLS = Table(
    "toolfleet_registry_tools",
    METADATA,
    Column("key", String(64), primary_key=True),  # names are of any length, and an index takes only short ones
    Column("tool_name", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("spec", Text, nullable=False),
)

PINS = Table(
    "toolfleet_registry_pins",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("module", Text, nullable=False),
    Column("tool_name", Text, nullable=False),  # null: the module is pinned, if only to no digest at all
    Column("digest", Text, nullable=False),
)

EVENTS = Table(
    "toolfleet_registry_events",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("tool_name", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),  # microseconds since the epoch
)

STATE = Table(
    "toolfleet_registry_state",
    METADATA,
    Column(
        "id", Integer, primary_key=True, autoincrement=False
    ),  # there is one row, number 1; who changes anything locks it
    Column("epoch_ms", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("events", BigInteger, nullable=False),
)

MANIFESTS = Table(
    "toolfleet_registry_manifests",
    METADATA,
    Column("module", String(64), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("manifest", Text, nullable=False),
)

MODULES = Table(
    "toolfleet_registry_modules",
    METADATA,
    Column("module", String(64), primary_key=True),
    Column("entry", Text, nullable=False),
)

IDENTITY = Table(
    "toolfleet_registry_identity",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),  # there is one row, number 1, and it never changes
    Column("identity", String(32), nullable=False),
)


def key_of(*names: str | None) -> str:
    """What a row is found by."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def tool_row(spec: ToolSpec, standing: Standing) -> dict[str, Any]:
    """A row of `TOOLS`."""
    return {
        "key": key_of(spec.tool_name),
        "tool_name": json.dumps(spec.tool_name),
        "version": json.dumps(standing.version),
        "digest": standing.digest,
        "enabled": standing.enabled,
        "created_at": json.dumps(standing.created_at),
        "spec": rules.text_of(spec),
    }


def pin_rows(module: str, digests: Mapping[str, str]) -> list[dict[str, Any]]:
    """All rows of `PINS` that a pinned module has."""
    pins: list[tuple[str | None, str | None]] = [(None, None), *digests.items()]
    return [
        {
            "key": key_of(module, name),
            "module": json.dumps(module),
            "tool_name": json.dumps(name),
            "digest": json.dumps(digest),
        }
        for name, digest in pins
    ]


def read_standing(row: Any) -> Standing | None:
    """From a row of `TOOLS`; `None` if it cannot be read."""
    try:
        version, created_at = json.loads(row.version), json.loads(row.created_at)
    except (ValueError, RecursionError):
        return None
    if not isinstance(version, str | None) or not isinstance(created_at, str | None):
        return None
    return Standing(version, row.digest, bool(row.enabled), created_at)


def read_registration(name: str, row: Any) -> ToolRegistration:
    """From a row of `TOOLS`. Raises `ValueError` if it is no registration of that tool."""
    standing = read_standing(row)
    try:
        spec = rules.read_spec(row.spec)
    except (ValueError, RecursionError) as exc:
        raise rules.unreadable(name) from exc
    if standing is None or spec.tool_name != name:
        raise rules.unreadable(name)
    return ToolRegistration(spec=spec, enabled=standing.enabled, created_at=standing.created_at)


def read_name(row: Any) -> str:
    """Whose row it is; the text itself, where it is no name."""
    name = _json(row.tool_name)
    return name if isinstance(name, str) else str(row.tool_name)


def read_pins(rows: Any) -> dict[str, dict[str, str]]:
    """By module and tool. What is no pin is left out: its tool is approved by nothing then."""
    pins = dict[str, dict[str, str]]()
    for row in rows:
        match _json(row.module), _json(row.tool_name), _json(row.digest):
            case str(module), str(name), str(digest):
                pins.setdefault(module, {})[name] = digest
            case str(module), _, _:
                pins.setdefault(module, {})
            case _:
                continue
    return {module: dict(sorted(pins[module].items())) for module in sorted(pins)}


def read_event(epoch_ms: int, row: Any) -> RegistryEvent:
    """From a row of `EVENTS`. Raises `ValueError` if it is none."""
    try:
        return RegistryEvent.model_validate(
            {
                "id": rules.event_id(epoch_ms, row.number),
                "kind": row.kind,
                "tool_name": json.loads(row.tool_name),
                "version": json.loads(row.version),
                "digest": row.digest or None,
                "at": datetime.fromtimestamp(row.at_us / 1e6, UTC),
            }
        )
    except (ValidationError, OverflowError, OSError) as exc:
        raise ValueError("no event of a registry") from exc


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
