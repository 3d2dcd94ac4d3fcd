"""Real Redis servers as people run them: with a password, a restricted user, TLS, a socket, a database, sentinels."""

import asyncio
import contextlib
import functools
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from support.documents import ROOT
from support.programs.closed_port import closed_port
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.redis_server import find_redis_server, held_port, redis_command
from toolfleet_modules.hosts.child_process import spawn, stop

PASSWORD = "hoot/hoot@1"
MASTER = "owl"
PREFIX = "acme:"

# As in docs/operations/redis.md: what a user needs whose keys begin with `acme:`.
ACL = (
    f"resetchannels ~{PREFIX}* &{PREFIX}* &{PREFIX}/0.celery.pidbox &{PREFIX}/0.celeryev/* "
    "-@all +@read +@write +@connection +@pubsub +@transaction +@scripting +time -@dangerous +info"
)


@dataclass(frozen=True)
class Certificates:
    """Files: an authority's certificate, a server's that it has signed, and the server's key."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class RedisSetup:
    """A running Redis. `settings` are the fleet's; `look` is a client that may do everything, on the fleet's database."""

    settings: dict[str, Any]
    look: Redis
    servers: dict[str, Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return str(self.settings["redis_url"])


@contextmanager
def with_a_password(folder: Path) -> Generator[RedisSetup]:
    with _server(folder, "--requirepass", PASSWORD) as (port, _):
        url = f"redis://:hoot%2Fhoot%401@127.0.0.1:{port}/0"
        yield RedisSetup({"redis_url": url}, Redis.from_url(url, decode_responses=True))


@contextmanager
def with_a_restricted_user(folder: Path) -> Generator[RedisSetup]:
    """May use keys and channels with the fleet's prefix, and the commands that the fleet needs."""
    rules = f"on >{PASSWORD} {ACL}"
    with _server(folder, "--user", "fleet", *rules.split()) as (port, _):
        url = f"redis://fleet:hoot%2Fhoot%401@127.0.0.1:{port}/0"
        look = Redis(host="127.0.0.1", port=port, decode_responses=True)
        yield RedisSetup({"redis_url": url, "key_prefix": PREFIX}, look)


@contextmanager
def as_in_production(folder: Path) -> Generator[RedisSetup]:
    """As docs/operations/production.md configures it, but for TLS, which not every server is built with."""
    page = (ROOT / "docs" / "operations" / "production.md").read_text()
    lines = re.findall(r"^(appendonly|appendfsync|maxmemory|maxmemory-policy|user) (.+)$", page, re.MULTILINE)
    options = [word for name, value in lines for word in (f"--{name}", *value.split())]
    with _server(folder, *options, "--user", "look", "on", "nopass", "~*", "&*", "+@all") as (port, _):
        url = f"redis://toolfleet:PASSWORD@127.0.0.1:{port}/0"
        look = Redis(host="127.0.0.1", port=port, username="look", password="", decode_responses=True)
        yield RedisSetup({"redis_url": url}, look)


@contextmanager
def over_tls(folder: Path) -> Generator[RedisSetup]:
    """Its certificate is signed by an authority that only the URL names."""
    tls = _certificates(folder)
    with _server(folder) as (port, _), _tls_front(tls, port) as tls_port:
        url = f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={tls.authority}"
        yield RedisSetup({"redis_url": url}, Redis(host="127.0.0.1", port=port, decode_responses=True))


@contextmanager
def on_a_socket(folder: Path) -> Generator[RedisSetup]:
    """In a database of its own, too."""
    path = folder / "r.sock"
    with _server(folder, "--unixsocket", str(path)):
        url = f"unix://{path}?db=3"
        look = Redis.from_url(url, decode_responses=True)
        wait_until_sync(lambda: _answers(look), "Redis answers at the socket, too")  # which it opens after its port
        yield RedisSetup({"redis_url": url}, look)


@contextmanager
def in_a_database(folder: Path) -> Generator[RedisSetup]:
    with _server(folder) as (port, _):
        url = f"redis://127.0.0.1:{port}/3"
        yield RedisSetup({"redis_url": url}, Redis.from_url(url, decode_responses=True))


@contextmanager
def behind_sentinels(folder: Path) -> Generator[RedisSetup]:
    """A master and a replica with a password, and a sentinel; of the two that the URL names, one is down."""
    password = ("--requirepass", PASSWORD, "--masterauth", PASSWORD)
    # By itself a master waits five seconds for more replicas, and a sentinel asks it for them at its start, and every ten seconds.
    at_once = ("--repl-diskless-sync-delay", "0")
    with ExitStack() as stack:
        port, master = stack.enter_context(_server(folder / "master", *password, *at_once))
        copy = _server(folder / "replica", *password, *at_once, "--replicaof", "127.0.0.1", str(port))
        _, replica = stack.enter_context(copy)
        look = Redis(host="127.0.0.1", port=port, password=PASSWORD, db=1, decode_responses=True)
        wait_until_sync(lambda: _is_synced(look), "the replica has the master's data")
        sentinel_port = stack.enter_context(_sentinel(folder, port))
        with Redis(host="127.0.0.1", port=sentinel_port, decode_responses=True) as sentinel:
            wait_until_sync(lambda: _replicas(sentinel), "the sentinel has found the replica")
        url = f"sentinel://:hoot%2Fhoot%401@127.0.0.1:{closed_port()},127.0.0.1:{sentinel_port}/1"
        yield RedisSetup({"redis_url": url, "sentinel_master": MASTER}, look, {"master": master, "replica": replica})


