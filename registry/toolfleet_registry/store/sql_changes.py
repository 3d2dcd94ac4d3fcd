"""Makes one change of a registry in an SQL database: everything in it happens in one transaction, and no other beside it."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Table, case, delete, insert, select, update

from toolfleet_registry.contracts.event_kinds import EventKind
from toolfleet_registry.manifests.specs import ToolRegistration, ToolSpec
from toolfleet_registry.store import rules
from toolfleet_registry.store.port import EVENTS_KEPT
from toolfleet_registry.store.rules import RegistrationState
from toolfleet_registry.store.sql_history import History
from toolfleet_registry.store.sql_tables import (
    EVENTS,
    PINS,
    STATE,
    TOOLS,
    key_of,
    pin_rows,
    read_name,
    read_registration,
    read_standing,
    tool_row,
)
from toolfleet_registry.time import machine_clock

_KEYS_AT_ONCE = 1000  # values of a statement: databases take some ten thousand


class SqlChange:
    """What is to be written; `finish` writes it. To make one is to lock out every other change until the transaction ends."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.now = machine_clock.utc_now()
        self._state = connection.execute(select(STATE).with_for_update()).one()
        self._known = dict[str, RegistrationState | None]()  # also what is written here
        self._unreadable = set[str]()
        self._rows = dict[str, dict[str, Any]]()
        self._gone = set[str]()
        self._history = History(connection)
        self._events = list[dict[str, Any]]()
        self._has_changed = False

    def load(self, names: Collection[str]) -> None:
        """Find out how these tools stand."""
        keys = [key_of(name) for name in names]
        self._known |= dict.fromkeys(names)
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            self._load(TOOLS.c.key.in_(keys[start : start + _KEYS_AT_ONCE]))

    def load_all(self) -> set[str]:
        """Find out how all tools stand; returns their names."""
        self._load(TOOLS.c.key != "")
        return {*self._known}

    def present(self, name: str) -> RegistrationState | None:
        """How a tool stands that was loaded. Raises `ValueError` if that cannot be read."""
        if name in self._unreadable:
            raise rules.unreadable(name)
        return self._known[name]

    def read(self, name: str) -> ToolRegistration:
        """What the database has of a tool that is there: what this change makes of its specification is not in it yet."""
        row = self.connection.execute(select(TOOLS).where(TOOLS.c.key == key_of(name))).one()
        return read_registration(name, row)

    def is_enabled(self, name: str) -> bool:
        """Whether a tool that was loaded is there, can be read, and is enabled."""
        standing = None if name in self._unreadable else self._known[name]
        return standing is not None and standing.enabled

    def write(
        self,
        name: str,
        after: RegistrationState | None,
        spec: ToolSpec | None = None,
        *,
        changed: EventKind = "changed",
    ) -> None:
        """What a loaded tool becomes; without `spec` its specification stays what it was. `changed`: how another one is told of."""
        before = self._known[name]
        if before == after and name not in self._unreadable:
            return
        self._has_changed = True
        self._keep_earlier(name, before, after)
        for kind in rules.kinds_between(before, after, changed=changed) or (["removed"] if after is None else []):
            self.note(kind, name, after.version if after else None, after.digest if after else None)
        self._known[name] = after
        self._unreadable.discard(name)
        if after is None:
            self._rows.pop(name, None)
            self._gone.add(name)
        elif spec is not None:
            self._rows[name] = tool_row(spec, after)
        else:
            self.connection.execute(update(TOOLS).where(TOOLS.c.key == key_of(name)).values(enabled=after.enabled))

    def write_pins(self, before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> None:
        """What pins become, of all modules that are in either."""
        modules = [module for module in {*before, *after} if before.get(module) != after.get(module)]
        for module in modules:
            self._has_changed = True
            self.connection.execute(delete(PINS).where(PINS.c.module == json.dumps(module)))
            if module in after:
                self._insert(PINS, pin_rows(module, after[module]))

    def finish(self) -> None:
        """Write all of it."""
        if not (self._has_changed or self._events):
            return
        self._history.write(self._rows)
        keys = [key_of(name) for name in {*self._rows, *self._gone}]
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            self.connection.execute(delete(TOOLS).where(TOOLS.c.key.in_(keys[start : start + _KEYS_AT_ONCE])))
        self._insert(TOOLS, [*self._rows.values()])
        self._insert(EVENTS, self._events[-EVENTS_KEPT:])
        events = self._state.events + len(self._events)
        if self._events:
            self.connection.execute(delete(EVENTS).where(EVENTS.c.number <= events - EVENTS_KEPT))
        self.connection.execute(
            update(STATE).values(
                epoch_ms=self._state.epoch_ms or int(self.now.timestamp() * 1000),
                revision=self._state.revision + self._has_changed,
                events=events,
            )
        )

    def _keep_earlier(self, name: str, before: RegistrationState | None, after: RegistrationState | None) -> None:
        if before is None or after is None:
            self._history.drop(name)
        elif (before.version, before.digest) != (after.version, after.digest):
            self._history.add(name, self._rows.get(name), place=self._state.events + len(self._events))

    def _load(self, which: Any) -> None:
        marked = case((TOOLS.c.spec.startswith(rules.MARK), TOOLS.c.spec), else_="").label("spec")
        heads = select(TOOLS.c.tool_name, TOOLS.c.version, TOOLS.c.digest, TOOLS.c.enabled, TOOLS.c.created_at, marked)
        for row in self.connection.execute(heads.where(which)):
            name = read_name(row)
            self._known[name] = read_standing(row)
            if self._known[name] is None:
                self._unreadable.add(name)

    def note(self, kind: EventKind, name: str, version: str | None, digest: str | None) -> None:
        """Tell of something that happened; by itself it is no change."""
        self._events.append(
            {
                "number": self._state.events + len(self._events) + 1,
                "kind": kind,
                "tool_name": json.dumps(name),
                "version": json.dumps(version),
                "digest": digest or "",
                "at_us": round(self.now.timestamp() * 1e6),
            }
        )

    def _insert(self, table: Table, rows: list[dict[str, Any]]) -> None:
        """Many rows a statement: SQLAlchemy makes a statement of each row where it is not asked for what it has written."""
        if rows:
            self.connection.execute(insert(table).returning(next(iter(table.primary_key))), rows)
