"""How a Redis is reached, what connections survive, and why one does not answer."""

import asyncio
import errno
import gc
import socket
from collections.abc import AsyncIterator

import hiredis
import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from support.programs.closed_port import closed_port
from support.streams.stream_server import stream_server
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.redis import servers
from toolfleet_registry.redis.servers import (
    answering,
    async_client,
    connection_factory,
    reason_of,
    sentinel_options,
    tls_options,
)
from toolfleet_registry.store.redis import RedisToolRegistry

Sentinel = tuple[int, list[list[bytes]]]
"""The port of a program that answers as a sentinel does, and every command that it was sent."""


@pytest.fixture
async def sentinel(redis_url: str) -> AsyncIterator[Sentinel]:
    """Knows one master, `owl`: the test's Redis."""
    port = redis_url.rpartition(":")[2].removesuffix("/0").encode()
    commands = list[list[bytes]]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(10_000):
            parser.feed(data)
            while isinstance(command := parser.gets(), list):
                commands.append(command)
                found = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (len(port), port)
                asks = command[0] == b"SENTINEL"
                writer.write((found if command[-1] == b"owl" else b"*-1\r\n") if asks else b"+OK\r\n")

    async with stream_server(answer) as found_at:
        yield found_at, commands


@pytest.mark.parametrize("turns", range(1, 9))
async def test_a_command_that_is_cancelled_is_never_taken_for_one_that_ended(redis_url: str, turns: int) -> None:
    """In whichever turn of the loop that happens; and the next command gets its own reply."""
    async with async_client(redis_url) as client:
        await client.execute_command("ECHO", "first")
        command = asyncio.ensure_future(client.execute_command("ECHO", "cancelled"))
        for _ in range(turns):
            await asyncio.sleep(0)
        if command.cancel():
            with pytest.raises(asyncio.CancelledError):
                await command
        assert await client.execute_command("ECHO", "next") == b"next"


async def ask(connection: AbstractConnection, *command: str) -> object:
    await connection.send_command(*command)
    return await connection.read_response()


async def test_a_factory_makes_bare_connections(redis: Redis, redis_url: str) -> None:
    """RESP3 and bytes, a new one each time; nothing is sent but what it takes to connect, and what its owner sends."""
    connect = connection_factory(redis_url)
    first, second = connect(), connect()
    assert first is not second
    assert not first.is_connected
    await redis.config_resetstat()
    await first.connect()
    assert await ask(first, "HGETALL", "nothing") == {}  # RESP3: a map
    asked = {
        name.partition("|")[0] for name in await redis.info("commandstats")
    }  # Redis 7 has `cmdstat_config|resetstat`
    assert asked == {"cmdstat_config", "cmdstat_hello", "cmdstat_hgetall"}
    await first.disconnect()


async def test_a_factorys_options_win(redis_url: str) -> None:
    """A listener that wants plain lists asks for RESP2; another database is another server to us."""
    connection = connection_factory(redis_url, protocol=2, db=3)()
    await connection.connect()
    assert await ask(connection, "HGETALL", "nothing") == []
    assert "db=3" in str(await ask(connection, "CLIENT", "INFO"))
    await connection.disconnect()


