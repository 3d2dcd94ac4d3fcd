"""Defines the tables of a registry in SQLite or PostgreSQL, and connects to the database.

Names and versions are stored as JSON: any text has such a form, and PostgreSQL does not take every text.
"""

import hashlib
import json
import socket
import ssl
import struct
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from threading import RLock
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool, StaticPool

from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.specs import RegistryEvent, ToolRegistration, ToolSpec
from toolfleet_registry.store import rules
from toolfleet_registry.store.rules import RegistrationState
from toolfleet_registry.system import randomness
from toolfleet_registry.system.loggers import get_logger

_log = get_logger(__name__)

METADATA = sa.MetaData()


def _texts(names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names.split()]


def _numbers(names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names.split()]


def _key(name: str) -> sa.Column[Any]:
    """Return the column of a key that is short: an index takes no long ones."""
    return sa.Column(name, sa.String(64), primary_key=True)


def _one_row(name: str, *columns: sa.Column[Any]) -> sa.Table:
    """Define a table of one row, number 1."""
    return sa.Table(name, METADATA, sa.Column("id", sa.Integer, primary_key=True, autoincrement=False), *columns)


def _word(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.String(32), nullable=False)


TOOLS = sa.Table(
    "toolfleet_registry_tools",
    METADATA,
    _key("key"),  # names are of any length
    *_texts("tool_name version digest"),
    sa.Column("enabled", sa.Boolean, nullable=False),
    *_texts("created_at spec"),
)

VERSIONS = sa.Table(
    "toolfleet_registry_versions",
    METADATA,
    _key("id"),
    sa.Column("key", sa.String(64), nullable=False, index=True),  # the tool's, as in the table of tools
    *_numbers("place"),  # grows: the greater, the later it was in force
    *_texts("version digest created_at spec"),
)

# The name of the tool is null where the module is pinned, if only to no digest at all.
PINS = sa.Table("toolfleet_registry_pins", METADATA, _key("key"), *_texts("module tool_name digest"))

EVENTS = sa.Table(
    "toolfleet_registry_events",
    METADATA,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    *_texts("kind tool_name version digest"),
    *_numbers("at_us"),  # microseconds since the epoch
)

STATE = _one_row("toolfleet_registry_state", *_numbers("epoch_ms revision events"))
"""Every change of the registry locks its row."""

MANIFESTS = sa.Table(
    "toolfleet_registry_manifests",
    METADATA,
    _key("module"),
    sa.Column("digest", sa.String(64), nullable=False),
    *_texts("manifest"),
)

MODULES = sa.Table("toolfleet_registry_modules", METADATA, _key("module"), *_texts("entry"))

IDENTITY = _one_row("toolfleet_registry_identity", _word("identity"))
"""Its row never changes."""

API_KEYS = sa.Table("toolfleet_registry_api_keys", METADATA, _key("id"), *_texts("entry"), *_numbers("used_at"))
"""`used_at` is in seconds since the epoch; 0: never."""

API_KEYS_STATE = _one_row("toolfleet_registry_api_keys_state", _word("revision"))

AGENTS = sa.Table("toolfleet_registry_agents", METADATA, _key("name"), *_texts("entry history"))
"""`entry` is what is in force; "" for a removed one."""

AGENTS_STATE = _one_row("toolfleet_registry_agents_state", _word("revision"))

_PATIENCE_SECONDS = 5
# PostgreSQL gives up before we do, and says why; a client that stands still in a transaction lets go of its locks.
_SERVER_LIMITS = {"lock_timeout": 4000, "statement_timeout": 4500, "idle_in_transaction_session_timeout": 10_000}  # ms
_TABLES_LOCK = 7_017_104_338  # one number of all that advisory locks may have, for the process that makes the tables

_LIBPQ = {"connect_timeout": _PATIENCE_SECONDS, "tcp_user_timeout": _PATIENCE_SECONDS * 1000}
_DRIVERS: dict[str, dict[str, dict[str, Any]]] = {
    "sqlite": {
        # Transactions begin when we say so: of its own the driver begins them too late to lock anything out.
        "pysqlite": {"timeout": _PATIENCE_SECONDS, "check_same_thread": False, "isolation_level": None}
    },
    "postgresql": {"pg8000": {"timeout": _PATIENCE_SECONDS}, "psycopg": _LIBPQ, "psycopg2": _LIBPQ},
}

