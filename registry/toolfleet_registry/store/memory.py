"""Stores a registry in this process: deterministic, no I/O, nothing shared with another one."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from threading import RLock
from typing import TypeAlias

from toolfleet_registry.contracts.tool_definition import EventKind
from toolfleet_registry.specs import (
    RegistryEvent,
    ToolFinding,
    ToolRegistration,
    ToolRegistrySnapshot,
    ToolSpec,
)
from toolfleet_registry.store import rules
from toolfleet_registry.store.registry import EVENTS_KEPT, VERSIONS_KEPT, RegistrationSearch, ToolRegistry
from toolfleet_registry.store.rules import RegistrationState
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

Earlier: TypeAlias = dict[str | None, tuple[str, RegistrationState]]
"""A tool's earlier specifications with how they stood, by version, the last one last."""

Callback: TypeAlias = Callable[[RegistryEvent], None]


class InMemoryToolRegistry(ToolRegistry):
    """A registry in this process, without I/O; it is gone with the process.

    Args:
        clock: Returns the time of a change, in any time zone.

    """

    def __init__(self, *, clock: Callable[[], datetime] | None = None) -> None:
        self._clock = clock or machine_clock.utc_now
        self._identity = randomness.uuid4().hex
        self._lock = RLock()
        # As text: a frozen model's dicts are not frozen, and a change to them must change nothing here.
        self._texts = dict[str, str]()
        self._standings = dict[str, RegistrationState]()
        self._earlier = dict[str, Earlier]()
        self._pins = dict[str, dict[str, str]]()
        self._manifests = dict[str, str]()
        self._modules = dict[str, str]()
        self._events = deque[RegistryEvent](maxlen=EVENTS_KEPT)
        self._revision = 0
        self._events_ever = 0
        self._search = RegistrationSearch(self)
        self._subscribers = Subscribers()

    def register(self, spec: ToolSpec, *, keep_enabled: bool = False) -> ToolRegistration:
        digest = rules.digest_of_json(spec)
        with self._changing():
            present, now = self._standings.get(spec.tool_name), self._clock()
            standing = rules.registered(spec, digest, present, keep_enabled=keep_enabled, now=now)
            return self._take(spec, standing, now)

    def register_many(
        self, specs: Sequence[ToolSpec], *, keep_enabled: bool = False
    ) -> list[ToolRegistration | ValueError]:
        return [self._register_or_say_why(spec, keep_enabled=keep_enabled) for spec in specs]

    def replace(self, spec: ToolSpec, *, expected: str | None) -> ToolRegistration:
        digest = rules.digest_of_json(spec)
        with self._changing():
            present, now = self._standings.get(spec.tool_name), self._clock()
            return self._take(spec, rules.replaced(spec, digest, present, expected=expected, now=now), now)

    def list_all(self, include_disabled: bool = False) -> list[ToolRegistration]:
        with self._lock:
            return [
                self._registration(name)
                for name in sorted(self._texts)
                if include_disabled or self._standings[name].enabled
            ]

    def get(self, tool_name: str, version: str | None = None) -> ToolRegistration | None:
        with self._lock:
            present = self._standings.get(tool_name)
            if present is None or version is None or version == present.version:
                return None if present is None else self._registration(tool_name)
            return next((each for each in self.versions(tool_name) if each.spec.version == version), None)

    def get_many(self, tool_names: Sequence[str]) -> dict[str, ToolRegistration]:
        with self._lock:
            return {name: self._registration(name) for name in tool_names if name in self._texts}

    def set_enabled(self, tool_name: str, enabled: bool) -> ToolRegistration:
        with self._changing():
            standing = rules.switched(tool_name, self._standings.get(tool_name), enabled=enabled)
            self._write(tool_name, standing, self._clock())
            return self._registration(tool_name)

    def versions(self, tool_name: str) -> list[ToolRegistration]:
        with self._lock:
            if tool_name not in self._texts:
                return []
            present, earlier = self._registration(tool_name), self._earlier.get(tool_name, {})
            stood = [(text, replace(standing, enabled=present.enabled)) for text, standing in earlier.values()]
            return rules.sorted_versions(
                [present, *(standing.registers(rules.read_spec(text)) for text, standing in stood)]
            )

    def rollback(self, tool_name: str, version: str | None) -> ToolRegistration:
        with self._changing():
            present = self._standings.get(tool_name)
            if present is None:
                raise rules.not_registered(tool_name)
            if version != present.version:
                text, before = self._earlier.get(tool_name, {}).get(version, ("", None))
                if before is None:
                    raise rules.no_such_version(tool_name, version)
                now = self._clock()
                after = rules.rolled_back(present, version, before.digest, now=now)
                self._write(tool_name, after, now, text=text, changed="rolled_back")
            return self._registration(tool_name)

    def remove(self, tool_name: str, *, unless_disabled: bool = False) -> None:
        with self._changing():
            present = self._standings.get(tool_name)
            if present is not None and (present.enabled or not unless_disabled):
                self._write(tool_name, None, self._clock())

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
        with self._changing():
            now = self._clock()
            for name in sorted({*self._standings, *standings}):
                self._write(name, standings.get(name), now, text=texts.get(name))
            self._set_pins({module: dict(digests) for module, digests in snapshot.pins.items()})

    def note(self, findings: Sequence[ToolFinding]) -> None:
        with self._changing():
            now = self._clock()
            for one in findings:
                self._tell(one.kind, one.tool_name, one.version, one.digest, now)

    def last_event(self) -> str:
        with self._lock:
            return rules.event_id(0, self._events_ever) if self._events_ever else ""

    def subscribe(self, callback: Callable[[RegistryEvent], None]) -> Callable[[], None]:
        """Call `callback` with each event from now on, in order and after its change.

        Returns a function that ends this.

        It is called in the thread that has made a change, or is reporting another one at that moment, and may change
        the registry itself. Its exceptions are logged, and raised nowhere else.
        """
        return self._subscribers.add(callback)

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
        """Do nothing: memory needs no connection."""

    def _register_or_say_why(self, spec: ToolSpec, *, keep_enabled: bool) -> ToolRegistration | ValueError:
        try:
            return self.register(spec, keep_enabled=keep_enabled)
        except ValueError as exc:
            return exc

    def _take(self, spec: ToolSpec, standing: RegistrationState, now: datetime) -> ToolRegistration:
        if standing != self._standings.get(spec.tool_name):
            self._write(spec.tool_name, standing, now, text=rules.text_of(spec))
        # Another one stands where the tool was rolled back from this one.
        return standing.registers(spec) if standing.version == spec.version else self._registration(spec.tool_name)

    def _write(
        self,
        name: str,
        after: RegistrationState | None,
        now: datetime,
        *,
        text: str | None = None,
        changed: EventKind = "changed",
    ) -> None:
        """Write a tool's new state; without `text` its specification stays as it was."""
        self._note(name, after, now, changed)
        self._keep_earlier(name, after)
        if after is None:
            self._standings.pop(name, None)
            self._texts.pop(name, None)
            return
        self._standings[name] = after
        if text is not None:
            self._texts[name] = text

    def _keep_earlier(self, name: str, after: RegistrationState | None) -> None:
        before = self._standings.get(name)
        if before is None or after is None:
            self._earlier.pop(name, None)
            return
        if (before.version, before.digest) == (after.version, after.digest):
            return
        earlier = self._earlier.setdefault(name, {})
        earlier.pop(before.version, None)
        earlier[before.version] = self._texts[name], replace(before, rolled_back_from=None)
        earlier.pop(after.version, None)
        while len(earlier) >= VERSIONS_KEPT:
            del earlier[next(iter(earlier))]

    def _registration(self, name: str) -> ToolRegistration:
        return self._standings[name].registers(rules.read_spec(self._texts[name]))

    def _note(self, name: str, after: RegistrationState | None, now: datetime, changed: EventKind) -> None:
        before = self._standings.get(name)
        self._revision += before != after
        for kind in rules.kinds_between(before, after, changed=changed):
            self._tell(kind, name, after.version if after else None, after.digest if after else None, now)

    def _tell(self, kind: EventKind, name: str, version: str | None, digest: str | None, now: datetime) -> None:
        self._events_ever += 1
        number = rules.event_id(0, self._events_ever)
        event = RegistryEvent(
            id=number, kind=kind, tool_name=name, version=version, digest=digest, at=now.astimezone(UTC)
        )
        self._events.append(event)
        self._subscribers.note(event)

    @contextmanager
    def _changing(self) -> Generator[None]:
        """Make the changes inside atomically; then tell the subscribers."""
        try:
            with self._lock:
                yield
        finally:
            self._subscribers.tell()

    def _set_pins(self, pins: dict[str, dict[str, str]]) -> None:
        self._revision += pins != self._pins
        self._pins = pins


