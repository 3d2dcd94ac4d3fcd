"""How a connection to PostgreSQL begins, and which sockets are open after it has failed: none."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Generator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from support.programs.closed_port import closed_port
from support.servers.postgres import connections_to
from support.waiting import PATIENCE_SECONDS
from toolfleet_registry.store.sql_database import close_failed, let_go

SECONDS = 0.2

NO_TLS = b"N"
REFUSAL = b"E" + (4 + len(b"SFATAL\0C28000\0Mno\0\0")).to_bytes(4) + b"SFATAL\0C28000\0Mno\0\0"


@contextlib.contextmanager
def answering(*answers: bytes) -> Generator[tuple[int, list[bytes]]]:
    """A server that says one thing for each that it hears, and then nothing; yields its port, and what it has heard."""
    heard = list[bytes]()

    def serve() -> None:
        there, _ = server.accept()
        with there:
            for answer in answers:
                heard.append(there.recv(2**16))
                there.sendall(answer)
            while more := there.recv(2**16):
                heard.append(more)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        thread.join(PATIENCE_SECONDS)


def fail_to_connect(port: int) -> None:
    """Ask the server for a connection, which it does not give."""
    url, options = f"postgresql+pg8000://owl@127.0.0.1:{port}/owls", {"timeout": SECONDS}
    engine = close_failed(create_engine(url, connect_args=options, poolclass=NullPool))
    with pytest.raises((SQLAlchemyError, OSError)) as failed, engine.connect():
        pass
    let_go(failed.value)


@pytest.mark.parametrize(
    "answers",
    [
        (),  # silent when it is asked for TLS
        (NO_TLS,),  # silent when it is told who we are
        (b"S",),  # silent in the middle of a handshake
        (b"?",),  # no PostgreSQL
        (NO_TLS, b"R"),  # silent in the middle of an answer
        (NO_TLS, REFUSAL),  # it does not know us
    ],
)
@pytest.mark.usefixtures("no_collector")
def test_a_connection_that_cannot_be_made_leaves_no_socket(answers: tuple[bytes, ...]) -> None:
    """Whatever the server says, or does not say; nobody waits for the garbage collector."""
    with answering(*answers) as (port, _):
        fail_to_connect(port)
        assert connections_to(port) == []


@pytest.mark.parametrize(("answer", "next_heard"), [(b"S", b"\x16\x03"), (NO_TLS, b"\0\0\0")], ids=["TLS", "no TLS"])
def test_tls_is_spoken_where_it_is_offered(monkeypatch: pytest.MonkeyPatch, answer: bytes, next_heard: bytes) -> None:
    """Else the connection goes on without; the machine's certificate authorities, which take long to read, are left alone."""
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: pytest.fail("they were read"))
    with answering(answer) as (port, heard):
        fail_to_connect(port)

    assert heard[1].startswith(next_heard)


def test_a_server_that_is_away_is_the_drivers_error() -> None:
    """As SQLAlchemy wraps it, with the reason."""
    engine = close_failed(create_engine(f"postgresql+pg8000://owl@127.0.0.1:{closed_port()}/owls"))
    with pytest.raises(SQLAlchemyError, match="refused"), engine.connect():
        pass
