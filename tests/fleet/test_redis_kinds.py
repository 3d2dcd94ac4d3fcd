"""Which kinds of Redis a fleet runs on, and which it refuses."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.waiting import wait_until_sync
from toolfleet import Caller, Settings, SettingsError, ToolCall, ToolFleet
from toolfleet_tasks.app import make_app
from toolfleet_workers.ports import free_port
from toolfleet_workers.processes import spawn, stop
from toolfleet_workers.redis_server import redis_command


@contextmanager
def server(folder: Path, *options: str, url: str = "redis://127.0.0.1:{port}/0") -> Generator[str]:
    """Our Redis with other options; yields `url`."""
    port = free_port()
    process = spawn([*redis_command(folder, port), *options])
    try:
        address = url.format(port=port)
        wait_until_sync(lambda: answers(address), "Redis answers")
        yield address
    finally:
        stop(process, patience_seconds=10)


def answers(url: str) -> bool:
    try:
        with Redis.from_url(url) as redis:
            return bool(redis.ping())
    except RedisError:
        return False


@pytest.mark.parametrize(
    ("options", "url"),
    [
        (["--unixsocket", "{folder}/r.sock"], "unix://{folder}/r.sock?db=3"),  # a socket, and another database
        (["--requirepass", "hoot"], "redis://:hoot@127.0.0.1:{port}/2"),  # a password
    ],
)
async def test_a_call_goes_through(
    owls: ModuleServer, owner: Caller, tmp_path: Path, options: list[str], url: str
) -> None:
    """The fleet works over a unix socket, with a database number, and with a password."""
    folder = tmp_path / "redis"
    (tmp_path / "logs").mkdir()
    words = [option.format(folder=folder) for option in options]
    with server(folder, *words, url=url.replace("{folder}", str(folder))) as address:
        bed = TestBed(address, (owls,), tmp_path / "logs")
        with bed.worker() as worker:
            async with ToolFleet(settings=bed.settings) as fleet:
                assert (await fleet.call(ToolCall(tool_name="owls.echo"), owner)).success
            assert "hoot" not in worker.said()


async def test_a_cluster_is_refused(owls: ModuleServer, tmp_path: Path) -> None:
    """Celery cannot use Redis Cluster as a broker: client and worker say so in one sentence."""
    with server(tmp_path / "redis", "--cluster-enabled", "yes") as url:
        bed = TestBed(url, (owls,), tmp_path)
        with pytest.raises(SettingsError, match="Redis Cluster"):
            async with ToolFleet(settings=bed.settings):
                pass
        with pytest.raises(AssertionError, match="Redis Cluster"), bed.worker():
            pass


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("unix:///run/r.sock?db=3", "redis+socket:///run/r.sock?virtual_host=3"),
        ("unix://u:p@/run/r.sock", "redis+socket://u:p@/run/r.sock?virtual_host=0"),
    ],
)
def test_celery_gets_its_own_form_of_a_url(url: str, expected: str) -> None:
    """A unix socket is written in another way there."""
    app = make_app(Settings(redis_url=url))

    assert app.conf.broker_url == expected
    assert app.conf.result_backend == expected
