"""Ports for children: free, and kept for them."""

import socket
import sys
from pathlib import Path

import pytest

from toolfleet_cli.local.redis_server import LOOPBACK, free_port, held_port, kept_port


def listen(port: int) -> socket.socket:
    """A server as ours listen: with SO_REUSEADDR."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((LOOPBACK, port))
    server.listen()
    return server


def test_a_child_may_listen_on_a_held_port() -> None:
    with held_port() as port:
        listen(port).close()
        listen(port).close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a held port would shut the child out")
def test_nobody_is_given_a_held_port() -> None:
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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing holds a port")
def test_two_fleets_do_not_hold_the_same_port() -> None:
    """Also while nobody listens on it yet; the second's child would believe the first's to be its own."""
    wanted = free_port()
    with held_port(wanted) as first, held_port(wanted) as second:
        assert first == wanted
        assert second != wanted
    with held_port(wanted) as port:
        assert port == wanted


def test_a_kept_port_is_the_same_each_time(tmp_path: Path) -> None:
    """It is noted in a file; what is no port there counts as none."""
    with kept_port(tmp_path / "deep" / "port") as (first, taken):
        assert taken is None
    with kept_port(tmp_path / "deep" / "port") as (second, taken):
        assert (second, taken) == (first, None)
    (tmp_path / "deep" / "port").write_text("-1")
    with kept_port(tmp_path / "deep" / "port") as (third, taken):
        assert taken is None
        assert 0 < third < 2**16


def test_the_first_choice_that_is_taken_is_said(tmp_path: Path) -> None:
    """Where no port is kept yet, too: documents name it. The port that is kept then is nobody's loss."""
    usual = free_port()
    with listen(usual), kept_port(tmp_path / "port", usual) as (port, taken):
        assert port != usual
        assert taken == usual
    with kept_port(tmp_path / "port", usual) as found:
        assert found == (port, None)


def test_a_kept_port_that_is_taken_is_given_up(tmp_path: Path) -> None:
    """For another one, which is kept from then on; and it is said which one it was."""
    with kept_port(tmp_path / "port") as (first, _):
        pass
    with listen(first), kept_port(tmp_path / "port") as (second, taken):
        assert second != first
        assert taken == first
    with kept_port(tmp_path / "port") as (third, taken):
        assert (third, taken) == (second, None)