# What the tables of one row begin with.
_ROWS: dict[sa.Table, Callable[[], dict[str, Any]]] = {
    STATE: lambda: {"epoch_ms": 0, "revision": 0, "events": 0},
    IDENTITY: lambda: {"identity": randomness.uuid4().hex},
    API_KEYS_STATE: lambda: {"revision": ""},
    AGENTS_STATE: lambda: {"revision": ""},
}

_PORT = 5432
_MAY_IT_BE_TLS = struct.pack("!ii", 8, 80877103)  # its length and PostgreSQL's number for it


def key_of(*names: str | None) -> str:
    """Return the key of a row."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def tool_row(spec: ToolSpec, standing: RegistrationState) -> dict[str, Any]:
    """Return a row of `TOOLS`."""
    return {
        "key": key_of(spec.tool_name),
        "tool_name": json.dumps(spec.tool_name),
        "version": json.dumps(standing.version),
        "digest": standing.digest,
        "enabled": standing.enabled,
        "created_at": json.dumps(standing.created_at),
        "spec": rules.marked(rules.text_of(spec), standing.rolled_back_from),
    }


def version_row(row: Mapping[str, Any], *, place: int) -> dict[str, Any]:
    """Return a row of `VERSIONS`, from one of `TOOLS`."""
    same = {name: row[name] for name in ("key", "version", "digest", "created_at", "spec")}
    return {**same, "id": version_id(row["key"], row["version"]), "place": place}


def version_id(key: str, version: str) -> str:
    """Return the id of a row of `VERSIONS`; both arguments as they are stored."""
    return key_of(key, version)


def pin_rows(module: str, digests: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return all rows of `PINS` that a pinned module has."""
    pins: list[tuple[str | None, str | None]] = [(None, None), *digests.items()]
    return [
        {
            "key": key_of(module, name),
            "module": json.dumps(module),
            "tool_name": json.dumps(name),
            "digest": json.dumps(digest),
        }
        for name, digest in pins
    ]


def read_standing(row: Any) -> RegistrationState | None:
    """Parse the state from a row of `TOOLS`, where `spec` may be shortened to its mark; `None` if it cannot be read."""
    try:
        version, created_at, mark = json.loads(row.version), json.loads(row.created_at), rules.mark_of(row.spec)
    except (ValueError, RecursionError):
        return None
    if not isinstance(version, str | None) or not isinstance(created_at, str | None):
        return None
    return RegistrationState(version, row.digest, bool(row.enabled), created_at, mark)


def read_version(name: str, row: Any, *, enabled: bool) -> ToolRegistration:
    """Parse a row of `VERSIONS`. Raises `ValueError` if it is no specification of that tool."""
    try:
        spec, created_at = rules.read_spec(row.spec), json.loads(row.created_at)
        registration = ToolRegistration(spec=spec, enabled=enabled, created_at=created_at)
    except (ValueError, RecursionError) as exc:
        raise rules.unreadable(name) from exc
    if (spec.tool_name, json.dumps(spec.version)) != (name, row.version):
        raise rules.unreadable(name)
    return registration


def read_registration(name: str, row: Any) -> ToolRegistration:
    """Parse a row of `TOOLS`. Raises `ValueError` if it is no registration of that tool."""
    standing = read_standing(row)
    try:
        spec = rules.read_spec(row.spec)
    except (ValueError, RecursionError) as exc:
        raise rules.unreadable(name) from exc
    if standing is None or spec.tool_name != name:
        raise rules.unreadable(name)
    return standing.registers(spec)


def read_all(rows: Sequence[Any]) -> list[ToolRegistration]:
    """Parse rows of `TOOLS`, sorted by name; unreadable ones are left out, with a warning."""
    found = (read_or_warn(read_name(row), row) for row in rows)
    return sorted((each for each in found if each is not None), key=lambda each: each.spec.tool_name)