async def test_the_master_is_asked_for(redis: Redis, sentinel: Sentinel) -> None:
    """A sentinel says where the master is, at each connect; its own user and password are not those of Redis."""
    port, commands = sentinel
    url = f"sentinel://127.0.0.1:{port}/3?sentinel_username=eye&sentinel_password=s%26t"
    async with async_client(url, master="owl") as client:
        assert await client.ping()
        connection = connection_factory(url, master="owl")()
        await connection.connect()
        assert "db=3" in str(await ask(connection, "CLIENT", "INFO"))
        await connection.disconnect()

    assert commands.count([b"AUTH", b"eye", b"s&t"]) == 2
    assert commands.count([b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", b"owl"]) == 2


@pytest.mark.parametrize("is_away", [True, False])
async def test_a_sentinel_that_does_not_answer_is_passed_over(
    sentinel: Sentinel, monkeypatch: pytest.MonkeyPatch, *, is_away: bool
) -> None:
    """It is away, or takes the connection and says nothing: the next one is asked."""
    monkeypatch.setattr(servers, "_SENTINEL_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        first = 1 if is_away else frozen.getsockname()[1]
        async with async_client(f"sentinel://127.0.0.1:{first},127.0.0.1:{sentinel[0]}", master="owl") as client:
            assert await client.ping()


async def test_an_unknown_master_is_named(sentinel: Sentinel) -> None:
    """And which sentinel said what."""
    port, _ = sentinel
    connection = connection_factory(f"sentinel://:hunter2@127.0.0.1:1,127.0.0.1:{port}", master="crow")()
    with pytest.raises(RedisConnectionError, match=f"127.0.0.1:1: .*127.0.0.1:{port} knows no master 'crow'") as caught:
        await connection.connect()
    assert "hunter2" not in str(caught.value)


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is ready in time or not at all, though its commands have no time-out."""
    monkeypatch.setattr(servers, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        connection = connection_factory(f"redis://127.0.0.1:{frozen.getsockname()[1]}")()
        with pytest.raises(RedisTimeoutError, match=r"was not ready in 0\.2 s"):
            await connection.connect()
    assert not connection.is_connected


@pytest.mark.parametrize("make", [async_client, connection_factory])
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sentinel://h", "needs TOOLFLEET_SENTINEL_MASTER"),
        ("http://h", "must start with redis://"),
        ("redis://:hunter2@h/0?protocol=2", "must not have the option 'protocol'"),
    ],
)
def test_a_wrong_url_is_a_wrong_setting(make: object, url: str, reason: str) -> None:
    """Said at once, without its password."""
    assert callable(make)
    with pytest.raises(SettingsError, match=reason) as caught:
        make(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", {}),
        ("unix:///r.sock", {}),
        ("sentinel://h", {}),
        ("rediss://h", {"ssl_cert_reqs": "required"}),  # Celery and kombu would not verify
        ("rediss://h?ssl_cert_reqs=none&db=1", {"ssl_cert_reqs": "none"}),
        ("rediss://h?ssl_ca_certs=%2Fca.pem", {"ssl_cert_reqs": "required", "ssl_ca_certs": "/ca.pem"}),
        ("rediss://h?ssl_check_hostname=no", {"ssl_cert_reqs": "required", "ssl_check_hostname": False}),
        ("sentinel://h?ssl_cert_reqs=required&db=1", {"ssl_cert_reqs": "required"}),
    ],
)
def test_tls_is_verified_unless_the_url_says_otherwise(url: str, expected: dict[str, object]) -> None:
    """Whoever connects, the certificates are looked at in the same way."""
    assert tls_options(url) == expected


def test_sentinels_may_have_a_password_and_tls() -> None:
    """TLS holds for the sentinels and for Redis."""
    options = sentinel_options("sentinel://:redis@h?sentinel_password=eye&ssl_ca_certs=ca.pem")

    assert (options["username"], options["password"]) == (None, "eye")
    assert (options["ssl"], options["ssl_ca_certs"], options["ssl_cert_reqs"]) == (True, "ca.pem", "required")
    assert options["socket_timeout"] == options["socket_connect_timeout"] == 1


async def test_who_gives_up_leaves_no_connection(sentinel: Sentinel) -> None:
    """Neither to a sentinel nor to Redis, at whatever moment; Python would warn of one that stays open."""
    connect = connection_factory(f"sentinel://127.0.0.1:{sentinel[0]}", master="owl")
    for ticks in range(40):
        connection = connect()
        task = asyncio.create_task(connection.connect())
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert connection.is_connected is not task.cancelled()
        await connection.disconnect()
    gc.collect()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # the second perhaps at several addresses
async def test_where_nobody_listens_that_is_said(host: str) -> None:
    """Asked with a loop or in a thread."""
    port = closed_port()
    url, said = f"redis://{host}:{port}/0", f"^Redis at {host}:{port} does not answer: nobody listens there$"
    async with async_client(url) as redis:
        with pytest.raises(FleetUnavailable, match=said):
            async with answering(redis, seconds=5):
                await redis.ping()
    with pytest.raises(FleetUnavailable, match=said):
        RedisToolRegistry(url).revision()


async def test_a_name_that_is_no_hosts_is_said() -> None:
    """As for a module."""
    async with async_client("redis://owls.invalid:6379/0") as redis:
        with pytest.raises(FleetUnavailable, match=r"does not answer: its host name cannot be resolved$"):
            async with answering(redis, seconds=20):
                await redis.ping()


def test_anything_else_is_said_as_it_comes() -> None:
    """Or, where nothing comes, in the words of who asked; what it was made of is looked at, and not for ever."""
    ring = ValueError("owls")
    ring.__context__ = ValueError("more owls")
    ring.__context__.__context__ = ring
    one = f"[Errno {errno.ECONNREFUSED}] Connect call failed"
    several = OSError(f"Multiple exceptions: {one} ('::1', 1), {one} ('127.0.0.1', 1)")

    assert reason_of(ring, "it is late") == "owls"
    assert reason_of(TimeoutError(), "it is late") == "it is late"
    assert reason_of(several, "it is late") == "nobody listens there"
