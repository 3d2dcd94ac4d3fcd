"""Writes a registration, a pin and an event for Redis, and reads them back; see `redis_changes.py`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

from pydantic import ValidationError

from toolfleet_registry.manifests.specs import RegistryEvent, ToolRegistration, ToolSpec
from toolfleet_registry.store import rules

_LINES = 4  # of each earlier specification: digest, when it was registered, version, specification

Field = tuple[str, str]
"""A pin, as a hash has it."""


@dataclass(frozen=True)
class Written:
    """A specification on its way to Redis, and what its replies mean."""

    spec: ToolSpec
    digest: str
    rolled_back_from: str | None = None

    @classmethod
    def of(cls, spec: ToolSpec, rolled_back_from: str | None = None) -> Self:
        """Raises `ValueError` if it is no JSON."""
        return cls(spec, rules.digest_of_json(spec), rolled_back_from)

    @cached_property
    def text(self) -> str:
        """As it is stored; most specifications are already there, and it is not needed."""
        return rules.marked(rules.text_of(self.spec), self.rolled_back_from)

    @property
    def arguments(self) -> tuple[str, str, str, str]:
        """Name, digest, version, specification."""
        return self.spec.tool_name, self.digest, version_text(self.spec.version), self.text

    @property
    def named(self) -> dict[str, str]:
        """The same by name."""
        return dict(zip(("name", "digest", "version", "text"), self.arguments, strict=True))

    def unchanged(self, head: bytes) -> ToolRegistration | None:
        """The stored registration, if it has this specification. `head`: as KNOWN returns it."""
        match text_of(head).split("\n"):
            case [enabled, self.digest, created, version, mark] if version == version_text(self.spec.version):
                return self._registration(enabled, created, mark)
            case _:
                return None

    def outcome(self, reply: bytes) -> ToolRegistration | ValueError:
        """What REGISTER or REPLACE has said."""
        match text_of(reply).split("\n"):
            case ["taken", enabled, created, mark]:
                return self._registration(enabled, created, mark) or rules.unreadable(self.spec.tool_name)
            case ["stays", *_]:
                return _read_or_error(self.spec.tool_name, reply.removeprefix(b"stays\n"))
            case ["drift"]:
                return rules.drift(self.spec)
            case ["unexpected"]:
                return rules.unexpected(self.spec.tool_name)
            case _:
                return rules.unreadable(self.spec.tool_name)

    def _registration(self, enabled: str, created: str, mark: str) -> ToolRegistration | None:
        try:
            since = json.loads(mark or "null")
            created_at = read_created(created)
            return ToolRegistration(
                spec=self.spec, enabled=enabled == "1", created_at=created_at, rolled_back_from=since
            )
        except ValueError:
            return None


def text_of(value: bytes) -> str:
    """Whatever bytes there are: those that are no text are found wrong later, and are equal to nothing of ours."""
    return value.decode("utf-8", "backslashreplace")


def bytes_of(name: str) -> bytes:
    """Also of what no tool can be called, so that none is found."""
    return name.encode("utf-8", "surrogatepass")


def version_text(version: str | None) -> str:
    """As JSON, so that no version differs from every version."""
    return json.dumps(version)


def created_text(created_at: str | None) -> str:
    """As JSON: a number of seconds, where that says the same."""
    try:
        at = datetime.strptime(created_at or "", "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return json.dumps(created_at)
    return str(int(at.timestamp())) if rules.iso(at) == created_at else json.dumps(created_at)


def read_created(text: str) -> str | None:
    """Raises `ValueError`."""
    value = json.loads(text)
    if isinstance(value, int):
        try:
            return rules.iso(datetime.fromtimestamp(value, UTC))
        except (OverflowError, OSError) as exc:
            raise ValueError("no time of this world") from exc
    if value is None or isinstance(value, str):
        return value
    raise ValueError("no time")


def read_registration(name: str, value: bytes) -> ToolRegistration:
    """What is stored for a tool. Raises `ValueError` if it is no registration of that tool."""
    try:
        enabled, _, created, _, spec_text = text_of(value).split("\n", 4)
        spec = rules.read_spec(spec_text)
        registration = ToolRegistration(
            spec=spec,
            enabled={"0": False, "1": True}[enabled],
            created_at=read_created(created),
            rolled_back_from=rules.mark_of(spec_text),
        )
    except (KeyError, ValueError, RecursionError) as exc:
        raise rules.unreadable(name) from exc
    if spec.tool_name != name:
        raise rules.unreadable(name)
    return registration


def versions_of(reply: Sequence[bytes | None]) -> list[bytes]:
    """What VERSIONS has returned, as registrations that can be read: the one in force, then the earlier ones, as enabled as it."""
    present, earlier = reply
    if present is None:
        return []
    lines = (earlier or b"").split(b"\n")
    heads = zip(lines[::_LINES], lines[1::_LINES], lines[2::_LINES], lines[3::_LINES], strict=False)
    return [present, *(b"\n".join((present[:1], *head[:3], _unmarked(head[3]))) for head in heads)]


def module_field(module: str) -> str:
    """What says that a module is pinned."""
    return json.dumps([module], separators=(",", ":"))


def pin_field(module: str, tool_name: str) -> str:
    """What holds the digest of a module's tool."""
    return json.dumps([module, tool_name], separators=(",", ":"))


def pin_fields(module: str, digests: Mapping[str, str]) -> list[Field]:
    """All of a module's pins."""
    return [(module_field(module), ""), *((pin_field(module, name), digest) for name, digest in digests.items())]


def read_pins(stored: Mapping[bytes, bytes]) -> dict[str, dict[str, str]]:
    """By module and tool. What is no pin of ours is left out: its tool is approved by nothing then."""
    pins = dict[str, dict[str, str]]()
    for field, digest in sorted(stored.items()):
        match _json(field):
            case [str(module)]:
                pins.setdefault(module, {})
            case [str(module), str(tool_name)]:
                pins.setdefault(module, {})[tool_name] = text_of(digest)
            case _:
                continue
    return {module: pins[module] for module in sorted(pins)}


def read_event(entry_id: bytes, fields: Mapping[bytes, bytes]) -> RegistryEvent:
    """Raises `ValueError` if it is none."""
    try:
        return RegistryEvent.model_validate(
            {
                "id": rules.event_id(*rules.read_event_id(text_of(entry_id))),
                "kind": text_of(fields[b"kind"]),
                "tool_name": text_of(fields[b"tool"]),
                "version": json.loads(fields[b"version"] or "null"),
                "digest": text_of(fields[b"digest"]) or None,
                "at": datetime.fromtimestamp(float(fields[b"at"]), UTC),
            }
        )
    except (KeyError, ValidationError, OverflowError, OSError) as exc:
        raise ValueError("no event of a registry") from exc


def _read_or_error(name: str, value: bytes) -> ToolRegistration | ValueError:
    try:
        return read_registration(name, value)
    except ValueError as exc:
        return exc


def _unmarked(spec: bytes) -> bytes:
    return rules.marked(text_of(spec), None).encode()


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
