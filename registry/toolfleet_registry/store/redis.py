"""A registry in Redis, for every process of a fleet: each change is one script inside Redis."""

import hashlib
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar
from uuid import uuid4

from redis import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisError

from toolfleet_registry.answering import address_of
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.keys import Keys
from toolfleet_registry.loggers import get_logger
from toolfleet_registry.redis_servers import sync_client
from toolfleet_registry.specs import RegistryEvent, ToolRegistration, ToolRegistrySnapshot, ToolSpec
from toolfleet_registry.store import redis_scripts, redis_values, rules
from toolfleet_registry.store.port import EVENTS_KEPT, ToolRegistry
from toolfleet_registry.store.redis_values import Written

T = TypeVar("T")

_PATIENCE_SECONDS = 5
_NAMES_AT_ONCE = 1000  # Lua can take some thousand values off a list
_BYTES_AT_ONCE = 256 * 1024  # of specifications: Redis is at them for about a millisecond, and its other clients wait

# However the client was built: one value that is no text would else fail the reading of all.
_AS_BYTES = {NEVER_DECODE: True}

_log = get_logger(__name__)


class RedisToolRegistry(ToolRegistry):
    """In the Redis of that URL, or of that client, under the names that `keys` gives.

    `master` names what the sentinels of a `sentinel://` URL watch. Raises `SettingsError`; connects to nothing yet.
    """

    def __init__(self, redis: str | Redis, keys: Keys = Keys(), *, master: str | None = None) -> None:  # noqa: B008 - it is frozen
        self._is_ours = isinstance(redis, str)
        self._redis = sync_client(redis, master=master) if isinstance(redis, str) else redis
        self._names = (keys.registry_tools, keys.registry_events, keys.registry_revision, keys.registry_pins)
        self._manifests = keys.registry_manifests
        self._modules = keys.modules
        self._tools, self._events, self._revision, self._pins = self._names

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
        result = written.outcome(self._run(redis_scripts.REPLACE, EVENTS_KEPT, expected or "", *written.arguments))
        if isinstance(result, ValueError):
            raise result
        return result

    def list_all(self, include_disabled: bool = False) -> list[ToolRegistration]:  # noqa: FBT001, FBT002 - the seed's
        return self._read_tools(self._ask("HGETALL", self._tools), include_disabled=include_disabled)

    def get(self, tool_name: str) -> ToolRegistration | None:
        value = self._ask("HGET", self._tools, redis_values.bytes_of(tool_name))
        return None if value is None else _read_or_warn(tool_name, value)

    def get_many(self, tool_names: Sequence[str]) -> dict[str, ToolRegistration]:
        stored = self._ask_many(self._tools, [redis_values.bytes_of(name) for name in tool_names])
        there = {name: value for name, value in zip(tool_names, stored, strict=True) if value is not None}
        read = {name: _read_or_warn(name, value) for name, value in there.items()}
        return {name: registration for name, registration in read.items() if registration is not None}

    def set_enabled(self, tool_name: str, enabled: bool) -> ToolRegistration:  # noqa: FBT001 - the seed's
        value = self._run(redis_scripts.SWITCH, EVENTS_KEPT, redis_values.bytes_of(tool_name), "01"[enabled])
        if value is None:
            raise rules.not_registered(tool_name)
        return redis_values.read_registration(tool_name, value)

    def remove(self, tool_name: str, *, unless_disabled: bool = False) -> None:
        spared = "1" if unless_disabled else "0"
        self._run(redis_scripts.REMOVE, EVENTS_KEPT, redis_values.bytes_of(tool_name), spared)

    def pins(self) -> dict[str, dict[str, str]]:
        return redis_values.read_pins(self._ask("HGETALL", self._pins))

    def pin(self, module: str, digests: Mapping[str, str]) -> None:
        fields = redis_values.pin_fields(module, digests)
        self._run(redis_scripts.PIN, EVENTS_KEPT, redis_values.module_field(module), *_flat(fields))

    def approve(self, module: str, tool_name: str, digest: str) -> None:
        fields = redis_values.module_field(module), redis_values.pin_field(module, tool_name)
        if not self._run(redis_scripts.APPROVE, EVENTS_KEPT, *fields, digest):
            raise rules.not_pinned(module)

    def unpin(self, module: str) -> None:
        self._run(redis_scripts.PIN, EVENTS_KEPT, redis_values.module_field(module))

    def keep_manifests(self, manifests: Mapping[str, str]) -> None:
        digests = {module: rules.digest_of_manifest(text) for module, text in manifests.items()}
        heads = self._heads([*manifests])
        changed = {
            module: f"{digests[module]}\n{text}"
            for (module, text), head in zip(manifests.items(), heads, strict=True)
            if head != digests[module].encode()
        }
        for modules in _batches(changed):
            self._ask("HSET", self._manifests, *_flat((module, changed[module]) for module in modules))

    def kept_manifests(self, modules: Sequence[str]) -> dict[str, str]:
        stored = self._ask_many(self._manifests, modules)
        there = {module: value for module, value in zip(modules, stored, strict=True) if value is not None}
        return {module: redis_values.text_of(value).partition("\n")[2] for module, value in there.items()}

    def keep_modules(self, entries: Mapping[str, str]) -> None:
        self._evaluate(redis_scripts.KEEP_MODULES, [self._modules], _flat(entries.items()))

    def kept_modules(self) -> dict[str, str]:
        stored: Mapping[bytes, bytes] = self._ask("HGETALL", self._modules)
        return {redis_values.text_of(name): redis_values.text_of(text) for name, text in stored.items()}

    def snapshot(self) -> ToolRegistrySnapshot:
        tools, pins = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in self._run(redis_scripts.SNAPSHOT))
        return ToolRegistrySnapshot(
            tools=self._read_tools(tools, include_disabled=True), pins=redis_values.read_pins(pins)
        )

    def restore(self, snapshot: ToolRegistrySnapshot) -> None:
        rules.check_snapshot(snapshot)
        tools = [
            (*Written.of(each.spec).arguments, "01"[each.enabled], redis_values.created_text(each.created_at))
            for each in snapshot.tools
        ]
        pins = [
            field for module, digests in snapshot.pins.items() for field in redis_values.pin_fields(module, digests)
        ]
        self._run(redis_scripts.RESTORE, EVENTS_KEPT, len(tools), *_flat(tools), *_flat(pins))

    def events(self, after: str = "", limit: int = 1000) -> list[RegistryEvent]:
        rules.check_limit(limit)
        epoch, number = rules.read_event_id(after)
        start = f"({epoch}-{number}" if after else "-"
        entries = self._ask("XRANGE", self._events, start, "+", "COUNT", limit)
        found = list[RegistryEvent]()
        for entry_id, fields in entries:
            try:
                found.append(redis_values.read_event(entry_id, fields))
            except ValueError:
                _log.warning("registry_event_unreadable", id=redis_values.text_of(entry_id))
        return found

    def revision(self) -> str:
        epoch, revision = self._ask("HMGET", self._revision, "epoch", "revision")
        return f"{int(epoch or 0)}-{int(revision or 0)}"

    def identity(self) -> str:
        return redis_values.text_of(self._run(redis_scripts.IDENTITY, uuid4().hex))

    def close(self) -> None:
        if self._is_ours:
            self._redis.close()

    def _unchanged(self, written: Mapping[int, Written]) -> dict[int, ToolRegistration]:
        """Those that are stored just so: for a module that sends what it sent before, no specification travels."""
        times = Counter(each.spec.tool_name for each in written.values())
        places = [place for place, each in written.items() if times[each.spec.tool_name] == 1]
        found = dict[int, ToolRegistration]()
        for start in range(0, len(places) if len(places) > 1 else 0, _NAMES_AT_ONCE):
            batch = places[start : start + _NAMES_AT_ONCE]
            names = [written[place].spec.tool_name for place in batch]
            for place, head in zip(batch, self._run(redis_scripts.KNOWN, *names), strict=True):
                if (registration := written[place].unchanged(head)) is not None:
                    found[place] = registration
        return found

    def _register(self, batch: Sequence[Written], *, keep_enabled: bool) -> list[ToolRegistration | ValueError]:
        arguments = [argument for each in batch for argument in each.arguments]
        replies = self._run(redis_scripts.REGISTER, EVENTS_KEPT, "01"[keep_enabled], *arguments)
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
        for batch in _parts(modules):
            heads += self._evaluate(redis_scripts.MANIFEST_DIGESTS, [self._manifests], batch)
        return heads

    def _ask_many(self, key: str, fields: Sequence[str | bytes]) -> list[bytes | None]:
        """The values of a hash's fields, a bounded number at once."""
        found = list[bytes | None]()
        for batch in _parts(fields):
            found += self._ask("HMGET", key, *batch)
        return found

    def _ask(self, *command: str | bytes | int) -> Any:
        with self._answering():
            return self._redis.execute_command(*command, **_AS_BYTES)

    def _run(self, script: str, *arguments: str | bytes | int) -> Any:
        return self._evaluate(script, self._names, arguments)

    def _evaluate(self, script: str, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any:
        rest = (len(keys), *keys, *arguments)
        with self._answering():
            try:
                return self._redis.execute_command("EVALSHA", _digest_of(script), *rest, **_AS_BYTES)
            except NoScriptError:
                return self._redis.execute_command("EVAL", script, *rest, **_AS_BYTES)

    @contextmanager
    def _answering(self) -> Generator[None]:
        try:
            yield
        except (RedisError, OSError) as exc:
            reason = str(exc) or f"no answer within {_PATIENCE_SECONDS} s"
            raise FleetUnavailable(f"Redis at {address_of(self._redis)} does not answer: {reason}") from exc


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


def _parts(names: Sequence[T]) -> Generator[Sequence[T]]:
    return (names[start : start + _NAMES_AT_ONCE] for start in range(0, len(names), _NAMES_AT_ONCE))


def _flat(rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [value for row in rows for value in row]


@cache
def _digest_of(script: str) -> str:
    """What Redis calls it, once it has seen it."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
