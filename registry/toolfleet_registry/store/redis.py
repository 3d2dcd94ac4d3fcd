"""Stores a registry in Redis, for every process of a fleet: each change is one script inside Redis.

The tools are a hash, name -> five lines: `1` if enabled or `0`, digest, when it was registered (JSON; a number is seconds
since the epoch), version (JSON), specification (JSON). JSON text has no line feeds, and none of it is read in scripts but for
the mark of a rollback before it (`rules.marked`). The earlier versions are a hash, name -> the last four of these lines for
each specification, the latest first; of tools that only ever had one, it has nothing.
The pins are a hash, `["module","tool"]` -> digest, and `["module"]` -> nothing: pinned, if only to no digest at all.
The revision is a hash: `epoch` (ms: the first change), `revision`, `events`: how many there were of each; and
`identity`.

Scripts that change something have the rules of `rules.py`, in Lua. Their keys are all five: the tools, the events, the revision,
the pins, the earlier versions.
"""

import json
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self, TypeVar

from pydantic import ValidationError
from redis import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisError

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.lua_files import script
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Parameters, Script
from toolfleet_registry.redis.servers import address_of, reason_of, sync_client
from toolfleet_registry.specs import (
    RegistryEvent,
    ToolFinding,
    ToolRegistration,
    ToolRegistrySnapshot,
    ToolSpec,
)
from toolfleet_registry.store import rules
from toolfleet_registry.store.registry import EVENTS_KEPT, VERSIONS_KEPT, RegistrationSearch, ToolRegistry
from toolfleet_registry.system import randomness
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

T = TypeVar("T")

_PATIENCE_SECONDS = 5

# However the client was built: one value that is no text would else fail the reading of all.
_AS_BYTES = {NEVER_DECODE: True}

_LINES = 4  # of each earlier specification: digest, when it was registered, version, specification

Field = tuple[str, str]
"""A pin, as a hash has it."""

_EVENTS_AT_ONCE = 100
_BYTES_AT_ONCE = 256 * 1024  # of specifications: Redis is at them for about a millisecond, and its other clients wait

_KNOWN = script("store/known")

_VERSIONS = script("store/versions")

_SNAPSHOT = script("store/snapshot")

_MANIFEST_DIGESTS = script("store/manifest_digests")

_REGISTER = script("store/register")
"""Returns for each: `drift`, `unreadable`; or four lines: `taken`, whether it is enabled, when it was registered, the mark of its
rollback; or, of one that was rolled back from this version, `stays` and all that is stored.
"""

_REPLACE = script("store/replace")
"""Returns as REGISTER, or `unexpected`."""

_SWITCH = script("store/switch")
"""Returns what is stored then, `unreadable`, or nothing if there is no such tool."""

_ROLLBACK = script("store/rollback")
"""Returns what is stored then, `unknown`, or nothing if there is no such tool."""

_NOTE = script("store/note")

_REMOVE = script("store/remove")

_PIN = script("store/pin")

_APPROVE = script("store/approve")
"""Returns 0 if the module is not pinned."""

_RESTORE = script("store/restore")


