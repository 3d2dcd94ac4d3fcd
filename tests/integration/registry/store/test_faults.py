"""What a registry does when its server is away, frozen or full, or when somebody else has written there."""

import re
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from support.programs.closed_port import closed_port
from support.servers.postgres import PostgresServer, connections_to
from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.servers.redis_setups import SETUPS
from toolfleet import FleetUnavailable
from toolfleet.stores import RedisToolRegistry, SQLToolRegistry, ToolFinding, ToolRegistry, ToolSpec
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.store import sql_database

LONGEST_SECONDS = 8  # 5, and a margin for a busy machine

SPEC = ToolSpec(tool_name="a", version="1", input_schema={}, output_schema={})


def fails_in_time(ask: Callable[[], object]) -> str:
    started = time.monotonic()
    with pytest.raises(FleetUnavailable) as caught:
        ask()
    assert time.monotonic() - started < LONGEST_SECONDS
    return str(caught.value)


@contextmanager
def opened(*registries: ToolRegistry) -> Generator[None]:
    try:
        yield
    finally:
        for registry in registries:
            registry.close()


def all_of(registry: ToolRegistry) -> list[Callable[[], object]]:
    return [
        lambda: registry.register(SPEC),
        lambda: registry.register_many([SPEC, SPEC]),
        lambda: registry.replace(SPEC, expected=None),
        registry.list_all,
        lambda: registry.get("a"),
        lambda: registry.get("a", "1"),
        lambda: registry.versions("a"),
        lambda: registry.rollback("a", "1"),
        lambda: registry.set_enabled("a", enabled=False),
        lambda: registry.remove("a"),
        registry.pins,
        lambda: registry.pin("m", {}),
        lambda: registry.approve("m", "a", "d"),
        lambda: registry.unpin("m"),
        registry.snapshot,
        lambda: registry.restore(registry.snapshot()),
        registry.events,
        registry.last_event,
        lambda: registry.note([ToolFinding(kind="drifted", tool_name="a")]),
        lambda: registry.search("a"),
        registry.revision,
        registry.identity,
    ]


@pytest.fixture
def faulty(tmp_path: Path) -> Generator[FaultyRedis]:
    with faulty_redis(tmp_path) as redis:
        yield redis


@pytest.mark.parametrize("scheme", ["redis", "postgresql+pg8000"])
def test_a_server_that_is_away_is_named(scheme: str) -> None:
    """By its address, never with the password; every method says so."""
    port = closed_port()
    url = f"{scheme}://ada:hunter2@127.0.0.1:{port}/0"
    registry: ToolRegistry = RedisToolRegistry(url) if scheme == "redis" else SQLToolRegistry(url)
    with opened(registry):
        for ask in all_of(registry):
            said = fails_in_time(ask)
            assert f"127.0.0.1:{port}" in said
            assert "does not answer: " in said
            assert "hunter2" not in said


def test_a_redis_that_comes_back_is_used_again(faulty: FaultyRedis) -> None:
    """With what it knew."""
    registry = RedisToolRegistry(faulty.url)
    with opened(registry):
        registry.register(SPEC)
        registry.pin("m", {"a": "d"})
        before = registry.snapshot(), registry.events(), registry.revision()
        with faulty.restarted():
            assert "does not answer" in fails_in_time(registry.list_all)
        assert (registry.snapshot(), registry.events(), registry.revision()) == before
        registry.set_enabled("a", enabled=False)
        assert registry.events()[-1].kind == "disabled"


def test_a_full_redis_changes_nothing(faulty: FaultyRedis) -> None:
    """No half of a change is left, and what there is can be read."""
    registry = RedisToolRegistry(faulty.url)
    with opened(registry):
        before = registry.register(SPEC), registry.events(), registry.revision()
        with faulty.full():
            assert "memory" in fails_in_time(lambda: registry.register(SPEC.model_copy(update={"version": "2"})))
            assert (registry.get("a"), registry.events(), registry.revision()) == before


def test_a_registry_whose_counters_were_lost_goes_on(faulty: FaultyRedis) -> None:
    """Ids still grow, also when the clock was wrong before; a revision of before never comes again."""
    registry, keys = RedisToolRegistry(faulty.url), Keys()
    with opened(registry):
        registry.register(SPEC)
        faulty.look.xadd(keys.registry.events, {"kind": "x"}, id="8000000000000-5")
        before, events = registry.revision(), registry.events()
        faulty.look.delete(keys.registry.revision)
        registry.set_enabled("a", enabled=False)

        (event,) = registry.events(events[-1].id)
        assert (event.id, event.kind) == ("8000000000001-0000000001", "disabled")
        assert registry.revision() != before


