"""Ports for children: free, and kept for them."""

import socket
import sys

import pytest

from toolfleet_workers.ports import LOOPBACK, free_port, held_port


def listen(port: int) -> socket.socket:
    """A server as ours listen: with SO_REUSEADDR."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((LOOPBACK, port))
    server.listen()
    return server


def test_a_child_may_listen_on_a_held_port() -> None:
    """And again, after a restart."""
    with held_port() as port:
        listen(port).close()
        listen(port).close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a held port would shut the child out")
def test_nobody_is_given_a_held_port() -> None:
    """However many ask for a free one."""
    with held_port() as port:
        asked = [socket.create_server((LOOPBACK, 0)) for _ in range(200)]
        given = {server.getsockname()[1] for server in asked}
        for server in asked:
            server.close()

    assert port not in given


def test_a_preferred_port_is_used_if_nobody_listens_there() -> None:
    """The usual port of a service, or another one."""
    wanted = free_port()
    with held_port(wanted) as port:
        assert port == wanted
    with listen(wanted), held_port(wanted) as port:
        assert port not in {0, wanted}
        listen(port).close()