class RedisCommands:
    """Commands and scripts over a client. Raises `FleetUnavailable`."""

    def __init__(self, redis: Redis, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._redis = redis
        self._patience_seconds = patience_seconds

    def ask(self, *command: str | bytes | int) -> Any:
        """Send one command and return Redis's answer."""
        with self._answering():
            return self._redis.execute_command(*command, **_AS_BYTES)

    def ask_many(self, key: str, fields: Sequence[str | bytes]) -> list[bytes | None]:
        """Return the values of a hash's fields, a bounded number at once."""
        found = list[bytes | None]()
        for batch in rules.parts(fields):
            found += self.ask("HMGET", key, *batch)
        return found

    def write(self, *commands: Sequence[str]) -> None:
        """Run several commands in one transaction."""
        with self._answering(), self._redis.pipeline(transaction=True) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            pipe.execute()

    def ask_script(self, script: Script, **named: Any) -> Any:
        """Run a script and return its result."""
        return self.run(script, script.parameters(**named))

    def run(self, script: Script, parameters: Parameters) -> Any:
        """Run a script, whether Redis has seen it before or not."""
        with self._answering():
            try:
                return self._redis.execute_command("EVALSHA", script.digest, *parameters, **_AS_BYTES)
            except NoScriptError:
                return self._redis.execute_command("EVAL", script.text, *parameters, **_AS_BYTES)

    @contextmanager
    def _answering(self) -> Generator[None]:
        try:
            yield
        except (RedisError, OSError) as exc:
            reason = reason_of(exc, f"no answer within {self._patience_seconds:g} s")
            raise FleetUnavailable(f"Redis at {address_of(self._redis)} does not answer: {reason}") from exc


@dataclass(frozen=True)
class Written:
    """A specification on its way to Redis, and what its replies mean."""

    spec: ToolSpec
    digest: str
    rolled_back_from: str | None = None

    @classmethod
    def of(cls, spec: ToolSpec, rolled_back_from: str | None = None) -> Self:
        """Return the specification to write. Raises `ValueError` if it is no JSON."""
        return cls(spec, rules.digest_of_json(spec), rolled_back_from)

    @cached_property
    def text(self) -> str:
        """As it is stored; most specifications are already there, and it is not needed."""
        return rules.marked(rules.text_of(self.spec), self.rolled_back_from)

    @property
    def arguments(self) -> tuple[str, str, str, str]:
        """Name, digest, version, specification."""
        return self.spec.tool_name, self.digest, _version_text(self.spec.version), self.text

    @property
    def named(self) -> dict[str, str]:
        """The same by name."""
        return dict(zip(("name", "digest", "version", "text"), self.arguments, strict=True))

    def unchanged(self, head: bytes) -> ToolRegistration | None:
        """Return the stored registration, if it has this specification. `head`: as KNOWN returns it."""
        match _text_of(head).split("\n"):
            case [enabled, self.digest, created, version, mark] if version == _version_text(self.spec.version):
                return self._registration(enabled, created, mark)
            case _:
                return None

    def outcome(self, reply: bytes) -> ToolRegistration | ValueError:
        """Return the result of REGISTER or REPLACE."""
        match _text_of(reply).split("\n"):
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
            created_at = _read_created(created)
            return ToolRegistration(
                spec=self.spec, enabled=enabled == "1", created_at=created_at, rolled_back_from=since
            )
        except ValueError:
            return None


def _text_of(value: bytes) -> str:
    """Decode any bytes: invalid text is found wrong later, and equals none of ours."""
    return value.decode("utf-8", "backslashreplace")


def _bytes_of(name: str) -> bytes:
    """Encode any name, also one that no tool can have, so that none is found."""
    return name.encode("utf-8", "surrogatepass")


def _version_text(version: str | None) -> str:
    """Return the version as JSON, so that None differs from every version."""
    return json.dumps(version)


def _created_text(created_at: str | None) -> str:
    """Return the time as JSON: as a number of seconds, if that says the same."""
    try:
        at = datetime.strptime(created_at or "", "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return json.dumps(created_at)
    return str(int(at.timestamp())) if rules.iso(at) == created_at else json.dumps(created_at)


def _read_created(text: str) -> str | None:
    """Parse a creation time. Raises `ValueError`."""
    value = json.loads(text)
    if isinstance(value, int):
        try:
            return rules.iso(datetime.fromtimestamp(value, UTC))
        except (OverflowError, OSError) as exc:
            raise ValueError("no time of this world") from exc
    if value is None or isinstance(value, str):
        return value
    raise ValueError("no time")


def _read_registration(name: str, value: bytes) -> ToolRegistration:
    """Parse a tool's stored registration. Raises `ValueError` if it is no registration of that tool."""
    try:
        enabled, _, created, _, spec_text = _text_of(value).split("\n", 4)
        spec = rules.read_spec(spec_text)
        registration = ToolRegistration(
            spec=spec,
            enabled={"0": False, "1": True}[enabled],
            created_at=_read_created(created),
            rolled_back_from=rules.mark_of(spec_text),
        )
    except (KeyError, ValueError, RecursionError) as exc:
        raise rules.unreadable(name) from exc
    if spec.tool_name != name:
        raise rules.unreadable(name)
    return registration


def _versions_of(reply: Sequence[bytes | None]) -> list[bytes]:
    """Return the reply of VERSIONS as readable registrations: the one in force, then the earlier ones, as enabled as it."""
    present, earlier = reply
    if present is None:
        return []
    lines = (earlier or b"").split(b"\n")
    heads = zip(lines[::_LINES], lines[1::_LINES], lines[2::_LINES], lines[3::_LINES], strict=False)
    return [present, *(b"\n".join((present[:1], *head[:3], _unmarked(head[3]))) for head in heads)]


def module_field(module: str) -> str:
    """Return the field that marks a module as pinned."""
    return json.dumps([module], separators=(",", ":"))


def _pin_field(module: str, tool_name: str) -> str:
    """Return the field with the digest of a module's tool."""
    return json.dumps([module, tool_name], separators=(",", ":"))


def _pin_fields(module: str, digests: Mapping[str, str]) -> list[Field]:
    """Return all of a module's pins."""
    return [(module_field(module), ""), *((_pin_field(module, name), digest) for name, digest in digests.items())]


def _read_pins(stored: Mapping[bytes, bytes]) -> dict[str, dict[str, str]]:
    """Return the pins by module and tool. An unreadable pin is left out: its tool is then not approved."""
    pins = dict[str, dict[str, str]]()
    for field, digest in sorted(stored.items()):
        match rules.json_of(field):
            case [str(module)]:
                pins.setdefault(module, {})
            case [str(module), str(tool_name)]:
                pins.setdefault(module, {})[tool_name] = _text_of(digest)
            case _:
                continue
    return {module: pins[module] for module in sorted(pins)}


def _read_event(entry_id: bytes, fields: Mapping[bytes, bytes]) -> RegistryEvent:
    """Parse an event. Raises `ValueError` if it is none."""
    try:
        return RegistryEvent.model_validate(
            {
                "id": rules.event_id(*rules.read_event_id(_text_of(entry_id))),
                "kind": _text_of(fields[b"kind"]),
                "tool_name": _text_of(fields[b"tool"]),
                "version": json.loads(fields[b"version"] or "null"),
                "digest": _text_of(fields[b"digest"]) or None,
                "at": datetime.fromtimestamp(float(fields[b"at"]), UTC),
            }
        )
    except (KeyError, ValidationError, OverflowError, OSError) as exc:
        raise ValueError("no event of a registry") from exc


def _read_or_error(name: str, value: bytes) -> ToolRegistration | ValueError:
    try:
        return _read_registration(name, value)
    except ValueError as exc:
        return exc


def _unmarked(spec: bytes) -> bytes:
    return rules.marked(_text_of(spec), None).encode()


class RedisToolRegistry(ToolRegistry):
    """A registry in Redis. It does not connect yet.

    Args:
        redis: The URL of the Redis, or a client for it.
        keys: The names of its keys.
        master: The name of the master that the sentinels of a `sentinel://` URL watch.

    Raises:
        SettingsError: The URL is invalid.

    """

    def __init__(self, redis: str | Redis, keys: Keys = Keys(), *, master: str | None = None) -> None:  # noqa: B008 - it is frozen
        self._is_ours = isinstance(redis, str)
        self._redis = sync_client(redis, master=master) if isinstance(redis, str) else redis
        self._commands = RedisCommands(self._redis)
        names = keys.registry
        self._names = (names.tools, names.events, names.revision, names.pins, names.versions)
        self._search = RegistrationSearch(self)
        self._manifests = names.manifests
        self._unreadable: tuple[int, ...] = ()
        self._modules = keys.modules
        self._tools, self._events, self._revision, self._pins, self._earlier = self._names

    def register(self, spec: ToolSpec, *, keep_enabled: bool = False) -> ToolRegistration:
        (result,) = self._register([Written.of(spec)], keep_enabled=keep_enabled)
        if isinstance(result, ValueError):
            raise result
        return result

    def register_many(
        self, specs: Sequence[ToolSpec], *, keep_enabled: bool = False
    ) -> list[ToolRegistration | ValueError]:
        results: list[ToolRegistration | ValueError | None] = [None] * len(specs)
        written = dict[int, Written]()
        for place, spec in enumerate(specs):
            try:
                written[place] = Written.of(spec)
            except ValueError as exc:
                results[place] = exc
        for place, registration in self._unchanged(written).items():
            results[place] = registration
            del written[place]
        for places in _batches({place: each.text for place, each in written.items()}):
            batch = [written[place] for place in places]
            for place, result in zip(places, self._register(batch, keep_enabled=keep_enabled), strict=True):
                results[place] = result
        return [result for result in results if result is not None]

    def replace(self, spec: ToolSpec, *, expected: str | None) -> ToolRegistration:
        written = Written.of(spec)
        result = written.outcome(self._write(_REPLACE, expected=expected or "", **written.named))
        if isinstance(result, ValueError):
            raise result
        return result

    def list_all(self, include_disabled: bool = False) -> list[ToolRegistration]:
        return self._read_tools(self._commands.ask("HGETALL", self._tools), include_disabled=include_disabled)

    def get(self, tool_name: str, version: str | None = None) -> ToolRegistration | None:
        if version is not None:
            return next((each for each in self.versions(tool_name) if each.spec.version == version), None)
        value = self._commands.ask("HGET", self._tools, _bytes_of(tool_name))
        return None if value is None else _read_or_warn(tool_name, value)

    def get_many(self, tool_names: Sequence[str]) -> dict[str, ToolRegistration]:
        stored = self._commands.ask_many(self._tools, [_bytes_of(name) for name in tool_names])
        there = {name: value for name, value in zip(tool_names, stored, strict=True) if value is not None}
        read = {name: _read_or_warn(name, value) for name, value in there.items()}
        return {name: registration for name, registration in read.items() if registration is not None}

    def set_enabled(self, tool_name: str, enabled: bool) -> ToolRegistration:
        value = self._write(_SWITCH, name=_bytes_of(tool_name), enabled="01"[enabled])
        if value is None:
            raise rules.not_registered(tool_name)
        return _read_registration(tool_name, value)

    def versions(self, tool_name: str) -> list[ToolRegistration]:
        name, names = _bytes_of(tool_name), {"tools": self._tools, "earlier": self._earlier}
        found = _versions_of(self._commands.ask_script(_VERSIONS, **names, name=name))
        read = (_read_or_warn(tool_name, value) for value in found)
        return rules.sorted_versions(each for each in read if each is not None)

    def rollback(self, tool_name: str, version: str | None) -> ToolRegistration:
        kept = any(each.spec.version == version for each in self.versions(tool_name))  # what cannot be read is none
        name, wanted = _bytes_of(tool_name), _version_text(version)
        reply = self._write(_ROLLBACK, name=name, version=wanted, is_readable="01"[kept])
        if reply is None:
            raise rules.not_registered(tool_name)
        if reply == b"unknown":
            raise rules.no_such_version(tool_name, version)
        return _read_registration(tool_name, reply)

    def remove(self, tool_name: str, *, unless_disabled: bool = False) -> None:
        spared = "1" if unless_disabled else "0"
        self._write(_REMOVE, name=_bytes_of(tool_name), spares_disabled=spared)

    def pins(self) -> dict[str, dict[str, str]]:
        return _read_pins(self._commands.ask("HGETALL", self._pins))

    def pin(self, module: str, digests: Mapping[str, str]) -> None:
        fields = _pin_fields(module, digests)
        self._change(_PIN, module_field=module_field(module), fields=fields)

    def approve(self, module: str, tool_name: str, digest: str) -> None:
        own, field = module_field(module), _pin_field(module, tool_name)
        if not self._change(_APPROVE, module_field=own, tool_field=field, digest=digest):
            raise rules.not_pinned(module)

    def unpin(self, module: str) -> None:
        self._change(_PIN, module_field=module_field(module))

    def keep_manifests(self, manifests: Mapping[str, str]) -> None:
        digests = {module: rules.digest_of_manifest(text) for module, text in manifests.items()}
        heads = self._heads([*manifests])
        changed = {
            module: f"{digests[module]}\n{text}"
            for (module, text), head in zip(manifests.items(), heads, strict=True)
            if head != digests[module].encode()
        }
        for modules in _batches(changed):
            self._commands.ask("HSET", self._manifests, *_flat((module, changed[module]) for module in modules))

    def kept_manifests(self, modules: Sequence[str]) -> dict[str, str]:
        stored = self._commands.ask_many(self._manifests, modules)
        there = {module: value for module, value in zip(modules, stored, strict=True) if value is not None}
        return {module: _text_of(value).partition("\n")[2] for module, value in there.items()}

    def keep_modules(self, entries: Mapping[str, str]) -> None:
        kept = [("HSET", self._modules, *_flat(entries.items()))] if entries else []
        self._commands.write(("DEL", self._modules), *kept)

    def kept_modules(self) -> dict[str, str]:
        stored: Mapping[bytes, bytes] = self._commands.ask("HGETALL", self._modules)
        return {_text_of(name): _text_of(text) for name, text in stored.items()}

    def snapshot(self) -> ToolRegistrySnapshot:
        both = self._commands.ask_script(_SNAPSHOT, tools=self._tools, pins=self._pins)
        tools, pins = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in both)
        read = self._read_tools(tools, include_disabled=True)
        return ToolRegistrySnapshot(tools=read, pins=_read_pins(pins))

    def restore(self, snapshot: ToolRegistrySnapshot) -> None:
        rules.check_snapshot(snapshot)
        tools = [
            (
                *Written.of(each.spec, each.rolled_back_from).arguments,
                "01"[each.enabled],
                _created_text(each.created_at),
            )
            for each in snapshot.tools
        ]
        pins = _flat(_pin_fields(*each) for each in snapshot.pins.items())
        self._write(_RESTORE, kept=tools, fields=pins)

    def note(self, findings: Sequence[ToolFinding]) -> None:
        for some in rules.parts(findings):
            rows = [(one.kind, one.tool_name, _version_text(one.version), one.digest or "") for one in some]
            self._change(_NOTE, findings=rows)

    def last_event(self) -> str:
        epoch, number = self._commands.ask("HMGET", self._revision, "epoch", "events")
        if epoch is not None:
            return rules.event_id(int(epoch), int(number or 0)) if number else ""
        last = self._commands.ask("XREVRANGE", self._events, "+", "-", "COUNT", 1)
        return rules.event_id(*rules.read_event_id(_text_of(last[0][0]))) if last else ""

    def events(self, after: str = "", limit: int = 1000) -> list[RegistryEvent]:
        rules.check_limit(limit)
        epoch, number = rules.read_event_id(after)
        start, found, most = f"({epoch}-{number}" if after else "-", list[RegistryEvent](), max(limit, _EVENTS_AT_ONCE)
        while not found:
            entries = self._commands.ask("XRANGE", self._events, start, "+", "COUNT", most)
            for entry_id, fields in entries:
                try:
                    found.append(_read_event(entry_id, fields))
                except ValueError:
                    self._note_unreadable(_text_of(entry_id))
            if len(entries) < most:
                break
            start = f"({_text_of(entries[-1][0])}"
        return found[:limit]

    def revision(self) -> str:
        epoch, revision = self._commands.ask("HMGET", self._revision, "epoch", "revision")
        return f"{int(epoch or 0)}-{int(revision or 0)}"

    def identity(self) -> str:
        if (found := self._commands.ask("HGET", self._revision, "identity")) is None:
            self._commands.ask("HSETNX", self._revision, "identity", randomness.uuid4().hex)
            found = self._commands.ask("HGET", self._revision, "identity")
        return _text_of(found)

    def close(self) -> None:
        if self._is_ours:
            self._redis.close()

    def _unchanged(self, written: Mapping[int, Written]) -> dict[int, ToolRegistration]:
        """Return the specifications that are stored unchanged: if a module sends the same again, none is transferred."""
        times = Counter(each.spec.tool_name for each in written.values())
        places = [place for place, each in written.items() if times[each.spec.tool_name] == 1]
        found = dict[int, ToolRegistration]()
        for batch in rules.parts(places if len(places) > 1 else []):
            names = [written[place].spec.tool_name for place in batch]
            heads = self._commands.ask_script(_KNOWN, tools=self._tools, names=names)
            for place, head in zip(batch, heads, strict=True):
                if (registration := written[place].unchanged(head)) is not None:
                    found[place] = registration
        return found

    def _register(self, batch: Sequence[Written], *, keep_enabled: bool) -> list[ToolRegistration | ValueError]:
        specs = [each.arguments for each in batch]
        replies = self._write(_REGISTER, keeps_enabled="01"[keep_enabled], specs=specs)
        return [each.outcome(reply) for each, reply in zip(batch, replies, strict=True)]

    def _read_tools(self, stored: Mapping[bytes, bytes], *, include_disabled: bool) -> list[ToolRegistration]:
        found = (
            _read_or_warn(_text_of(name), value)
            for name, value in stored.items()
            if include_disabled or not value.startswith(b"0")
        )
        return sorted((each for each in found if each is not None), key=lambda each: each.spec.tool_name)

    def _heads(self, modules: Sequence[str]) -> list[bytes]:
        """Return the digests of the manifests that are kept of these modules; an empty one where there is none."""
        heads = list[bytes]()
        for batch in rules.parts(modules):
            heads += self._commands.ask_script(_MANIFEST_DIGESTS, manifests=self._manifests, modules=batch)
        return heads

    def _note_unreadable(self, entry_id: str) -> None:
        """Log an unreadable event once: followers read it again each second."""
        if (at := tuple(map(int, entry_id.split("-")))) > self._unreadable:
            self._unreadable = at
            _log.warning("registry_event_unreadable", id=entry_id)

    def _change(self, script: Script, **named: Any) -> Any:
        return self._commands.run(script, script.parameters_of(self._names, events_kept=EVENTS_KEPT, **named))

    def _write(self, script: Script, **named: Any) -> Any:
        """Run a script that changes tools."""
        return self._change(script, versions_kept=VERSIONS_KEPT, **named)


def _read_or_warn(name: str, value: bytes) -> ToolRegistration | None:
    try:
        return _read_registration(name, value)
    except ValueError as exc:
        _log.warning("registration_unreadable", tool=name, error=str(exc))
        return None


def _batches(texts: Mapping[T, str]) -> Generator[list[T]]:
    """Yield the keys in batches with texts that are together not much larger than may be sent at once, in their order."""
    batch, size = list[T](), 0
    for key, text in texts.items():
        batch.append(key)
        size += len(text)
        if size >= _BYTES_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _flat(rows: Iterable[Iterable[T]]) -> list[T]:
    return [value for row in rows for value in row]
