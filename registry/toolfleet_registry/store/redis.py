"""Stores a registry in Redis, for every process of a fleet: each change is one script inside Redis."""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from redis import Redis

from toolfleet_registry.manifests.specs import (
    RegistryEvent,
    ToolFinding,
    ToolRegistration,
    ToolRegistrySnapshot,
    ToolSpec,
)
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.script import Script
from toolfleet_registry.redis.servers import sync_client
from toolfleet_registry.searching.registrations import RegistrationSearch
from toolfleet_registry.store import redis_scripts, redis_values, rules
from toolfleet_registry.store.port import EVENTS_KEPT, VERSIONS_KEPT, ToolRegistry
from toolfleet_registry.store.redis_commands import RedisCommands, parts
from toolfleet_registry.system import randomness
from toolfleet_registry.system.loggers import get_logger

T = TypeVar("T")

_EVENTS_AT_ONCE = 100
_BYTES_AT_ONCE = 256 * 1024  # of specifications: Redis is at them for about a millisecond, and its other clients wait

_log = get_logger(__name__)


class RedisToolRegistry(ToolRegistry):
    """In the Redis of that URL, or of that client, under the names that `keys` gives.

    `master` names what the sentinels of a `sentinel://` URL watch. Raises `SettingsError`; connects to nothing yet.
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
        (result,) = self._register([redis_values.Written.of(spec)], keep_enabled=keep_enabled)
        if isinstance(result, ValueError):
            raise result
        return result

    def register_many(
        self, specs: Sequence[ToolSpec], *, keep_enabled: bool = False
    ) -> list[ToolRegistration | ValueError]:
        results: list[ToolRegistration | ValueError | None] = [None] * len(specs)
        written = dict[int, redis_values.Written]()
        for place, spec in enumerate(specs):
            try:
                written[place] = redis_values.Written.of(spec)
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
        written = redis_values.Written.of(spec)
        result = written.outcome(self._write(redis_scripts.REPLACE, expected=expected or "", **written.named))
        if isinstance(result, ValueError):
            raise result
        return result

    def list_all(self, include_disabled: bool = False) -> list[ToolRegistration]:  # noqa: FBT001, FBT002 - the seed's
        return self._read_tools(self._commands.ask("HGETALL", self._tools), include_disabled=include_disabled)

    def get(self, tool_name: str, version: str | None = None) -> ToolRegistration | None:
        if version is not None:
            return next((each for each in self.versions(tool_name) if each.spec.version == version), None)
        value = self._commands.ask("HGET", self._tools, redis_values.bytes_of(tool_name))
        return None if value is None else _read_or_warn(tool_name, value)

    def get_many(self, tool_names: Sequence[str]) -> dict[str, ToolRegistration]:
        stored = self._commands.ask_many(self._tools, [redis_values.bytes_of(name) for name in tool_names])
        there = {name: value for name, value in zip(tool_names, stored, strict=True) if value is not None}
        read = {name: _read_or_warn(name, value) for name, value in there.items()}
        return {name: registration for name, registration in read.items() if registration is not None}

    def search(
        self, text: str = "", tags: Sequence[str] = (), *, include_disabled: bool = False, limit: int = 20
    ) -> list[ToolRegistration]:
        rules.check_limit(limit)
        return self._search.find(text, tags, include_disabled=include_disabled, limit=limit)

    def set_enabled(self, tool_name: str, enabled: bool) -> ToolRegistration:  # noqa: FBT001 - the seed's
        value = self._write(redis_scripts.SWITCH, name=redis_values.bytes_of(tool_name), enabled="01"[enabled])
        if value is None:
            raise rules.not_registered(tool_name)
        return redis_values.read_registration(tool_name, value)

    def versions(self, tool_name: str) -> list[ToolRegistration]:
        name, names = redis_values.bytes_of(tool_name), {"tools": self._tools, "earlier": self._earlier}
        found = redis_values.versions_of(self._commands.ask_script(redis_scripts.VERSIONS, **names, name=name))
        read = (_read_or_warn(tool_name, value) for value in found)
        return rules.sorted_versions(each for each in read if each is not None)

    def rollback(self, tool_name: str, version: str | None) -> ToolRegistration:
        kept = any(each.spec.version == version for each in self.versions(tool_name))  # what cannot be read is none
        name, wanted = redis_values.bytes_of(tool_name), redis_values.version_text(version)
        reply = self._write(redis_scripts.ROLLBACK, name=name, version=wanted, is_readable="01"[kept])
        if reply is None:
            raise rules.not_registered(tool_name)
        if reply == b"unknown":
            raise rules.no_such_version(tool_name, version)
        return redis_values.read_registration(tool_name, reply)

    def remove(self, tool_name: str, *, unless_disabled: bool = False) -> None:
        spared = "1" if unless_disabled else "0"
        self._write(redis_scripts.REMOVE, name=redis_values.bytes_of(tool_name), spares_disabled=spared)

    def pins(self) -> dict[str, dict[str, str]]:
        return redis_values.read_pins(self._commands.ask("HGETALL", self._pins))

    def pin(self, module: str, digests: Mapping[str, str]) -> None:
        fields = redis_values.pin_fields(module, digests)
        self._change(redis_scripts.PIN, module_field=redis_values.module_field(module), fields=fields)

    def approve(self, module: str, tool_name: str, digest: str) -> None:
        own, field = redis_values.module_field(module), redis_values.pin_field(module, tool_name)
        if not self._change(redis_scripts.APPROVE, module_field=own, tool_field=field, digest=digest):
            raise rules.not_pinned(module)

    def unpin(self, module: str) -> None:
        self._change(redis_scripts.PIN, module_field=redis_values.module_field(module))

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
        return {module: redis_values.text_of(value).partition("\n")[2] for module, value in there.items()}

    def keep_modules(self, entries: Mapping[str, str]) -> None:
        self._commands.ask_script(redis_scripts.KEEP_MODULES, copy=self._modules, modules=entries.items())

    def kept_modules(self) -> dict[str, str]:
        stored: Mapping[bytes, bytes] = self._commands.ask("HGETALL", self._modules)
        return {redis_values.text_of(name): redis_values.text_of(text) for name, text in stored.items()}

    def snapshot(self) -> ToolRegistrySnapshot:
        both = self._commands.ask_script(redis_scripts.SNAPSHOT, tools=self._tools, pins=self._pins)
        tools, pins = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in both)
        read = self._read_tools(tools, include_disabled=True)
        return ToolRegistrySnapshot(tools=read, pins=redis_values.read_pins(pins))

    def restore(self, snapshot: ToolRegistrySnapshot) -> None:
        rules.check_snapshot(snapshot)
        tools = [
            (
                *redis_values.Written.of(each.spec, each.rolled_back_from).arguments,
                "01"[each.enabled],
                redis_values.created_text(each.created_at),
            )
            for each in snapshot.tools
        ]
        pins = _flat(redis_values.pin_fields(*each) for each in snapshot.pins.items())
        self._write(redis_scripts.RESTORE, kept=tools, fields=pins)

    def note(self, findings: Sequence[ToolFinding]) -> None:
        for some in parts(findings):
            rows = [(one.kind, one.tool_name, redis_values.version_text(one.version), one.digest or "") for one in some]
            self._change(redis_scripts.NOTE, findings=rows)

    def last_event(self) -> str:
        epoch, number = self._commands.ask("HMGET", self._revision, "epoch", "events")
        if epoch is not None:
            return rules.event_id(int(epoch), int(number or 0)) if number else ""
        last = self._commands.ask("XREVRANGE", self._events, "+", "-", "COUNT", 1)
        return rules.event_id(*rules.read_event_id(redis_values.text_of(last[0][0]))) if last else ""

    def events(self, after: str = "", limit: int = 1000) -> list[RegistryEvent]:
        rules.check_limit(limit)
        epoch, number = rules.read_event_id(after)
        start, found, most = f"({epoch}-{number}" if after else "-", list[RegistryEvent](), max(limit, _EVENTS_AT_ONCE)
        while not found:
            entries = self._commands.ask("XRANGE", self._events, start, "+", "COUNT", most)
            for entry_id, fields in entries:
                try:
                    found.append(redis_values.read_event(entry_id, fields))
                except ValueError:
                    self._note_unreadable(redis_values.text_of(entry_id))
            if len(entries) < most:
                break
            start = f"({redis_values.text_of(entries[-1][0])}"
        return found[:limit]

    def revision(self) -> str:
        epoch, revision = self._commands.ask("HMGET", self._revision, "epoch", "revision")
        return f"{int(epoch or 0)}-{int(revision or 0)}"

    def identity(self) -> str:
        name = randomness.uuid4().hex
        found = self._commands.ask_script(redis_scripts.IDENTITY, revision=self._revision, identity=name)
        return redis_values.text_of(found)

    def close(self) -> None:
        if self._is_ours:
            self._redis.close()

    def _unchanged(self, written: Mapping[int, redis_values.Written]) -> dict[int, ToolRegistration]:
        """Those that are stored just so: for a module that sends what it sent before, no specification travels."""
        times = Counter(each.spec.tool_name for each in written.values())
        places = [place for place, each in written.items() if times[each.spec.tool_name] == 1]
        found = dict[int, ToolRegistration]()
        for batch in parts(places if len(places) > 1 else []):
            names = [written[place].spec.tool_name for place in batch]
            heads = self._commands.ask_script(redis_scripts.KNOWN, tools=self._tools, names=names)
            for place, head in zip(batch, heads, strict=True):
                if (registration := written[place].unchanged(head)) is not None:
                    found[place] = registration
        return found

    def _register(
        self, batch: Sequence[redis_values.Written], *, keep_enabled: bool
    ) -> list[ToolRegistration | ValueError]:
        specs = [each.arguments for each in batch]
        replies = self._write(redis_scripts.REGISTER, keeps_enabled="01"[keep_enabled], specs=specs)
        return [each.outcome(reply) for each, reply in zip(batch, replies, strict=True)]

    def _read_tools(self, stored: Mapping[bytes, bytes], *, include_disabled: bool) -> list[ToolRegistration]:
        found = (
            _read_or_warn(redis_values.text_of(name), value)
            for name, value in stored.items()
            if include_disabled or not value.startswith(b"0")
        )
        return sorted((each for each in found if each is not None), key=lambda each: each.spec.tool_name)

    def _heads(self, modules: Sequence[str]) -> list[bytes]:
        """The digests of the manifests that are kept of these modules; an empty one where there is none."""
        heads = list[bytes]()
        for batch in parts(modules):
            heads += self._commands.ask_script(redis_scripts.MANIFEST_DIGESTS, manifests=self._manifests, modules=batch)
        return heads

    def _note_unreadable(self, entry_id: str) -> None:
        """Log it, once: whoever follows reads over it each second."""
        if (at := tuple(map(int, entry_id.split("-")))) > self._unreadable:
            self._unreadable = at
            _log.warning("registry_event_unreadable", id=entry_id)

    def _change(self, script: Script, **named: Any) -> Any:
        return self._commands.run(script, script.parameters_of(self._names, events_kept=EVENTS_KEPT, **named))

    def _write(self, script: Script, **named: Any) -> Any:
        """What changes tools."""
        return self._change(script, versions_kept=VERSIONS_KEPT, **named)


def _read_or_warn(name: str, value: bytes) -> ToolRegistration | None:
    try:
        return redis_values.read_registration(name, value)
    except ValueError as exc:
        _log.warning("registration_unreadable", tool=name, error=str(exc))
        return None


def _batches(texts: Mapping[T, str]) -> Generator[list[T]]:
    """The keys of texts that are together not much larger than may be sent at once, in their order."""
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