class Subscribers:
    """The subscribed callbacks.

    `note` needs the registry's lock, `tell` must be outside of it: a callback may take any time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: tuple[Callback, ...] = ()
        self._untold = deque[tuple[RegistryEvent, tuple[Callback, ...]]]()
        self._is_telling = False

    def add(self, callback: Callback) -> Callable[[], None]:
        """Have it called with each event from now on. Returns what ends that."""
        with self._lock:
            self._callbacks += (callback,)

        def end() -> None:
            with self._lock:
                self._callbacks = tuple(one for one in self._callbacks if one is not callback)

        return end

    def note(self, event: RegistryEvent) -> None:
        """Have it told by the next `tell`."""
        with self._lock:
            if self._callbacks:
                self._untold.append((event, self._callbacks))

    def tell(self) -> None:
        """Tell the noted events; if another thread is doing so, that one tells these too."""
        while True:
            with self._lock:
                if self._is_telling or not self._untold:
                    return
                self._is_telling = True
                event, callbacks = self._untold.popleft()
            try:
                for callback in callbacks:
                    self._call(callback, event)
            finally:
                with self._lock:
                    self._is_telling = False

    def _call(self, callback: Callback, event: RegistryEvent) -> None:
        if callback not in self._callbacks:  # it has been ended meanwhile
            return
        try:
            callback(event)
        except Exception as exc:  # noqa: BLE001 - another's program, whose errors are not the registry's
            _log.exception("registry_callback_failed", kind=event.kind, tool=event.tool_name, exc_info=exc)
