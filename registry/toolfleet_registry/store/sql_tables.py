"""Defines the tables of a registry in SQLite or PostgreSQL, and the content of their rows.

Names and versions are stored as JSON: any text has such a form, and PostgreSQL does not take every text.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import BigInteger, Boolean, Column, Integer, MetaData, String, Table, Text

from toolfleet_registry.manifests.specs import RegistryEvent, ToolRegistration, ToolSpec
from toolfleet_registry.store import rules
from toolfleet_registry.store.rules import RegistrationState
from toolfleet_registry.system.loggers import get_logger

METADATA = MetaData()

_log = get_logger(__name__)

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

VERSIONS = Table(
    "toolfleet_registry_versions",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("key", String(64), nullable=False, index=True),  # the tool's, as in the table of tools
    Column("place", BigInteger, nullable=False),  # grows: the greater, the later it was in force
    Column("version", Text, nullable=False),
    Column("digest", Text, nullable=False),
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

API_KEYS = Table(
    "toolfleet_registry_api_keys",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("entry", Text, nullable=False),
    Column("used_at", BigInteger, nullable=False),  # seconds since the epoch; 0: never
)

API_KEYS_STATE = Table(
    "toolfleet_registry_api_keys_state",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),  # as that of STATE
    Column("revision", String(32), nullable=False),
)

AGENTS = Table(
    "toolfleet_registry_agents",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("entry", Text, nullable=False),  # what is in force; "" for a removed one
    Column("history", Text, nullable=False),
)

AGENTS_STATE = Table(
    "toolfleet_registry_agents_state",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),  # as that of STATE
    Column("revision", String(32), nullable=False),
)


def key_of(*names: str | None) -> str:
    """Return the key of a row."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def tool_row(spec: ToolSpec, standing: RegistrationState) -> dict[str, Any]:
    """A row of `TOOLS`."""
    return {
        "key": key_of(spec.tool_name),
        "tool_name": json.dumps(spec.tool_name),
        "version": json.dumps(standing.version),
        "digest": standing.digest,
        "enabled": standing.enabled,
        "created_at": json.dumps(standing.created_at),
        "spec": rules.marked(rules.text_of(spec), standing.rolled_back_from),
    }


def version_row(row: Mapping[str, Any], *, place: int) -> dict[str, Any]:
    """A row of `VERSIONS`, from one of `TOOLS`."""
    same = {name: row[name] for name in ("key", "version", "digest", "created_at", "spec")}
    return {**same, "id": version_id(row["key"], row["version"]), "place": place}


def version_id(key: str, version: str) -> str:
    """Return the id of a row of `VERSIONS`; both arguments as they are stored."""
    return key_of(key, version)


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


def read_standing(row: Any) -> RegistrationState | None:
    """Parse the state from a row of `TOOLS`, where `spec` may be shortened to its mark; `None` if it cannot be read."""
    try:
        version, created_at, mark = json.loads(row.version), json.loads(row.created_at), rules.mark_of(row.spec)
    except (ValueError, RecursionError):
        return None
    if not isinstance(version, str | None) or not isinstance(created_at, str | None):
        return None
    return RegistrationState(version, row.digest, bool(row.enabled), created_at, mark)


def read_version(name: str, row: Any, *, enabled: bool) -> ToolRegistration:
    """Parse a row of `VERSIONS`. Raises `ValueError` if it is no specification of that tool."""
    try:
        spec, created_at = rules.read_spec(row.spec), json.loads(row.created_at)
        registration = ToolRegistration(spec=spec, enabled=enabled, created_at=created_at)
    except (ValueError, RecursionError) as exc:
        raise rules.unreadable(name) from exc
    if (spec.tool_name, json.dumps(spec.version)) != (name, row.version):
        raise rules.unreadable(name)
    return registration


def read_registration(name: str, row: Any) -> ToolRegistration:
    """Parse a row of `TOOLS`. Raises `ValueError` if it is no registration of that tool."""
    standing = read_standing(row)
    try:
        spec = rules.read_spec(row.spec)
    except (ValueError, RecursionError) as exc:
        raise rules.unreadable(name) from exc
    if standing is None or spec.tool_name != name:
        raise rules.unreadable(name)
    return standing.registers(spec)


def read_all(rows: Sequence[Any]) -> list[ToolRegistration]:
    """Parse rows of `TOOLS`, sorted by name; unreadable ones are left out, with a warning."""
    found = (read_or_warn(read_name(row), row) for row in rows)
    return sorted((each for each in found if each is not None), key=lambda each: each.spec.tool_name)


def read_or_warn(name: str, row: Any) -> ToolRegistration | None:
    """Parse a row of `TOOLS`; `None`, with a warning, if it cannot be read."""
    try:
        return read_registration(name, row)
    except ValueError as exc:
        _log.warning("registration_unreadable", tool=name, error=str(exc))
        return None


def read_name(row: Any) -> str:
    """Return the name of a row's tool; the text itself, if it is no name."""
    name = _json(row.tool_name)
    return name if isinstance(name, str) else str(row.tool_name)


def read_pins(rows: Any) -> dict[str, dict[str, str]]:
    """Return the pins by module and tool. An unreadable pin is left out: its tool is then not approved."""
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
    """Parse a row of `EVENTS`. Raises `ValueError` if it is none."""
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
