"""What happens to a Redis: it is frozen, killed and started again, or full."""

import os
import signal
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from urllib.parse import urlsplit

from redis import Redis

from support.clocks import WallClock, clocked_command, redis_with_a_clock
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.redis_server import held_port, is_ours, redis_command, redis_log, redis_server
from toolfleet_modules.hosts.child_process import spawn, stop

_REWRITES = "auto-aof-rewrite-percentage"  # without them the append-only file has all that has ever happened


@contextmanager
def faulty_redis(folder: Path) -> Generator["FaultyRedis"]:
    """A server of its own, which things may happen to."""
    # Held, as others would be given it while the server is away.
    with held_port() as port, redis_server(folder, port=port) as url:
        redis = FaultyRedis(url, folder)
        try:
            yield redis
        finally:
            redis.close()


@contextmanager
def faulty_redis_with_a_clock(folder: Path) -> Generator[tuple["FaultyRedis", WallClock]]:
    """One whose clock can be set as well. Needs libfaketime."""
    folder.mkdir(exist_ok=True)
    with redis_with_a_clock(folder) as (url, clock):
        redis = FaultyRedis(url, folder / "data", clock.env)
        try:
            yield redis, clock
        finally:
            redis.close()


class FaultyRedis:
    """A real server whose append-only file has everything that it has answered; `look` is a client of it. Stopped by `close`.

    `env` is what it is started with each time.
    """

    def __init__(self, url: str, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.url = url
        self._env = env
        self.look = Redis.from_url(url, decode_responses=True)
        self._folder = folder
        self._pid = int(self.look.info("server")["process_id"])
        self._own: list[Popen[bytes]] = []
        self.look.config_set(_REWRITES, 0)

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

    def refusals(self) -> int:
        """Return how often it has refused something. Before Redis 7, what has no room in a script is an `ERR`."""
        errors = self.look.info("errorstats")
        return sum(int(errors.get(f"errorstat_{name}", {"count": 0})["count"]) for name in ("OOM", "ERR"))

    @contextmanager
    def evicting(self) -> Generator[None]:
        """It would delete keys if its memory were full."""
        self.look.config_set("maxmemory-policy", "volatile-lru")
        try:
            yield
        finally:
            self.look.config_set("maxmemory-policy", "noeviction")

    @contextmanager
    def restarted(self, *, has_loaded: bool = True) -> Generator[None]:
        """Killed at the start of the block; at its end another server stands there, with the same data, until `close`.

        Unless it `has_loaded` them, it may refuse everything for a while: see `is_loading`.
        """
        os.kill(self._pid, signal.SIGKILL)
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)  # until then it has the port
        self.look.connection_pool.disconnect()
        try:
            yield
        finally:
            self._start_again(has_loaded=has_loaded)

    def is_loading(self) -> bool:
        """Whether it still reads its data, and answers nothing else."""
        return bool(self.look.info("persistence")["loading"])

    def _start_again(self, *, has_loaded: bool) -> None:
        port = urlsplit(self.url).port or 6379
        with redis_log(self._folder).open("ab") as output:
            command = (clocked_command if self._env else redis_command)(self._folder, port)
            process = spawn([*command, f"--{_REWRITES}", "0"], env=self._env, output=output)
        self._own.append(process)
        self._pid = process.pid
        wait_until_sync(
            lambda: is_ours(port, process.pid, has_loaded=has_loaded), "Redis is back", seconds=3 * PATIENCE_SECONDS
        )

    def close(self) -> None:
        self.look.close()
        for process in self._own:
            stop(process, patience_seconds=10)
