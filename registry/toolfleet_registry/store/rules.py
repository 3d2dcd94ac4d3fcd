"""Computes the effect of each change on a tool's registration, for every store; pure.

Redis does the same in Lua (`lua/store`), so that it is atomic there; one suite of tests runs over all of them.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from toolfleet_registry.contracts.tool_definition import EventKind
from toolfleet_registry.specs import ToolRegistration, ToolRegistrySnapshot, ToolSpec, digest_of, version_key

MARK = '{"rolled_back_from":'
"""What the text of a stored specification begins with, if its tool was rolled back to it."""

_MARK = re.compile(re.escape(MARK) + r"([^\t]*),\t")
T = TypeVar("T")
_AT_ONCE = 1000  # Lua takes some thousand values off a list, and databases some ten thousand in a statement
_EVENT_ID = re.compile(r"([0-9]{1,16})-([0-9]{1,16})")


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """A registration's facts that the rules need. Two with the same version and digest have the same specification."""

    version: str | None
    digest: str
    enabled: bool
    created_at: str | None
    rolled_back_from: str | None = None

    def registers(self, spec: ToolSpec) -> ToolRegistration:
        """Return the registration of that specification, as it stands."""
        return ToolRegistration(
            spec=spec, enabled=self.enabled, created_at=self.created_at, rolled_back_from=self.rolled_back_from
        )


def standing_of(registration: ToolRegistration) -> RegistrationState:
    """Return the state of a registration. Raises `ValueError` as `digest_of_json` does."""
    spec = registration.spec
    digest, since = digest_of_json(spec), registration.rolled_back_from
    return RegistrationState(spec.version, digest, registration.enabled, registration.created_at, since)


def json_of(text: str | bytes) -> Any:
    """Return the JSON value; `None` also for what is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def digest_of_json(spec: ToolSpec) -> str:
    """Return the digest. Raises `ValueError` for values that pydantic accepts and JSON does not: infinite numbers."""
    try:
        json.dumps([spec.input_schema, spec.output_schema, spec.details], allow_nan=False)
    except ValueError:
        raise ValueError(f"Tool {spec.tool_name!r} has a number in its specification that JSON cannot hold.") from None
    return digest_of(spec)


def text_of(spec: ToolSpec) -> str:
    """Return a specification as it is stored: JSON, its names in the order in which they were given."""
    return json.dumps(spec.model_dump(mode="json"), separators=(",", ":"))


def marked(text: str, rolled_back_from: str | None) -> str:
    """Return a stored specification with the version that was rolled back from, or with none.

    It stands before all else, and a tab behind it, which is nowhere else in such a text: so Lua finds it too. An earlier release
    reads over it, keeps it while it enables and disables, and drops it with the specification.
    """
    bare = _MARK.sub("{", text, count=1)
    return bare if rolled_back_from is None else f"{MARK}{json.dumps(rolled_back_from)},\t{bare[1:]}"


def mark_of(text: str) -> str | None:
    """Return the version that was rolled back from. Raises `ValueError` if it cannot be read."""
    if not (match := _MARK.match(text)):
        return None
    version = json.loads(match[1])
    if not isinstance(version, str):
        raise ValueError("no version")
    return version


def digest_of_manifest(text: str) -> str:
    """Return the digest of a manifest's text: 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_spec(text: str) -> ToolSpec:
    """Parse a stored specification. Raises `ValueError` if it is none.

    A field that a newer release has added is left out: that release may be running at the same time, or was rolled
    back.
    """
    return ToolSpec.model_validate_json(text, extra="ignore")


def registered(
    spec: ToolSpec, digest: str, present: RegistrationState | None, *, keep_enabled: bool, now: datetime
) -> RegistrationState:
    """Return the tool after `register`. Raises `ValueError` if two specifications would have the same version."""
    if present is None:
        return RegistrationState(spec.version, digest, enabled=True, created_at=iso(now))
    if keep_enabled and spec.version is not None and present.rolled_back_from == spec.version:
        return present
    if present.version != spec.version:
        return RegistrationState(spec.version, digest, enabled=present.enabled or not keep_enabled, created_at=iso(now))
    if present.digest != digest:
        raise drift(spec)
    return present


