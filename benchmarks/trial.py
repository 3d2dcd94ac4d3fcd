"""One system, started, measured and ended: its producer, its workers, and what they use meanwhile."""

import json
import os
import select
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT, python_of
from benchmarks.machine import busy_seconds, cpu_seconds, memory_mb
from benchmarks.stage import Stage
from benchmarks.systems import System
from benchmarks.work import INSTANT
from toolfleet_cli.local.redis_server import LOOPBACK, free_port
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_tasks.queues import queue_of

Record = dict[str, Any]

LOG_FOLLOWS = "\n--- its workers wrote last:\n"

_STOP_SECONDS = 2
_SAID_BYTES = 2000


class TrialFailed(Exception):
    """A system did not do what was asked of it, or not in time."""


class Deadline:
    """For everything that one trial does."""

    def __init__(self, seconds: float) -> None:
        self._ends_at = time.monotonic() + seconds
        self._seconds = seconds

    def left(self) -> float:
        """Seconds. Raises `TrialFailed` when there are none."""
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise TrialFailed(f"not done after {self._seconds:g} s")
        return left


class Producer:
    """The process that makes a system's calls."""

    def __init__(self, process: subprocess.Popen[bytes], deadline: Deadline) -> None:
        self._process = process
        self._deadline = deadline
        self._unread = b""
        self._said: list[str] = []

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def tell(self, **order: Any) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as exc:
            raise TrialFailed(f"the producer is gone: {self.said()}") from exc

    def answer(self) -> Record:
        """The next thing it answers. Raises `TrialFailed` at the deadline, or when the producer has ended."""
        assert self._process.stdout is not None
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                if line.startswith(b"{"):
                    return dict(json.loads(line))
                self._said.append(line.decode(errors="replace"))
                continue
            if select.select([self._process.stdout], [], [], self._deadline.left())[0]:
                more = os.read(self._process.stdout.fileno(), 65536)
                if not more:
                    raise TrialFailed(f"the producer has ended: {self.said()}")
                self._unread += more

    def has_answered(self, seconds: float) -> bool:
        """Whether something comes within so many seconds."""
        assert self._process.stdout is not None
        patience = min(seconds, self._deadline.left())
        return b"\n" in self._unread or bool(select.select([self._process.stdout], [], [], patience)[0])

    def said(self) -> str:
        """The end of what it wrote besides its answers."""
        return "\n".join(self._said)[-_SAID_BYTES:]


