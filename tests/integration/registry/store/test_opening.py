"""Which registry a fleet has, and which URLs there can be one at."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from support.there import there
from toolfleet import Settings, SettingsError
from toolfleet.stores import (
    InMemoryToolRegistry,
    RedisToolRegistry,
    SQLToolRegistry,
    ToolRegistry,
    ToolSpec,
    open_store,
)
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.specs import digest_of

SPEC = ToolSpec(tool_name="a", input_schema={}, output_schema={})


def test_a_fleets_registry_is_in_its_redis(redis_url: str) -> None:
    """Under its prefix, unless a URL of its own says where."""
    store = open_store(Settings(redis_url=redis_url, key_prefix="acme:"))
    store.register(SPEC)
    assert RedisToolRegistry(redis_url, Keys("acme:")).list_all() == store.list_all() != []
    assert RedisToolRegistry(redis_url, Keys("other:")).list_all() == []
    store.close()

    other = open_store(Settings(redis_url="redis://127.0.0.1:1/0", registry_url=redis_url, key_prefix="acme:"))
    assert isinstance(other, RedisToolRegistry)
    assert [each.spec for each in other.list_all()] == [SPEC]
    other.close()


def test_what_an_earlier_or_later_release_has_made_is_taken_as_it_is(tmp_path: Path) -> None:
    """A table that is missing is made; a field of a specification that nobody here knows is left out."""
    path = tmp_path / "registry.db"
    first = SQLToolRegistry(f"sqlite:///{path}")
    first.register(SPEC)
    first.set_enabled("a", enabled=False)
    first.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE toolfleet_registry_identity")
        database.execute("DROP TABLE toolfleet_registry_versions")
        database.execute(
            """UPDATE toolfleet_registry_tools SET spec = replace(spec, '{"tool_name"', '{"x":1,"tool_name"')"""
        )
        database.commit()
    second = open_store(Settings(registry_url=f"sqlite:///{path}"))

    assert isinstance(second, SQLToolRegistry)
    assert [(each.spec, each.enabled) for each in second.list_all(include_disabled=True)] == [(SPEC, False)]
    assert len(second.identity()) == 32
    assert second.set_enabled("a", enabled=True).spec == SPEC
    later = second.register(SPEC.model_copy(update={"version": "9"}))
    assert [each.spec for each in second.versions("a")] == [SPEC, later.spec]
    second.close()


def test_an_earlier_release_beside_this_one_spoils_nothing(redis_url: str) -> None:
    """It keeps nothing of what it replaces, reads over a rollback, and ends it by registering what it is offered."""
    keys, look = Keys("acme:"), Redis.from_url(redis_url, decode_responses=True)
    registry, tools = RedisToolRegistry(redis_url, keys), keys.registry.tools
    first = registry.register(SPEC)
    second = registry.register(SPEC.model_copy(update={"version": "2"}))
    registry.rollback("a", SPEC.version)
    (value,) = look.hmget(tools, ["a"])
    assert ToolSpec.model_validate_json(str(value).split("\n", 4)[4], extra="ignore") == first.spec

    newest = SPEC.model_copy(update={"version": "3"})
    look.hset(tools, "a", f'1\n{digest_of(newest)}\n5\n"3"\n{newest.model_dump_json()}')
    newer = there(registry.get("a"))
    assert (newer.spec, newer.rolled_back_from) == (newest, None)
    assert [each.spec for each in registry.versions("a")] == [second.spec, newest]
    assert registry.rollback("a", "2").rolled_back_from == "3"
    registry.close()
    look.close()


@pytest.mark.parametrize(
    "make",
    [InMemoryToolRegistry, lambda: SQLToolRegistry("sqlite://"), lambda: SQLToolRegistry("sqlite:///:memory:")],
    ids=["Python", "SQLite", "SQLite by name"],
)
def test_a_registry_in_memory_is_its_owners(make: Callable[[], ToolRegistry]) -> None:
    """It is gone with its registry, and nothing is global: what one has, no other has."""
    registry, other = make(), make()
    registry.register(SPEC)
    assert [each.spec for each in registry.list_all()] == [SPEC]
    assert other.list_all() == []
    registry.close()
    other.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("hunter2", "none that SQLAlchemy can read"),
        ("hunter2://x", "must be one of Redis, SQLite"),
        ("mysql://ada:hunter2@x/y", "must be one of Redis, SQLite"),
        ("sqlite+aiosqlite:///hunter2", "must have one of the drivers pysqlite"),
        ("postgresql+asyncpg://ada:hunter2@x/y", "must have one of the drivers pg8000, psycopg, psycopg2"),
        ("postgresql+psycopg2://ada:hunter2@x/y", "needs the package 'psycopg2'"),
        ("postgresql+pg8000://ada:hunter2@x:port/y", "none that SQLAlchemy can read"),
        ("redis://ada:hunter2@x/0?socket_timeout=9", "must not have the option"),
        ("sentinel://ada:hunter2@x/0", "needs TOOLFLEET_SENTINEL_MASTER"),
    ],
)
def test_a_url_that_is_none_is_said(url: str, says: str) -> None:
    """When the registry is opened; never with the password."""
    with pytest.raises(SettingsError, match=says) as caught:
        open_store(Settings(registry_url=url))
    assert "hunter2" not in str(caught.value)


def test_a_registry_needs_a_place() -> None:
    """Nobody has said where."""
    with pytest.raises(SettingsError, match="TOOLFLEET_REDIS_URL or TOOLFLEET_REGISTRY_URL"):
        open_store(Settings())


def test_only_sql_needs_sqlalchemy(tmp_path: Path) -> None:
    """Without it all else can be imported, and the missing extra is named."""
    (tmp_path / "sqlalchemy.py").write_text("raise ModuleNotFoundError('no', name='sqlalchemy')")
    program = """
import toolfleet.stores as stores
from toolfleet import Settings
stores.InMemoryToolRegistry(), stores.RedisToolRegistry("redis://127.0.0.1:1/0")
for attempt in (lambda: stores.SQLToolRegistry, lambda: stores.open_store(Settings(registry_url="sqlite:///x"))):
    try:
        attempt()
    except Exception as exc:
        print(type(exc).__name__, exc)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.splitlines() == [
        "ImportError toolfleet.stores.SQLToolRegistry needs 'sqlalchemy': pip install 'toolfleet[sql]'.",
        "SettingsError TOOLFLEET_REGISTRY_URL needs 'sqlalchemy' here: pip install 'toolfleet[sql]'.",
    ]