@pytest.mark.fleet
@pytest.mark.parametrize("setup", SETUPS)
def test_every_redis_that_a_fleet_can_have_is_enough(setup: str, tmp_path: Path) -> None:
    """Passwords, a user of few rights, TLS, sockets, databases, sentinels."""
    with SETUPS[setup](tmp_path) as redis:
        keys = Keys(redis.settings.get("key_prefix", ""))
        registry = RedisToolRegistry(redis.url, keys, master=redis.settings.get("sentinel_master"))
        with opened(registry):
            registry.register_many([SPEC, SPEC.model_copy(update={"tool_name": "b"})])
            registry.set_enabled("a", enabled=False)
            registry.pin("m", {})
            registry.approve("m", "a", "d")
            registry.restore(registry.snapshot())
            registry.remove("b")
            assert [each.spec.tool_name for each in registry.list_all(include_disabled=True)] == ["a"]
            assert len(registry.events()) == 4
        names = {str(name) for name in redis.look.keys()}  # noqa: SIM118 - a command, no dict
        assert names == {keys.registry.tools, keys.registry.events, keys.registry.revision, keys.registry.pins}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b'2\nd\n1\n"1"\n{}',
        b'1\nd\n1\n"1"\n{}',
        b'1\nd\nx\n"1"\n' + SPEC.model_dump_json().encode(),
        b"1\nd\n" + b"9" * 30 + b'\n"1"\n' + SPEC.model_dump_json().encode(),
        b'1\nd\n1\n"1"\n' + SPEC.model_copy(update={"tool_name": "b"}).model_dump_json().encode(),
        b'1\nd\n1\n"1"\n' + b"[" * 100_000,
        SPEC.model_dump_json().encode(),
    ],
)
def test_what_is_no_registration_in_redis_spoils_nothing_else(
    redis_url: str, registry_in_redis: RedisToolRegistry, value: bytes
) -> None:
    """It is listed nowhere; it is changed by nobody until it is removed, so that a disabled tool is not enabled by it."""
    look = registry_in_redis._redis
    good = registry_in_redis.register(SPEC.model_copy(update={"tool_name": "good"}))
    look.hset(Keys("acme:").registry.tools, mapping={b"a": value, b"\xff": value})

    assert registry_in_redis.list_all(include_disabled=True) == [good] == registry_in_redis.snapshot().tools
    assert registry_in_redis.get("a") is None
    with pytest.raises(ValueError, match=r"stored for tool 'a' cannot be read|registered as"):
        registry_in_redis.register(SPEC)
    with pytest.raises(ValueError, match=r"stored for tool 'a' cannot be read|not registered as expected"):
        registry_in_redis.replace(SPEC, expected=None)
    with pytest.raises(ValueError, match="stored for tool 'a' cannot be read"):
        registry_in_redis.set_enabled("a", enabled=True)
    assert type(registry_in_redis.register_many([SPEC, good.spec])[0]) is ValueError

    registry_in_redis.remove("a")
    assert registry_in_redis.register(SPEC).enabled
    registry_in_redis.restore(registry_in_redis.snapshot())
    assert look.hlen(Keys("acme:").registry.tools) == 2


def test_other_things_under_our_names_are_said(registry_in_redis: RedisToolRegistry) -> None:
    """A key of another kind is one clear error; a pin or an event that is none is passed over."""
    look, keys = registry_in_redis._redis, Keys("acme:")
    registry_in_redis.pin("m", {"a": "d"})
    look.hset(keys.registry.pins, mapping={b"\xff": "x", "{}": "x", '["m"': "x", '["n","b"]': "d"})
    look.xadd(keys.registry.events, {"x": "y"}, id="5-1")
    registry_in_redis.register(SPEC)
    assert registry_in_redis.pins() == {"m": {"a": "d"}, "n": {"b": "d"}}
    assert [event.kind for event in registry_in_redis.events()] == ["registered"]

    look.delete(keys.registry.tools)
    look.set(keys.registry.tools, "x")
    try:
        for ask in (lambda: registry_in_redis.register(SPEC), registry_in_redis.list_all, registry_in_redis.snapshot):
            assert "WRONGTYPE" in fails_in_time(ask)
    finally:
        look.delete(keys.registry.tools)


