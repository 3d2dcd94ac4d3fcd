"""Keeps the specifications that tools had before, in an SQL database: what one change adds to them, and what it drops."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, func, insert, select

from toolfleet_registry.manifests.specs import ToolRegistration
from toolfleet_registry.store import rules
from toolfleet_registry.store.port import VERSIONS_KEPT
from toolfleet_registry.store.sql_tables import (
    TOOLS,
    VERSIONS,
    key_of,
    read_or_warn,
    read_version,
    version_id,
    version_row,
)
from toolfleet_registry.system.loggers import get_logger

T = TypeVar("T")

_log = get_logger(__name__)

_KEYS_AT_ONCE = 1000  # values of a statement: databases take some ten thousand


class History:
    """What is to be written; `write` writes it, before the rows of the tools themselves."""

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
        """Write all of it. `present`: the new rows of the tools, by name: what is in force is no earlier one."""
        self._delete(VERSIONS.c.key, self._dropped)
        rows = {
            row["id"]: row for row in [*self._read_stored(), *(row for each in self._rows.values() for row in each)]
        }
        changed = {row["key"] for row in rows.values()}
        in_force = {version_id(row["key"], row["version"]) for row in present.values()}
        self._delete(VERSIONS.c.id, {*rows, *in_force})
        if kept := [row for number, row in rows.items() if number not in in_force]:
            self._connection.execute(insert(VERSIONS), kept)
        for keys in _parts([*changed]):
            self._prune(keys)

    def _read_stored(self) -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()
        for keys in _parts([*self._stored]):
            for row in self._connection.execute(select(TOOLS).where(TOOLS.c.key.in_(keys))).mappings():
                found.append(version_row({**row}, place=self._stored[row["key"]]))
        return found

    def _prune(self, keys: Sequence[str]) -> None:
        newer = func.row_number().over(partition_by=VERSIONS.c.key, order_by=VERSIONS.c.place.desc()).label("newer")
        counted = select(VERSIONS.c.id, newer).where(VERSIONS.c.key.in_(keys)).subquery()
        too_many = select(counted.c.id).where(counted.c.newer > VERSIONS_KEPT - 1)
        self._connection.execute(delete(VERSIONS).where(VERSIONS.c.id.in_(too_many)))

    def _delete(self, column: Any, values: set[str]) -> None:
        for some in _parts([*values]):
            self._connection.execute(delete(VERSIONS).where(column.in_(some)))


def read_versions(connection: Connection, tool_name: str) -> list[ToolRegistration]:
    """The specifications that are kept of a tool, as `ToolRegistry.versions` has them."""
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


def _parts(values: Sequence[T]) -> Generator[Sequence[T]]:
    return (values[start : start + _KEYS_AT_ONCE] for start in range(0, len(values), _KEYS_AT_ONCE))
