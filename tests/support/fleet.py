"""A Redis, a module and workers for tests of the whole way: each a real one."""

import signal
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.module_server import ModuleServer
from support.waiting import wait_until_sync
from toolfleet_registry.settings import Settings
from toolfleet_workers.commands import worker_command
from toolfleet_workers.environment import environment_of
from toolfleet_workers.processes import spawn, stop

STOP_SECONDS = 20


@dataclass
class WorkerProcess:
    """A worker that is ready. `said` is all that it has written."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(STOP_SECONDS)


@dataclass
class TestBed:
    """Where a fleet lives: `redis_url`, the modules, and a folder for logs."""

    __test__ = False

    redis_url: str
    modules: tuple[ModuleServer, ...]
    folder: Path
    more: Mapping[str, object] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        services = {module.name: module.url for module in self.modules}
        return Settings(redis_url=self.redis_url, module_services=services, **self.more)  # type: ignore[arg-type] # per test

    @contextmanager
    def worker(self, *, lane: str = "all", **settings: object) -> Generator[WorkerProcess]:
        """A worker process of the lane; stopped at the end, and its log shown if that did not go well."""
        log = self.folder / f"worker-{lane}-{len(list(self.folder.iterdir()))}.log"
        env = environment_of(self.settings.model_copy(update={"lane": lane, **settings}))
        with log.open("wb") as output:
            process = spawn(worker_command("all"), env={**env, "PYTHONUNBUFFERED": "1"}, output=output)
        worker = WorkerProcess(process, log)
        try:
            wait_until_sync(
                lambda: "toolfleet worker ready" in worker.said() or process.poll() is not None, "the worker is ready"
            )
            assert process.poll() is None, worker.said()
            yield worker
        except BaseException:
            print(worker.said())  # noqa: T201 - pytest shows it beside the failure
            raise
        finally:
            stop(process, patience_seconds=STOP_SECONDS)