@pytest.fixture
def registry_in_redis(redis_url: str) -> Generator[RedisToolRegistry]:
    registry = RedisToolRegistry(redis_url, Keys("acme:"))
    with opened(registry):
        yield registry


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases wait for a second, and less for a lock."""
    for options in (sql_database._DRIVERS["sqlite"]["pysqlite"], sql_database._DRIVERS["postgresql"]["pg8000"]):
        monkeypatch.setitem(options, "timeout", 1)
    monkeypatch.setitem(sql_database._SERVER_LIMITS, "lock_timeout", 500)


@pytest.mark.fleet
@pytest.mark.usefixtures("no_collector", "impatient")
@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_a_frozen_server_keeps_nobody_waiting(kind: str, request: pytest.FixtureRequest) -> None:
    """Neither who is connected nor who wants to be; afterwards all goes on, and what has failed is closed."""
    server: FaultyRedis | PostgresServer = request.getfixturevalue("faulty" if kind == "redis" else "postgres")
    url = request.getfixturevalue("postgres_url") if isinstance(server, PostgresServer) else server.url
    make = RedisToolRegistry if kind == "redis" else SQLToolRegistry
    known, new = make(url), make(url)
    with opened(known, new):
        known.register(SPEC)
        with server.frozen(), ThreadPoolExecutor() as threads:
            asked = [lambda: known.register(SPEC), known.snapshot, new.list_all]
            said = [*threads.map(fails_in_time, asked)]
        if isinstance(server, PostgresServer):
            assert connections_to(server.port) == []
            assert all(f"127.0.0.1:{server.port}/postgres" in each for each in said)
        assert all("127.0.0.1" in each for each in said)
        assert known.list_all() == new.list_all() == [known.register(SPEC)]


@pytest.fixture
def look(store_url: str) -> Generator[Engine]:
    engine = create_engine(store_url, poolclass=NullPool, connect_args={"timeout": 60})
    yield engine
    engine.dispose()


in_sql = pytest.mark.parametrize("kind", ["sqlite", "postgresql"], indirect=True)


@pytest.mark.fleet
@pytest.mark.usefixtures("impatient")
@in_sql
def test_whoever_holds_the_database_holds_nobody_for_long(registry: ToolRegistry, look: Engine, kind: str) -> None:
    """A change that cannot be made in time is not made; reading needs no lock."""
    registry.register(SPEC)
    with look.connect() as other:
        if kind == "sqlite":
            other.execute(text("BEGIN IMMEDIATE"))
        else:
            other.execute(text("SELECT * FROM toolfleet_registry_state FOR UPDATE"))
        assert re.search("lock", fails_in_time(lambda: registry.set_enabled("a", enabled=False)))
        assert len(registry.list_all()) == 1
        other.rollback()
    assert not registry.set_enabled("a", enabled=False).enabled


@in_sql
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("spec", "{"),
        ("spec", "{}"),
        ("spec", SPEC.model_copy(update={"tool_name": "b"}).model_dump_json()),
        ("version", "x"),
        ("version", "5"),
        ("created_at", "[]"),
    ],
)
def test_what_is_no_registration_in_a_table_spoils_nothing_else(
    registry: ToolRegistry, look: Engine, column: str, value: str
) -> None:
    """It is listed nowhere, and gone when it is removed."""
    good = registry.register(SPEC.model_copy(update={"tool_name": "good"}))
    registry.register(SPEC)
    with look.begin() as connection:
        change = text(f"UPDATE toolfleet_registry_tools SET {column} = :value WHERE tool_name = '\"a\"'")  # noqa: S608 - a name from above
        connection.execute(change, {"value": value})
        connection.execute(text("UPDATE toolfleet_registry_events SET kind = 'x' WHERE number = 1"))

    assert registry.list_all() == [good] == registry.snapshot().tools
    assert registry.get("a") is None
    with pytest.raises(ValueError, match="stored for tool 'a' cannot be read"):
        registry.set_enabled("a", enabled=True)
    assert [event.kind for event in registry.events()] == ["registered"]
    registry.remove("a")
    assert registry.register(SPEC).enabled
    assert registry.events()[-2].kind == "removed"


def test_a_file_that_is_no_database_is_said(tmp_path: Path) -> None:
    """So is a folder that does not exist."""
    (tmp_path / "x.db").write_text("An owl sat on a branch and said nothing at all. " * 50)
    for path in (tmp_path / "x.db", tmp_path / "missing" / "x.db"):
        registry = SQLToolRegistry(f"sqlite:///{path}")
        with opened(registry):
            assert str(path) in fails_in_time(registry.list_all)