@contextmanager
def behind_sentinels_over_tls(folder: Path) -> Generator[RedisSetup]:
    """The sentinel and the server that it names are both reached over TLS."""
    tls = _certificates(folder)
    with (
        _server(folder, "--requirepass", PASSWORD) as (port, _),
        _tls_front(tls, port) as tls_port,
        _sentinel(folder, tls_port) as sentinel_port,
        _tls_front(tls, sentinel_port) as sentinel_tls_port,
    ):
        url = f"sentinel://:hoot%2Fhoot%401@127.0.0.1:{sentinel_tls_port}/0?ssl_ca_certs={tls.authority}"
        look = Redis(host="127.0.0.1", port=port, password=PASSWORD, decode_responses=True)
        yield RedisSetup({"redis_url": url, "sentinel_master": MASTER}, look)


SETUPS: dict[str, Callable[[Path], AbstractContextManager[RedisSetup]]] = {
    "password": with_a_password,
    "restricted user": with_a_restricted_user,
    "production": as_in_production,
    "TLS": over_tls,
    "socket": on_a_socket,
    "database": in_a_database,
    "sentinels": behind_sentinels,
    "sentinels and TLS": behind_sentinels_over_tls,
}


def _is_synced(master: Redis) -> bool:
    info: Any = master.info("replication")
    return bool(info.get("connected_slaves") and info["slave0"]["state"] == "online")


def _replicas(sentinel: Redis) -> Any:
    return sentinel.execute_command("SENTINEL", "REPLICAS", MASTER)


@contextmanager
def _server(folder: Path, *options: str) -> Generator[tuple[int, Popen[bytes]]]:
    with held_port() as port:
        process = spawn([*redis_command(folder, port), *options])
        try:
            wait_until_sync(lambda: _listens(port), "Redis listens")
            yield port, process
        finally:
            stop(process, patience_seconds=10)


def _answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisError:
        return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS).close()
    except OSError:
        return False
    return True


@contextmanager
def _sentinel(folder: Path, master_port: int) -> Generator[int]:
    """A sentinel that alone decides, after three seconds, that the master is down."""
    with held_port() as port:
        config = folder / "sentinel.conf"  # it writes there what it learns
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {master_port} 1\n"
            f"sentinel auth-pass {MASTER} {PASSWORD}\n"
            f"sentinel down-after-milliseconds {MASTER} 3000\n"
            f"sentinel failover-timeout {MASTER} 5000\n"
        )
        process = spawn([str(find_redis_server()), str(config), "--sentinel"])
        try:
            wait_until_sync(lambda: _listens(port), "the sentinel listens")
            yield port
        finally:
            stop(process, patience_seconds=10)


@contextmanager
def _tls_front(tls: Certificates, port: int) -> Generator[int]:
    """Speaks TLS for a server that may have been built without, and passes on what comes without; yields its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.certificate, tls.key)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        front = asyncio.run_coroutine_threadsafe(_accept(listener, port, context), loop)
        try:
            yield listener.getsockname()[1]
        finally:
            front.cancel()
            asyncio.run_coroutine_threadsafe(_end_all(), loop).result(PATIENCE_SECONDS)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(PATIENCE_SECONDS)
            loop.close()


async def _accept(listener: socket.socket, port: int, context: ssl.SSLContext) -> None:
    loop, connections = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    while True:
        connection, _ = await loop.sock_accept(listener)
        connections.add(task := loop.create_task(_pass_on(connection, port, context)))
        task.add_done_callback(functools.partial(_forget, connections, connection))


def _forget(connections: set[asyncio.Task[None]], connection: socket.socket, task: asyncio.Task[None]) -> None:
    """Also of a task that was cancelled before its first step."""
    connections.discard(task)
    connection.close()


async def _end_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(connection: socket.socket, port: int, context: ssl.SSLContext) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    is_tls = connection.recv(1, socket.MSG_PEEK) == b"\x16"  # a handshake; Redis's commands begin with `*`
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    with contextlib.suppress(OSError):  # the client wants another authority
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection.dup(), ssl=context if is_tls else None
        )
        try:
            there = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))
            finally:
                there[1].transport.abort()
        finally:
            transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()  # so that the other direction ends, too


def _certificates(folder: Path) -> Certificates:
    """Made with openssl: for 127.0.0.1."""
    authority, authority_key = folder / "authority.pem", folder / "authority.key"
    certificate, key, request = folder / "server.pem", folder / "server.key", folder / "server.csr"
    names = folder / "names.conf"
    names.write_text("subjectAltName = IP:127.0.0.1\n")
    # Of elliptic curves: keys of RSA take long to find.
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")
    _openssl("req", "-x509", *new_key, authority_key, "-out", authority, "-days", "2", "-subj", "/CN=owls")
    _openssl("req", *new_key, key, "-out", request, "-subj", "/CN=redis")
    signed_by = ("-CA", authority, "-CAkey", authority_key, "-CAcreateserial")
    _openssl("x509", "-req", "-in", request, *signed_by, "-out", certificate, "-days", "2", "-extfile", names)
    return Certificates(authority, certificate, key)


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=3 * PATIENCE_SECONDS)  # noqa: S607 - from PATH
