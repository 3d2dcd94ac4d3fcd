"""A worker process of `fast_app`, on a Redis to which things may happen, and the calls for it."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.waiting import wait_until_sync
from support.worker_process import Calls, WorkerProcess, worker_process
from support.workers.pool_worker import QUEUE

STALL_SECONDS = 1
PATIENCE_VARIABLE = "FAST_APP_PATIENCE_SECONDS"
"""How long the connections of Celery itself wait for an answer, if not as long as everywhere; read by `fast_app`."""


@dataclass(frozen=True)
class FastFleet:
    """The worker's watchdog logs each second in which its loop stood still."""

    redis: FaultyRedis
    worker: WorkerProcess
    calls: Calls
    gate: Path
    ended: Path

    def start(self, number: int, task: str, *args: object, **options: object) -> list[str]:
        """Calls that have started; on a busy machine the first of short ones may be over by then."""
        ids = [self.calls.send(task, *args, **options) for _ in range(number)]
        self.calls.wait_for({"STARTED", "SUCCESS", "FAILURE"}, *ids)
        return ids

    def hold(self, number: int, seconds: float) -> list[str]:
        """Calls that run: they end so long after `let_go`, however busy the machine is now."""
        return self.start(number, "pool.held", str(self.gate), seconds, str(self.ended))

    def let_go(self) -> None:
        self.gate.touch()

    def wait_until_ended(self, number: int) -> None:
        """So many of those that were held have ended in the worker, whether their results are stored or not."""
        wait_until_sync(lambda: self.ended.exists() and self.ended.stat().st_size == number, f"{number} have ended")

    def wait_until_settled(self) -> None:
        """No message is held any more, and the loop has never stood still."""
        wait_until_sync(lambda: self.calls.unacked() == 0, "all messages are acked")
        assert "loop_stalled" not in self.worker.said()


@contextmanager
def fast_fleet(folder: Path, more: Mapping[str, str] | None = None, *, slots: int = 500) -> Generator[FastFleet]:
    """`more`: of the worker's environment."""
    with faulty_redis(folder / "redis") as redis:
        calls = Calls(redis.url, QUEUE)
        env = {
            "TOOLFLEET_REDIS_URL": redis.url,
            "TOOLFLEET_MODULE_SERVICES": json.dumps({QUEUE.removeprefix("tools."): "http://127.0.0.1:9"}),
            **(more or {}),
        }
        constants = {"toolfleet_workers.pool.bootsteps._STALL_SECONDS": STALL_SECONDS}
        with worker_process(
            "support.workers.fast_app", f"-c{slots}", env=env, folder=folder, constants=constants
        ) as worker:
            try:
                yield FastFleet(redis, worker, calls, folder / "gate", folder / "ended")
            finally:
                worker.show()
                calls.close()