def read_or_warn(name: str, row: Any) -> ToolRegistration | None:
    """Parse a row of `TOOLS`; `None`, with a warning, if it cannot be read."""
    try:
        return read_registration(name, row)
    except ValueError as exc:
        _log.warning("registration_unreadable", tool=name, error=str(exc))
        return None


def read_name(row: Any) -> str:
    """Return the name of a row's tool; the text itself, if it is no name."""
    name = rules.json_of(row.tool_name)
    return name if isinstance(name, str) else str(row.tool_name)


def read_pins(rows: Any) -> dict[str, dict[str, str]]:
    """Return the pins by module and tool. An unreadable pin is left out: its tool is then not approved."""
    pins = dict[str, dict[str, str]]()
    for row in rows:
        match rules.json_of(row.module), rules.json_of(row.tool_name), rules.json_of(row.digest):
            case str(module), str(name), str(digest):
                pins.setdefault(module, {})[name] = digest
            case str(module), _, _:
                pins.setdefault(module, {})
            case _:
                continue
    return {module: dict(sorted(pins[module].items())) for module in sorted(pins)}


def read_event(epoch_ms: int, row: Any) -> RegistryEvent:
    """Parse a row of `EVENTS`. Raises `ValueError` if it is none."""
    try:
        return RegistryEvent.model_validate(
            {
                "id": rules.event_id(epoch_ms, row.number),
                "kind": row.kind,
                "tool_name": json.loads(row.tool_name),
                "version": json.loads(row.version),
                "digest": row.digest or None,
                "at": datetime.fromtimestamp(row.at_us / 1e6, UTC),
            }
        )
    except (ValidationError, OverflowError, OSError) as exc:
        raise ValueError("no event of a registry") from exc


class Database:
    """Opens transactions. Every one has a connection of its own: registries are asked rarely, by many processes."""

    def __init__(self, url: str) -> None:
        parts = _read(url)
        options = _DRIVERS[parts.get_backend_name()][parts.get_driver_name()]
        self._is_sqlite = parts.get_backend_name() == "sqlite"
        is_in_memory = self._is_sqlite and parts.database in {None, "", ":memory:"}
        # A database in memory is gone with its connection, which only one thread may use at a time.
        self._turn: AbstractContextManager[Any] = RLock() if is_in_memory else nullcontext()
        self._where = f"{parts.host}:{parts.port or 5432}/{parts.database}" if parts.host else str(parts.database)
        self._engine = _engine(parts, options, pool=StaticPool if is_in_memory else NullPool)
        self._has_tables = False

    @contextmanager
    def reading(self) -> Generator[sa.Connection]:
        """Open a transaction that sees one moment, however much it reads. Raises `FleetUnavailable`."""
        with self._answering(), self._turn:
            self._make_tables()
            with self._begin(writes=False) as connection:
                yield connection

    @contextmanager
    def writing(self) -> Generator[sa.Connection]:
        """Open a transaction that writes; in SQLite it locks all others out. Raises `FleetUnavailable`."""
        with self._answering(), self._turn:
            self._make_tables()
            with self._begin(writes=True) as connection:
                yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _begin(self, *, writes: bool) -> Generator[sa.Connection]:
        with self._engine.begin() as connection:
            if self._is_sqlite:
                connection.execute(sa.text("BEGIN IMMEDIATE" if writes else "BEGIN"))
            else:
                if not writes:
                    connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
                limits = (sa.func.set_config(name, str(ms), True) for name, ms in _SERVER_LIMITS.items())
                connection.execute(sa.select(*limits))
            yield connection

    def _make_tables(self) -> None:
        if self._has_tables:
            return
        with self._begin(writes=False) as connection:
            self._has_tables = _is_complete(connection)
        if self._has_tables:
            return
        with self._begin(writes=True) as connection:
            if not self._is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TABLES_LOCK)))
            METADATA.create_all(connection)
            for table, row in _ROWS.items():
                if not _has_row(connection, table):
                    connection.execute(sa.insert(table).values(id=1, **row()))
        self._has_tables = True

    @contextmanager
    def _answering(self) -> Generator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError) as exc:
            let_go(exc)
            raise FleetUnavailable(f"The registry's database {self._where} does not answer: {_reason(exc)}") from exc


