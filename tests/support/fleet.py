"""A Redis, a module and workers for tests of the whole way: each a real one."""

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from support.module_server import ModuleServer
from support.programs.fork_server import end, start
from support.programs.shortened import TESTS, shortened
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.worker_process import READY, WorkerProcess
from toolfleet import ToolFleet
from toolfleet_cli.local.environment import environment_of, worker_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.settings import Settings

STOP_SECONDS = 20
SIGNING_KEY = "a secret of more than thirty-two characters"


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
    def worker(
        self,
        *,
        lane: str = "all",
        env: Mapping[str, str] = MappingProxyType({}),
        constants: Mapping[str, float] = MappingProxyType({}),
        **settings: object,
    ) -> Generator[WorkerProcess]:
        """A worker process of the lane, with these variables beside its settings, and `constants` as of `program`."""
        own, command = self.settings.model_copy(update={"lane": lane, **settings}), worker_command("all")
        with program(
            self, command, f"worker-{lane}", ready=READY, settings=own, env=env, constants=constants
        ) as worker:
            yield worker


@contextmanager
def own_bed(module: ModuleServer, folder: Path, **more: object) -> Generator[TestBed]:
    """A fleet of this module with a Redis of its own, and all its files below the folder; `more` are its settings."""
    logs = folder / "logs"
    logs.mkdir()
    with redis_server(folder / "redis") as url:
        yield TestBed(url, (module,), logs, more)


async def local_tools_known(fleet: ToolFleet) -> None:
    """Wait until a worker has said which functions it has: nobody else can."""
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        while not (await fleet.modules.refresh())["local"].ok:
            pass


async def local_tools_offered(bed: TestBed) -> None:
    """Wait until every agent that opens this fleet lists them: its first look may come before a worker has imported them."""
    async with ToolFleet(settings=bed.settings) as fleet:
        await local_tools_known(fleet)


@contextmanager
def program(
    bed: TestBed,
    command: Sequence[str],
    name: str,
    *,
    ready: str,
    settings: Settings | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
    constants: Mapping[str, float] = MappingProxyType({}),
) -> Generator[WorkerProcess]:
    """A process of the fleet that has said `ready`; stopped at the end, and its log shown if that did not go well.

    `constants`: by their dotted names, those of the product that are others in it.
    """
    if constants:
        command, env = shortened(command, constants), {"PYTHONPATH": str(TESTS), **env}
    log = bed.folder / f"{name}-{len(list(bed.folder.iterdir()))}.log"
    env = {**environment_of(settings or bed.settings), "PYTHONUNBUFFERED": "1", **env}
    with log.open("wb") as output:
        process = start(command, env=env, output=output)
    started = WorkerProcess(process, log)
    try:
        wait_until_sync(
            lambda: ready in started.said() or process.poll() is not None,
            f"{name} is ready",
            seconds=3 * PATIENCE_SECONDS,
        )
        assert process.poll() is None, started.said()
        yield started
    except BaseException:
        print(started.said())  # noqa: T201 - pytest shows it beside the failure
        raise
    finally:
        end(process, patience_seconds=STOP_SECONDS)
