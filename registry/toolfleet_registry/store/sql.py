"""Stores a registry and documents in SQLite or PostgreSQL, through SQLAlchemy; it makes its tables where they are missing."""

import json
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Column, Connection, Table, case, delete, func, insert, select, update

from toolfleet_registry.contracts.tool_definition import EventKind
from toolfleet_registry.specs import (
    RegistryEvent,
    ToolFinding,
    ToolRegistration,
    ToolRegistrySnapshot,
    ToolSpec,
)
from toolfleet_registry.store import rules
from toolfleet_registry.store.documents import NOTED_SECONDS, NOTHING_KEPT, Changed, DocumentKind, Documents
from toolfleet_registry.store.registry import EVENTS_KEPT, VERSIONS_KEPT, RegistrationSearch, ToolRegistry
from toolfleet_registry.store.rules import RegistrationState
from toolfleet_registry.store.sql_database import (
    EVENTS,
    IDENTITY,
    MANIFESTS,
    METADATA,
    MODULES,
    PINS,
    STATE,
    TOOLS,
    VERSIONS,
    Database,
    key_of,
    pin_rows,
    read_all,
    read_event,
    read_name,
    read_or_warn,
    read_pins,
    read_registration,
    read_standing,
    read_version,
    tool_row,
    version_id,
    version_row,
)
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

T = TypeVar("T")

_EVENTS_AT_ONCE = 100


class History:
    """The earlier versions to write; `write` writes them, before the rows of the tools themselves."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dropped = set[str]()  # tools, by their keys, of which nothing is kept that was there before this change
        self._stored = dict[str, int]()  # those whose row in the database has become an earlier one, and its place
        self._rows = dict[str, list[dict[str, Any]]]()  # what has become an earlier one within this change

    def drop(self, name: str) -> None:
        """Forget a tool that is new, or gone."""
        key = key_of(name)
        self._dropped.add(key)
        self._stored.pop(key, None)
        self._rows.pop(key, None)

    def add(self, name: str, row: Mapping[str, Any] | None, *, place: int) -> None:
        """Keep what a tool was until now: its `row`, if it was made by this change, or what the database has."""
        key = key_of(name)
        if row is None:
            self._stored[key] = place
        else:
            self._rows.setdefault(key, []).append(version_row(row, place=place))

    def write(self, present: Mapping[str, Mapping[str, Any]]) -> None:
        """Write all of it. `present`: the new rows of the tools, by name: the version in force is no earlier one."""
        self._delete(VERSIONS.c.key, self._dropped)
        rows = {
            row["id"]: row for row in [*self._read_stored(), *(row for each in self._rows.values() for row in each)]
        }
        changed = {row["key"] for row in rows.values()}
        in_force = {version_id(row["key"], row["version"]) for row in present.values()}
        self._delete(VERSIONS.c.id, {*rows, *in_force})
        if kept := [row for number, row in rows.items() if number not in in_force]:
            self._connection.execute(insert(VERSIONS), kept)
        for keys in rules.parts([*changed]):
            self._prune(keys)

    def _read_stored(self) -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()
        for keys in rules.parts([*self._stored]):
            for row in self._connection.execute(select(TOOLS).where(TOOLS.c.key.in_(keys))).mappings():
                found.append(version_row({**row}, place=self._stored[row["key"]]))
        return found

    def _prune(self, keys: Sequence[str]) -> None:
        newer = func.row_number().over(partition_by=VERSIONS.c.key, order_by=VERSIONS.c.place.desc()).label("newer")
        counted = select(VERSIONS.c.id, newer).where(VERSIONS.c.key.in_(keys)).subquery()
        too_many = select(counted.c.id).where(counted.c.newer > VERSIONS_KEPT - 1)
        self._connection.execute(delete(VERSIONS).where(VERSIONS.c.id.in_(too_many)))

    def _delete(self, column: Any, values: set[str]) -> None:
        for some in rules.parts([*values]):
            self._connection.execute(delete(VERSIONS).where(column.in_(some)))


def _read_versions(connection: Connection, tool_name: str) -> list[ToolRegistration]:
    """Return the specifications that are kept of a tool, as `ToolRegistry.versions` has them."""
    key = key_of(tool_name)
    row = connection.execute(select(TOOLS).where(TOOLS.c.key == key)).first()
    if row is None:
        return []
    found = [read_or_warn(tool_name, row)]
    for earlier in connection.execute(select(VERSIONS).where(VERSIONS.c.key == key)):
        try:
            found.append(read_version(tool_name, earlier, enabled=bool(row.enabled)))
        except ValueError as exc:
            _log.warning("registration_unreadable", tool=tool_name, error=str(exc))
    return rules.sorted_versions(each for each in found if each is not None)


class SqlChange:
    """The changes of one transaction; `finish` writes them.

    Creating one locks out every other change until the transaction ends.
    """

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
        for some in rules.parts(keys):
            self._load(TOOLS.c.key.in_(some))

    def load_all(self) -> set[str]:
        """Find out how all tools stand; returns their names."""
        self._load(TOOLS.c.key != "")
        return {*self._known}

    def present(self, name: str) -> RegistrationState | None:
        """Return the state of a loaded tool. Raises `ValueError` if it cannot be read."""
        if name in self._unreadable:
            raise rules.unreadable(name)
        return self._known[name]

    def read(self, name: str) -> ToolRegistration:
        """Read the registration of an existing tool: its specification is without this transaction's change."""
        row = self.connection.execute(select(TOOLS).where(TOOLS.c.key == key_of(name))).one()
        return read_registration(name, row)

    def is_enabled(self, name: str) -> bool:
        """Return whether a loaded tool exists, can be read, and is enabled."""
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
        """Set a loaded tool's new state; without `spec` its specification stays as it was.

        `changed`: the kind of the event.
        """
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
        """Write the new pins, of all modules that are in either."""
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
        for some in rules.parts(keys):
            self.connection.execute(delete(TOOLS).where(TOOLS.c.key.in_(some)))
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
        """Insert many rows in one statement: SQLAlchemy otherwise makes a statement of each row."""
        if rows:
            self.connection.execute(insert(table).returning(next(iter(table.primary_key))), rows)