def waits_of(url: sa.URL) -> dict[str, Any]:
    """Return the driver's options, for `create_engine`, that bound its waits; none for an unknown driver."""
    return dict(_DRIVERS.get(url.get_backend_name(), {}).get(url.get_driver_name(), {}))


def _read(url: str) -> sa.URL:
    """Parse the URL. Raises `SettingsError`, which never repeats the URL: it may hold a password."""
    try:
        parts = sa.make_url(url)
        backend = parts.get_backend_name()
        driver = parts.get_driver_name() if backend in _DRIVERS else None
    except (ArgumentError, ValueError, SQLAlchemyError) as exc:
        raise SettingsError("The registry's URL is none that SQLAlchemy can read.") from exc
    if driver is None:
        raise SettingsError("The registry's URL must be one of Redis, SQLite (sqlite:///file) or PostgreSQL.")
    if driver not in _DRIVERS[backend]:
        raise SettingsError(f"The registry's URL must have one of the drivers {', '.join(_DRIVERS[backend])}.")
    return parts


def _engine(url: sa.URL, options: dict[str, Any], *, pool: Any) -> sa.Engine:
    try:
        return close_failed(sa.create_engine(url, connect_args=options, poolclass=pool, hide_parameters=True))
    except ImportError as exc:
        raise SettingsError(
            f"The registry's URL needs the package {exc.name!r}, or must name another driver, as in postgresql+pg8000://…"
        ) from exc


def _is_complete(connection: sa.Connection) -> bool:
    if not all(sa.inspect(connection).has_table(name) for name in METADATA.tables):
        return False
    return all(_has_row(connection, table) for table in _ROWS)


def _has_row(connection: sa.Connection, table: sa.Table) -> bool:
    return connection.execute(sa.select(table.c.id)).first() is not None


def _reason(exc: BaseException) -> str:
    """Return the reason in a line, without the statement."""
    origin = getattr(exc, "orig", None) or exc
    if isinstance(first := next(iter(origin.args), None), dict):  # pg8000's errors
        return str(first.get("M", "no reason given"))
    lines = str(origin).splitlines()
    return lines[0] if lines else f"no answer within {_PATIENCE_SECONDS} s"


def close_failed(engine: sa.Engine) -> sa.Engine:
    """Have an engine close the socket of a connection that cannot be made; returns it.

    pg8000 asks first whether the server speaks TLS. If no answer comes it loses the socket, open. So it gets one of ours.
    """
    if engine.dialect.driver == "pg8000":
        sa.event.listen(engine, "do_connect", _connect)
    return engine


def let_go(exc: BaseException | None) -> None:
    """Empty the frames that an error has come through: a socket that pg8000 has closed stays open while they refer to it."""
    while exc is not None:
        traceback.clear_frames(exc.__traceback__)
        exc = exc.__context__


def _connect(dialect: Any, _record: Any, words: list[Any], options: dict[str, Any]) -> Any:
    """Connect as SQLAlchemy does, which connects to a unix socket itself. Raises what the driver raises."""
    if options.get("unix_sock") is not None:
        return None
    address = options.get("host") or "localhost", options.get("port") or _PORT
    try:
        sock = socket.create_connection(address, options.get("timeout"), options.get("source_address"))
    except OSError as exc:
        raise dialect.loaded_dbapi.InterfaceError(str(exc)) from exc
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if options.get("ssl_context") is None:
            sock = _encrypted_if_offered(sock, address[0])
            options = {**options, "ssl_context": False}  # it is done
        return dialect.loaded_dbapi.Connection(*words, **options, sock=sock)
    except BaseException:
        sock.close()
        raise


def _encrypted_if_offered(sock: socket.socket, host: str) -> socket.socket:
    """Return the socket with TLS if the server supports it, without verifying it: pg8000's own behaviour without options for TLS.

    But pg8000 reads every certificate authority of the machine first, for each connection, and then trusts any server.
    """
    sock.sendall(_MAY_IT_BE_TLS)
    if sock.recv(1) != b"S":
        return sock
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(sock, server_hostname=host)