class Trial:
    """A system on a stage. Use inside `with running(...)`, which ends all that it starts."""

    def __init__(self, system: System, stage: Stage, deadline: Deadline, stack: ExitStack) -> None:
        self.system = system
        self._stage = stage
        self._deadline = deadline
        self._stack = stack
        self._variables = {"PYTHONPATH": str(ROOT), **system.environment_variables(stage)}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.others_workers: list[int] = []
        """Process ids of workers that somebody else starts and ends."""

    @property
    def worker_pids(self) -> list[int]:
        """Of the workers' own processes; what they start is found from there."""
        return [*(worker.pid for worker in self.workers), *self.others_workers]

    def start_producer(self, client: str = "") -> Producer:
        """Start a process that makes calls, by this client or the system's; returns when it has connected."""
        command: list[str | Path] = [
            python_of(self.system.environment),
            "-m",
            "benchmarks.calling.producer",
            client or self.system.client,
        ]
        process = spawn(
            command, env=self._variables, cwd=self._stage.folder, stdin=subprocess.PIPE, output=subprocess.PIPE
        )
        self._stack.callback(stop, process, patience_seconds=0)
        producer = Producer(process, self._deadline)
        producer.answer()
        return producer

    def start_workers(self, **settings: str) -> None:
        """Start the system's workers, and Flower if it has one. They may not be ready yet."""
        assert self.system.worker is not None
        for _ in range(self.system.workers):
            named = ["--hostname", f"w{len(self.workers)}@%h"] if self.system.kind == "ours" else []
            self.workers.append(self._start([*self.system.worker, *named], settings))

    def start_flower(self) -> None:
        """Have somebody listen to the workers' events."""
        port = free_port()
        self._start(
            ["-m", "celery", "-A", "toolfleet_tasks.app", "flower", f"--address={LOOPBACK}", f"--port={port}"], {}
        )

    def start_answerer(self, tool: str) -> None:
        """Have somebody answer a tool's calls who is faster than any worker."""
        queue = queue_of(tool.partition(".")[0])
        self._start(["-m", "benchmarks.peers.toolfleet.answerer", queue], {})

    def silence(self) -> None:
        """Have the workers send no events any more."""
        asked = self._start(["-m", "celery", "-A", "toolfleet_tasks.app", "control", "disable_events"], {})
        try:
            asked.wait(self._deadline.left())
        except subprocess.TimeoutExpired as exc:
            raise TrialFailed("the workers cannot be silenced") from exc

    def stop_workers(self) -> None:
        """End the workers."""
        while self.workers:
            stop(self.workers.pop(), patience_seconds=_STOP_SECONDS)

    def _start(self, arguments: Sequence[str], settings: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            command: list[str | Path] = [python_of(self.system.environment), *arguments]
            process = spawn(command, env={**self._variables, **settings}, cwd=self._stage.folder, output=log)
        self._stack.callback(stop, process, patience_seconds=_STOP_SECONDS)
        return process

    @property
    def _log(self) -> Path:
        return self._stage.folder / f"{self.system.name}.log"

    def first_call(self, producer: Producer, tools: Sequence[str] = (INSTANT,), *, workers: bool = True) -> Record:
        """Queue a call, start the workers unless they run, and wait for its result: a cold start."""
        producer.tell(do="first", tools=list(tools))
        producer.answer()
        started_at = time.monotonic()
        if workers and self.system.worker is not None:
            self.start_workers()
        return {"cold_seconds": producer.answer()["at"] - started_at}

    def window(self, producer: Producer, do: str = "window", **order: Any) -> Record:
        """Have calls made for a time; what was measured, with what everybody used meanwhile."""
        self.begin_window(producer, do, **order)
        before, began_at = self._used(), time.monotonic()
        producer.tell(go=True)
        report = producer.answer()
        took = time.monotonic() - began_at
        used = {name: after - before[name] for name, after in self._used().items()}
        used["producer"] = report.pop("producer_cpu")
        return _summed_up(report, used, took) | {"memory_mb": memory_mb(self.worker_pids)}

    def begin_window(self, producer: Producer, do: str = "window", **order: Any) -> None:
        """Have the producer warm up."""
        producer.tell(do=do, **order)
        producer.answer()

    def _used(self) -> dict[str, float]:
        return {
            "worker": cpu_seconds(self.worker_pids),
            "redis": cpu_seconds([self._stage.redis_pid]),
            "module": cpu_seconds([self._stage.module_pid]),
            "proxy": cpu_seconds([self._stage.proxy_pid] if self._stage.proxy_pid else []),
            "machine": busy_seconds(),
        }


def _summed_up(report: Record, used: dict[str, float], took: float) -> Record:
    """Rates are calls a second; CPU is seconds for 1,000 calls; `other_cores` is what other programs used."""
    machine, proxy = used.pop("machine"), used.pop("proxy")
    thousands = max(report["calls"], 1) / 1000
    return {
        **report,
        "rate": report["calls"] / report["elapsed"],
        "cpu": {name: seconds / thousands for name, seconds in {**used, "all": sum(used.values())}.items()},
        "other_cores": max(0.0, machine - proxy - sum(used.values())) / took,
        "proxy_cores": proxy / took,
    }


@contextmanager
def running(system: System, stage: Stage, seconds: float, *, empties: bool = True) -> Generator[Trial]:
    """A trial on an emptied Redis, or one as it is; whatever it started is ended. `TrialFailed` says what its processes wrote last."""
    if empties:
        stage.empty_redis()
    with ExitStack() as stack:
        trial = Trial(system, stage, Deadline(seconds), stack)
        try:
            yield trial
        except TrialFailed as exc:
            log = stage.folder / f"{system.name}.log"
            said = log.read_text(errors="replace")[-_SAID_BYTES:] if log.is_file() else ""
            raise TrialFailed(f"{exc}{LOG_FOLLOWS}{said}") from exc
