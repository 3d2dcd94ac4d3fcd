"""A registry in this process: deterministic, no I/O, nothing shared with another one."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from threading import RLock
from uuid import uuid4

from toolfleet_registry.specs import RegistryEvent, ToolRegistration, ToolRegistrySnapshot, ToolSpec
from toolfleet_registry.store import rules
from toolfleet_registry.store.port import EVENTS_KEPT, ToolRegistry
from toolfleet_registry.store.rules import Standing


class InMemoryToolRegistry(ToolRegistry):
    """The rules and nothing else; gone with its process. `clock` says when a change happens, in any time zone."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._identity = uuid4().hex
        self._lock = RLock()
        # As text: a frozen model's dicts are not frozen, and whoever changes them must change nothing here.
        self._texts = dict[str, str]()
        self._standings = dict[str, Standing]()
        self._pins = dict[str, dict[str, str]]()
        self._manifests = dict[str, str]()
        self._modules = dict[str, str]()
        self._events = deque[RegistryEvent](maxlen=EVENTS_KEPT)
        self._revision = 0
        self._events_ever = 0

    def register(self, spec: ToolSpec, *, keep_enabled: bool = False) -> ToolRegistration:
        digest = rules.digest_of_json(spec)
        with self._lock:
            present, now = self._standings.get(spec.tool_name), self._clock()
            standing = rules.registered(spec, digest, present, keep_enabled=keep_enabled, now=now)
            return self._take(spec, standing, now)

    def register_many(
        self, specs: Sequence[ToolSpec], *, keep_enabled: bool = False
    ) -> list[ToolRegistration | ValueError]:
        return [self._register_or_say_why(spec, keep_enabled=keep_enabled) for spec in specs]

    def replace(self, spec: ToolSpec, *, expected: str | None) -> ToolRegistration:
        digest = rules.digest_of_json(spec)
        with self._lock:
            present, now = self._standings.get(spec.tool_name), self._clock()
            return self._take(spec, rules.replaced(spec, digest, present, expected=expected, now=now), now)

    def list_all(self, include_disabled: bool = False) -> list[ToolRegistration]:  # noqa: FBT001, FBT002 - the seed's
        with self._lock:
            return [
                self._registration(name)
                for name in sorted(self._texts)
                if include_disabled or self._standings[name].enabled
            ]

    def get(self, tool_name: str) -> ToolRegistration | None:
        with self._lock:
            return self._registration(tool_name) if tool_name in self._texts else None

    def get_many(self, tool_names: Sequence[str]) -> dict[str, ToolRegistration]:
        with self._lock:
            return {name: self._registration(name) for name in tool_names if name in self._texts}

    def set_enabled(self, tool_name: str, enabled: bool) -> ToolRegistration:  # noqa: FBT001 - the seed's
        with self._lock:
            standing = rules.switched(tool_name, self._standings.get(tool_name), enabled=enabled)
            self._write(tool_name, standing, self._clock())
            return self._registration(tool_name)

    def remove(self, tool_name: str, *, unless_disabled: bool = False) -> None:
        with self._lock:
            present = self._standings.get(tool_name)
            if present is not None and (present.enabled or not unless_disabled):
                self._note(tool_name, None, self._clock())
                del self._texts[tool_name], self._standings[tool_name]

    def pins(self) -> dict[str, dict[str, str]]:
        with self._lock:
            return {module: dict(self._pins[module]) for module in sorted(self._pins)}

    def pin(self, module: str, digests: Mapping[str, str]) -> None:
        with self._lock:
            self._set_pins({**self._pins, module: dict(digests)})

    def approve(self, module: str, tool_name: str, digest: str) -> None:
        with self._lock:
            if module not in self._pins:
                raise rules.not_pinned(module)
            self._set_pins({**self._pins, module: {**self._pins[module], tool_name: digest}})

    def unpin(self, module: str) -> None:
        with self._lock:
            self._set_pins({name: digests for name, digests in self._pins.items() if name != module})

    def keep_manifests(self, manifests: Mapping[str, str]) -> None:
        with self._lock:
            self._manifests |= manifests

    def kept_manifests(self, modules: Sequence[str]) -> dict[str, str]:
        with self._lock:
            return {module: self._manifests[module] for module in modules if module in self._manifests}

    def keep_modules(self, entries: Mapping[str, str]) -> None:
        with self._lock:
            self._modules = dict(entries)

    def kept_modules(self) -> dict[str, str]:
        with self._lock:
            return dict(self._modules)

    def snapshot(self) -> ToolRegistrySnapshot:
        with self._lock:
            return ToolRegistrySnapshot(tools=self.list_all(include_disabled=True), pins=self.pins())

    def restore(self, snapshot: ToolRegistrySnapshot) -> None:
        rules.check_snapshot(snapshot)
        standings = {each.spec.tool_name: rules.standing_of(each) for each in snapshot.tools}
        texts = {each.spec.tool_name: rules.text_of(each.spec) for each in snapshot.tools}
        with self._lock:
            now = self._clock()
            for name in sorted({*self._standings, *standings}):
                self._note(name, standings.get(name), now)
            self._texts, self._standings = texts, standings
            self._set_pins({module: dict(digests) for module, digests in snapshot.pins.items()})

    def events(self, after: str = "", limit: int = 1000) -> list[RegistryEvent]:
        rules.check_limit(limit)
        last = rules.event_id(*rules.read_event_id(after))
        with self._lock:
            return [event for event in self._events if event.id > last][:limit]

    def revision(self) -> str:
        with self._lock:
            return str(self._revision)

    def identity(self) -> str:
        return self._identity

    def close(self) -> None:
        """Nothing: what is in memory needs no connection."""

    def _register_or_say_why(self, spec: ToolSpec, *, keep_enabled: bool) -> ToolRegistration | ValueError:
        try:
            return self.register(spec, keep_enabled=keep_enabled)
        except ValueError as exc:
            return exc

    def _take(self, spec: ToolSpec, standing: Standing, now: datetime) -> ToolRegistration:
        if standing != self._standings.get(spec.tool_name):
            self._write(spec.tool_name, standing, now)
            self._texts[spec.tool_name] = rules.text_of(spec)
        return ToolRegistration(spec=spec, enabled=standing.enabled, created_at=standing.created_at)

    def _write(self, name: str, standing: Standing, now: datetime) -> None:
        self._note(name, standing, now)
        self._standings[name] = standing

    def _registration(self, name: str) -> ToolRegistration:
        spec, standing = rules.read_spec(self._texts[name]), self._standings[name]
        return ToolRegistration(spec=spec, enabled=standing.enabled, created_at=standing.created_at)

    def _note(self, name: str, after: Standing | None, now: datetime) -> None:
        before = self._standings.get(name)
        self._revision += before != after
        for kind in rules.kinds_between(before, after):
            self._events_ever += 1
            self._events.append(
                RegistryEvent(
                    id=rules.event_id(0, self._events_ever),
                    kind=kind,
                    tool_name=name,
                    version=after and after.version,
                    digest=after and after.digest,
                    at=now.astimezone(UTC),
                )
            )

    def _set_pins(self, pins: dict[str, dict[str, str]]) -> None:
        self._revision += pins != self._pins
        self._pins = pins