def replaced(
    spec: ToolSpec, digest: str, present: RegistrationState | None, *, expected: str | None, now: datetime
) -> RegistrationState:
    """Return the tool after `replace`. Raises `ValueError` if it is not the one that is to be replaced."""
    if (present.digest if present else None) != expected:
        raise unexpected(spec.tool_name)
    if present is None:
        return RegistrationState(spec.version, digest, enabled=True, created_at=iso(now))
    if (present.version, present.digest) == (spec.version, digest):
        return present
    return RegistrationState(spec.version, digest, enabled=present.enabled, created_at=iso(now))


def rolled_back(present: RegistrationState, version: str | None, digest: str, *, now: datetime) -> RegistrationState:
    """Return the tool after `rollback` to another specification. What was rolled back from first counts, until it is in force again."""
    first = present.version if present.rolled_back_from is None else present.rolled_back_from
    return RegistrationState(version, digest, present.enabled, iso(now), None if first == version else first)


def switched(tool_name: str, present: RegistrationState | None, *, enabled: bool) -> RegistrationState:
    """Return the tool after `set_enabled`. Raises `KeyError` if there is none."""
    if present is None:
        raise not_registered(tool_name)
    return replace(present, enabled=enabled)


def kinds_between(
    before: RegistrationState | None, after: RegistrationState | None, *, changed: EventKind = "changed"
) -> list[EventKind]:
    """Return the events that lead from one to the other. A tool that comes disabled is registered, then disabled."""
    if after is None:
        return [] if before is None else ["removed"]
    kinds = list[EventKind]()
    if before is None:
        kinds.append("registered")
    elif (before.version, before.digest) != (after.version, after.digest):
        kinds.append(changed)
    if after.enabled != (before is None or before.enabled):
        kinds.append("enabled" if after.enabled else "disabled")
    return kinds


def sorted_versions(registrations: Iterable[ToolRegistration]) -> list[ToolRegistration]:
    """Sort registrations as `versions` returns them."""
    return sorted(registrations, key=lambda each: version_key(each.spec.version))


def drift(spec: ToolSpec) -> ValueError:
    """Return the error for another specification under the same version."""
    version = "without a version" if spec.version is None else f"as version {spec.version!r}"
    other = "a version" if spec.version is None else "another version"
    return ValueError(
        f"Tool {spec.tool_name!r} is registered {version} with another specification: give the new one {other}."
    )


def no_such_version(tool_name: str, version: str | None) -> ValueError:
    """Return the error for a version that is not kept."""
    return ValueError(f"Tool {tool_name!r} has no version {version!r} that is kept.")


def unexpected(tool_name: str) -> ValueError:
    """Return the error for a concurrent change."""
    return ValueError(f"Tool {tool_name!r} is not registered as expected: look at it again.")


def unreadable(tool_name: str) -> ValueError:
    """Return the error for a stored registration that cannot be read."""
    return ValueError(f"What is stored for tool {tool_name!r} cannot be read: remove it, and register the tool again.")


def not_registered(tool_name: str) -> KeyError:
    """Return the error for an unknown tool."""
    return KeyError(f"Tool {tool_name!r} is not registered.")


def not_pinned(module: str) -> KeyError:
    """Return the error for a module without pins."""
    return KeyError(f"Module {module!r} is not pinned.")


def check_snapshot(snapshot: ToolRegistrySnapshot) -> None:
    """Check that a snapshot has no tool twice. Raises `ValueError`."""
    names = Counter(registration.spec.tool_name for registration in snapshot.tools)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise ValueError(f"The snapshot has tool {twice[0]!r} twice.")


def parts(values: Sequence[T]) -> Generator[Sequence[T]]:
    """Yield the values in parts that a store takes in one command."""
    return (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))


def check_limit(limit: int) -> None:
    """Check a limit. Raises `ValueError`."""
    if limit < 1:
        raise ValueError(f"limit must be above zero, not {limit}")


def event_id(epoch: int, number: int) -> str:
    """`epoch` tells a registry from an earlier one that was lost: ms of its first change."""
    return f"{epoch:013d}-{number:010d}"


def read_event_id(text: str) -> tuple[int, int]:
    """Epoch and number; zeros for the empty text. Raises `ValueError`."""
    if not text:
        return 0, 0
    if not (match := _EVENT_ID.fullmatch(text)):
        raise ValueError(f"{text!r} is not the id of an event")
    return int(match[1]), int(match[2])


def iso(at: datetime) -> str:
    """Return the time as text, such as `2025-12-27T14:00:00Z`."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