class SQLToolRegistry(ToolRegistry):
    """A registry in SQLite or PostgreSQL. It does not connect yet.

    Drivers: Python's own for SQLite; pg8000, psycopg or psycopg2 for PostgreSQL. A database (in PostgreSQL a schema) holds
    one registry, regardless of the prefix of a fleet's keys. Changes are made one after the other, each in one transaction.

    Args:
        url: A SQLAlchemy URL: `sqlite:///registry.db`, `postgresql+pg8000://user:password@host/database`.

    Raises:
        SettingsError: The URL is invalid, or its driver is missing.

    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self._search = RegistrationSearch(self)
        self._unreadable = (0, 0)

    def register(self, spec: ToolSpec, *, keep_enabled: bool = False) -> ToolRegistration:
        (result,) = self.register_many([spec], keep_enabled=keep_enabled)
        if isinstance(result, ValueError):
            raise result
        return result

    def register_many(
        self, specs: Sequence[ToolSpec], *, keep_enabled: bool = False
    ) -> list[ToolRegistration | ValueError]:
        digests = [_digest_or_error(spec) for spec in specs]
        with self._changing() as change:
            change.load([*dict.fromkeys(spec.tool_name for spec in specs)])
            return [
                digest if isinstance(digest, ValueError) else _register(change, spec, digest, keep_enabled=keep_enabled)
                for spec, digest in zip(specs, digests, strict=True)
            ]

    def replace(self, spec: ToolSpec, *, expected: str | None) -> ToolRegistration:
        digest = rules.digest_of_json(spec)
        with self._changing() as change:
            change.load([spec.tool_name])
            present = change.present(spec.tool_name)
            after = rules.replaced(spec, digest, present, expected=expected, now=change.now)
            change.write(spec.tool_name, after, spec)
            return after.registers(spec)

    def list_all(self, include_disabled: bool = False) -> list[ToolRegistration]:
        with self._database.reading() as connection:
            wanted = select(TOOLS) if include_disabled else select(TOOLS).where(TOOLS.c.enabled)
            rows = connection.execute(wanted).all()
        return read_all(rows)

    def get(self, tool_name: str, version: str | None = None) -> ToolRegistration | None:
        if version is not None:
            return next((each for each in self.versions(tool_name) if each.spec.version == version), None)
        with self._database.reading() as connection:
            row = connection.execute(select(TOOLS).where(TOOLS.c.key == key_of(tool_name))).first()
        return None if row is None else read_or_warn(tool_name, row)

    def get_many(self, tool_names: Sequence[str]) -> dict[str, ToolRegistration]:
        keys = {key_of(name): name for name in tool_names}
        with self._database.reading() as connection:
            rows = _rows_of(connection, TOOLS, TOOLS.c.key, [*keys])
        read = {keys[row.key]: read_or_warn(keys[row.key], row) for row in rows}
        return {name: registration for name, registration in read.items() if registration is not None}

    def set_enabled(self, tool_name: str, enabled: bool) -> ToolRegistration:
        with self._changing() as change:
            change.load([tool_name])
            after = rules.switched(tool_name, change.present(tool_name), enabled=enabled)
            change.write(tool_name, after)
            return change.read(tool_name)

    def versions(self, tool_name: str) -> list[ToolRegistration]:
        with self._database.reading() as connection:
            return _read_versions(connection, tool_name)

    def rollback(self, tool_name: str, version: str | None) -> ToolRegistration:
        with self._changing() as change:
            change.load([tool_name])
            present = change.present(tool_name)
            if present is None:
                raise rules.not_registered(tool_name)
            if present.version != version:
                kept = {each.spec.version: each.spec for each in _read_versions(change.connection, tool_name)}
                if (spec := kept.get(version)) is None:
                    raise rules.no_such_version(tool_name, version)
                after = rules.rolled_back(present, version, rules.digest_of_json(spec), now=change.now)
                change.write(tool_name, after, spec, changed="rolled_back")
                return after.registers(spec)
            return change.read(tool_name)

    def remove(self, tool_name: str, *, unless_disabled: bool = False) -> None:
        with self._changing() as change:
            change.load([tool_name])
            if unless_disabled and not change.is_enabled(tool_name):
                return
            change.write(tool_name, None)

    def pins(self) -> dict[str, dict[str, str]]:
        with self._database.reading() as connection:
            return read_pins(connection.execute(select(PINS)))

    def pin(self, module: str, digests: Mapping[str, str]) -> None:
        with self._changing_pins() as pins:
            pins[module] = dict(digests)

    def approve(self, module: str, tool_name: str, digest: str) -> None:
        with self._changing_pins() as pins:
            if module not in pins:
                raise rules.not_pinned(module)
            pins[module] = {**pins[module], tool_name: digest}

    def unpin(self, module: str) -> None:
        with self._changing_pins() as pins:
            pins.pop(module, None)

    def keep_manifests(self, manifests: Mapping[str, str]) -> None:
        digests = {module: rules.digest_of_manifest(text) for module, text in manifests.items()}
        with self._database.reading() as connection:  # most are kept as they are, without locking out other changes
            kept = _rows_of(
                connection, MANIFESTS, MANIFESTS.c.module, [*manifests], MANIFESTS.c.module, MANIFESTS.c.digest
            )
        same = {row.module for row in kept if row.digest == digests[row.module]}
        rows = [
            {"module": module, "digest": digests[module], "manifest": text}
            for module, text in manifests.items()
            if module not in same
        ]
        if rows:
            with self._changing() as change:
                for row in rows:
                    change.connection.execute(delete(MANIFESTS).where(MANIFESTS.c.module == row["module"]))
                change.connection.execute(insert(MANIFESTS), rows)

    def kept_manifests(self, modules: Sequence[str]) -> dict[str, str]:
        with self._database.reading() as connection:
            rows = _rows_of(connection, MANIFESTS, MANIFESTS.c.module, modules)
        return {row.module: row.manifest for row in rows}

    def keep_modules(self, entries: Mapping[str, str]) -> None:
        with self._changing() as change:
            change.connection.execute(delete(MODULES))
            if entries:
                rows = [{"module": module, "entry": text} for module, text in entries.items()]
                change.connection.execute(insert(MODULES), rows)

    def kept_modules(self) -> dict[str, str]:
        with self._database.reading() as connection:
            return {row.module: row.entry for row in connection.execute(select(MODULES))}

    def snapshot(self) -> ToolRegistrySnapshot:
        with self._database.reading() as connection:
            rows = connection.execute(select(TOOLS)).all()
            pins = read_pins(connection.execute(select(PINS)))
        return ToolRegistrySnapshot(tools=read_all(rows), pins=pins)

    def restore(self, snapshot: ToolRegistrySnapshot) -> None:
        rules.check_snapshot(snapshot)
        wanted = {each.spec.tool_name: (rules.standing_of(each), each.spec) for each in snapshot.tools}
        with self._changing() as change:
            present = change.load_all()
            change.load([name for name in wanted if name not in present])
            for name in sorted({*present, *wanted}):
                change.write(name, *wanted.get(name, (None, None)))
            pins = read_pins(change.connection.execute(select(PINS)))
            change.write_pins(pins, snapshot.pins)

    def note(self, findings: Sequence[ToolFinding]) -> None:
        with self._changing() as change:
            for one in findings:
                change.note(one.kind, one.tool_name, one.version, one.digest)

    def last_event(self) -> str:
        with self._database.reading() as connection:
            state = connection.execute(select(STATE)).one()
        return rules.event_id(state.epoch_ms, state.events) if state.events else ""

    def events(self, after: str = "", limit: int = 1000) -> list[RegistryEvent]:
        rules.check_limit(limit)
        epoch, number = rules.read_event_id(after)
        with self._database.reading() as connection:
            epoch_now = connection.execute(select(STATE.c.epoch_ms)).scalar_one()
            if epoch > epoch_now:
                return []
            last, most, found = number if epoch == epoch_now else 0, max(limit, _EVENTS_AT_ONCE), list[RegistryEvent]()
            while not found:
                wanted = select(EVENTS).where(EVENTS.c.number > last).order_by(EVENTS.c.number).limit(most)
                rows = connection.execute(wanted).all()
                for row in rows:
                    try:
                        found.append(read_event(epoch_now, row))
                    except ValueError:
                        self._note_unreadable(epoch_now, row.number)
                if len(rows) < most:
                    break
                last = rows[-1].number
        return found[:limit]

    def revision(self) -> str:
        with self._database.reading() as connection:
            state = connection.execute(select(STATE)).one()
        return f"{state.epoch_ms}-{state.revision}"

    def identity(self) -> str:
        with self._database.reading() as connection:
            return str(connection.execute(select(IDENTITY.c.identity)).scalar_one())

    def close(self) -> None:
        self._database.close()

    def _note_unreadable(self, epoch: int, number: int) -> None:
        """Log an unreadable event once: followers read it again each second."""
        if (epoch, number) > self._unreadable:
            self._unreadable = epoch, number
            _log.warning("registry_event_unreadable", number=number)

    @contextmanager
    def _changing(self) -> Generator[SqlChange]:
        with self._database.writing() as connection:
            change = SqlChange(connection)
            yield change
            change.finish()

    @contextmanager
    def _changing_pins(self) -> Generator[dict[str, dict[str, str]]]:
        with self._changing() as change:
            before = read_pins(change.connection.execute(select(PINS)))
            yield (after := dict(before))
            change.write_pins(before, after)


def _rows_of(
    connection: Connection, table: Table, key: Column[Any], wanted: Sequence[str], *columns: Column[Any]
) -> list[Any]:
    """Return the rows of a table with these keys: whole, or some columns."""
    chosen = select(*(columns or table.c))
    return [row for some in rules.parts(wanted) for row in connection.execute(chosen.where(key.in_(some)))]


def _register(change: SqlChange, spec: ToolSpec, digest: str, *, keep_enabled: bool) -> ToolRegistration | ValueError:
    try:
        present = change.present(spec.tool_name)
        after = rules.registered(spec, digest, present, keep_enabled=keep_enabled, now=change.now)
    except ValueError as exc:
        return exc
    if after is present and after.version != spec.version:  # it was rolled back from this one
        return change.read(spec.tool_name)
    change.write(spec.tool_name, after, spec)
    return after.registers(spec)


def _digest_or_error(spec: ToolSpec) -> str | ValueError:
    try:
        return rules.digest_of_json(spec)
    except ValueError as exc:
        return exc


class SQLDocuments:
    """A store of documents in the database of a SQLAlchemy URL. Raises `SettingsError`; does not connect yet."""

    def __init__(self, url: str, kind: DocumentKind) -> None:
        self._database, self._most = Database(url), kind.most
        self._table, self._state = METADATA.tables[kind.table], METADATA.tables[f"{kind.table}_state"]
        (self._name,) = self._table.primary_key
        self._entry = self._table.c.entry
        self._history = self._table.c.history if kind.has_history else self._entry

    def read(self, known: str = "") -> Documents | None:
        """Implements `DocumentStore.read`."""
        with self._database.reading() as connection:
            revision: str = connection.execute(select(self._state.c.revision)).scalar_one() or NOTHING_KEPT
            if revision == known:
                return None
            in_force = select(self._name, self._entry).where(self._entry != "")
            return Documents(revision, dict(connection.execute(in_force).all()))

    def histories(self) -> dict[str, str]:
        """Implements `DocumentStore.histories`."""
        with self._database.reading() as connection:
            return dict(connection.execute(select(self._name, self._history)).all())

    def history(self, name: str) -> str:
        """Implements `DocumentStore.history`."""
        with self._database.reading() as connection:
            return self._history_of(connection, name)

    def change(
        self, name: str, *, expected: str, entry: str, history: str | None = None, is_silent: bool = False
    ) -> Changed:
        """Implements `DocumentStore.change`."""
        history = entry if history is None else history
        with self._database.writing() as connection:
            connection.execute(select(self._state).with_for_update()).one()  # locks out every other change
            if self._history_of(connection, name) != expected:
                return Changed.CONFLICT
            if history and not expected:
                count = connection.execute(select(func.count()).select_from(self._table)).scalar_one()
                if count >= self._most:
                    return Changed.FULL
            self._write(connection, name, {self._history.name: history, self._entry.name: entry}, is_kept=bool(history))
            if not is_silent:
                connection.execute(update(self._state).values(revision=randomness.uuid4().hex))
            return Changed.DONE

    def used(self) -> dict[str, int]:
        """Implements `DocumentStore.used`."""
        used_at = self._table.c.used_at
        with self._database.reading() as connection:
            return dict(connection.execute(select(self._name, used_at).where(used_at > 0)).all())

    def note_used(self, used: Mapping[str, int]) -> None:
        """Implements `DocumentStore.note_used`."""
        with self._database.writing() as connection:
            for name, at in sorted(used.items()):  # in one order, so that two gateways never wait for each other
                due = (self._name == name) & (self._table.c.used_at <= at - NOTED_SECONDS)
                connection.execute(update(self._table).where(due).values(used_at=at))

    def close(self) -> None:
        """Implements `DocumentStore.close`."""
        self._database.close()

    def _history_of(self, connection: Connection, name: str) -> str:
        return connection.execute(select(self._history).where(self._name == name)).scalar_one_or_none() or ""

    def _write(self, connection: Connection, name: str, texts: Mapping[str, str], *, is_kept: bool) -> None:
        is_it = self._name == name
        if not is_kept:
            connection.execute(delete(self._table).where(is_it))
        elif not connection.execute(update(self._table).where(is_it).values(**texts)).rowcount:
            unused = {"used_at": 0} if "used_at" in self._table.c else {}
            connection.execute(insert(self._table).values(**{self._name.name: name}, **texts, **unused))
