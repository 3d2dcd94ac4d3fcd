"""Which kind of Redis a fleet refuses; which it runs on is in `test_redis_setups.py`."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from support.fleet import TestBed
from support.module_server import ModuleServer
from support.waiting import wait_until_sync
from toolfleet import SettingsError, ToolFleet
from toolfleet_cli.local.redis_server import held_port, redis_command
from toolfleet_modules.hosts.child_process import spawn, stop


@contextmanager
def server(folder: Path, *options: str) -> Generator[str]:
    """Our Redis with other options."""
    with held_port() as port:
        process = spawn([*redis_command(folder, port), *options])
        try:
            address = f"redis://127.0.0.1:{port}/0"
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


async def test_a_cluster_is_refused(owls: ModuleServer, tmp_path: Path) -> None:
    """Celery cannot use Redis Cluster as a broker: client and worker say so in one sentence."""
    with server(tmp_path / "redis", "--cluster-enabled", "yes") as url:
        bed = TestBed(url, (owls,), tmp_path)
        with pytest.raises(SettingsError, match="Redis Cluster"):
            async with ToolFleet(settings=bed.settings):
                pass
        with pytest.raises(AssertionError, match="Redis Cluster"), bed.worker():
            pass
