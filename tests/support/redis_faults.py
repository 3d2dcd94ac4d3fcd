"""What happens to a Redis: it is frozen, killed and started again, or full."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from urllib.parse import urlsplit

from redis import Redis

from support.waiting import wait_until_sync
from toolfleet_workers.processes import spawn, stop
from toolfleet_workers.redis_server import is_ours, redis_command, redis_log, redis_server


@contextmanager
def faulty_redis(folder: Path) -> Generator["FaultyRedis"]:
    """A server of its own, which things may happen to."""
    with redis_server(folder) as url:
        redis = FaultyRedis(url, folder)
        try:
            yield redis
        finally:
            redis.close()


class FaultyRedis:
    """A real server whose append-only file has everything that it has answered; `look` is a client of it. Stopped by `close`."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.look = Redis.from_url(url, decode_responses=True)
        self._folder = folder
        self._pid = int(self.look.info("server")["process_id"])
        self._own: list[Popen[bytes]] = []

    @contextmanager
    def frozen(self) -> Generator[None]:
        """It takes connections and says nothing."""
        os.kill(self._pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._pid, signal.SIGCONT)

    @contextmanager
    def full(self) -> Generator[None]:
        """It refuses whatever needs memory."""
        self.look.config_set("maxmemory", 1)
        try:
            yield
        finally:
            self.look.config_set("maxmemory", 0)

    @contextmanager
    def restarted(self) -> Generator[None]:
        """Killed at the start of the block; at its end another server stands there, with the same data, until `close`."""
        os.kill(self._pid, signal.SIGKILL)
        self.look.connection_pool.disconnect()
        try:
            yield
        finally:
            self._start_again()

    def _start_again(self) -> None:
        port = urlsplit(self.url).port or 6379
        with redis_log(self._folder).open("ab") as output:
            process = spawn(redis_command(self._folder, port), output=output)
        self._own.append(process)
        self._pid = process.pid
        wait_until_sync(lambda: is_ours(port, process.pid), "Redis is back")

    def close(self) -> None:
        self.look.close()
        for process in self._own:
            stop(process, patience_seconds=10)
