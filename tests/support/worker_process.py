"""A real `celery worker` process, and a client that sends it calls and reads how they ended."""

import json
import signal
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from celery import Celery
from redis import Redis

from support.programs.fork_server import Process, end, start
from support.programs.shortened import shortened
from support.waiting import PATIENCE_SECONDS, wait_until_sync

TESTS = Path(__file__).parent.parent
READY = "toolfleet worker ready"
_ENDED = {"SUCCESS", "FAILURE", "REVOKED"}


@dataclass(frozen=True)
class WorkerProcess:
    process: Process
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def show(self, since: int = 0) -> None:
        """Print its log from that character on, for pytest to show if the test fails."""
        print(self.said()[since:][-10_000:])  # noqa: T201

    def connections(self, redis: Redis) -> list[str]:
        """The addresses from which it is connected to Redis."""
        own = {f"{c.laddr.ip}:{c.laddr.port}" for c in psutil.Process(self.process.pid).net_connections() if c.raddr}
        return [client["addr"] for client in redis.client_list() if client["addr"] in own]

    def cut_connections(self, redis: Redis) -> int:
        """Have Redis close every connection to the worker; returns how many there were."""
        there = self.connections(redis)
        for address in there:
            redis.client_kill_filter(addr=address)
        return len(there)

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, *, seconds: float = 20) -> int:
        """Its exit code, once it has ended."""
        wait_until_sync(
            lambda: self.process.poll() is not None, f"the worker has ended\n{self.said()}", seconds=seconds
        )
        return self.process.wait()


@contextmanager
def worker_process(
    app: str,
    *options: str,
    env: Mapping[str, str],
    folder: Path,
    constants: Mapping[str, float] = MappingProxyType({}),
) -> Generator[WorkerProcess]:
    """Run `celery -A app worker` from its readiness on; whether it got that far is in `said()`.

    `constants`: by their dotted names, those of the product that are others in it.
    """
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "--loglevel=INFO", *options]
    log = folder / f"worker-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = start(
            shortened(command, constants) if constants else command,
            env={"PYTHONPATH": str(TESTS), **env},
            cwd=folder,
            output=output,
        )
    worker = WorkerProcess(process, log)
    try:
        wait_until_sync(
            lambda: READY in worker.said() or process.poll() is not None,
            "the worker is ready",
            seconds=3 * PATIENCE_SECONDS,
        )
        yield worker
    finally:
        end(process, patience_seconds=10)


class Calls:
    """Sends calls to a queue by their task's name, and reads their ends where Celery's Redis backend stores them."""

    def __init__(self, url: str, queue: str) -> None:
        self.redis = Redis.from_url(url, decode_responses=True)
        self.queue = queue
        self.app: Any = Celery(broker=url, set_as_current=False)
        self.app.conf.broker_transport_options = {"priority_steps": [0]}

    def send(self, task: str, *args: object, **options: Any) -> str:
        """Publish one call; returns its id."""
        return str(self.app.send_task(task, args, queue=self.queue, **options).id)

    def meta(self, call_id: str) -> dict[str, Any]:
        """What is stored about a call; `PENDING` if nothing is."""
        stored = self.redis.get(f"celery-task-meta-{call_id}")
        return {"status": "PENDING"} if stored is None else json.loads(str(stored))

    def status(self, call_id: str) -> str:
        return str(self.meta(call_id)["status"])

    def wait(self, *call_ids: str, seconds: float = 20) -> list[dict[str, Any]]:
        """How the calls ended, once all of them have."""
        self.wait_for(_ENDED, *call_ids, seconds=seconds)
        return [self.meta(call_id) for call_id in call_ids]

    def wait_for(self, statuses: set[str], *call_ids: str, seconds: float = 20) -> None:
        missing = list(call_ids)

        def have_arrived() -> bool:
            stored = self.redis.mget([f"celery-task-meta-{call_id}" for call_id in missing])
            found = zip(missing, stored, strict=True)
            missing[:] = [call_id for call_id, text in found if not text or json.loads(text)["status"] not in statuses]
            return not missing

        wait_until_sync(have_arrived, f"{len(call_ids)} calls are {statuses}", seconds=seconds)

    def ask(self, command: str) -> Any:
        """The one worker's answer to an inspection, `stats` for example."""
        (answer,) = getattr(self.app.control.inspect(timeout=10, limit=1), command)().values()
        return answer

    def pool(self) -> dict[str, Any]:
        """What the pool says about itself."""
        return dict(self.ask("stats")["pool"])

    def unacked(self) -> int:
        return int(self.redis.hlen("unacked"))

    def queued(self) -> int:
        return int(self.redis.llen(self.queue))

    def close(self) -> None:
        self.app.close()
        self.redis.close()


def exception_of(meta: Mapping[str, Any]) -> str:
    """The class name of the exception that a call ended with."""
    return str(meta["result"]["exc_type"])
