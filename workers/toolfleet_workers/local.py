"""A whole fleet on this machine: Redis, modules, workers, beat and Flower, as children of ours."""

import asyncio
import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.names import SCHEDULER
from toolfleet_registry.redis_servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.queues import Lane, lane_of
from toolfleet_workers.child import Program
from toolfleet_workers.examples import SLOW_EXAMPLES, Example, find_examples, find_examples_folder
from toolfleet_workers.folder_lock import folder_lock
from toolfleet_workers.ports import LOOPBACK, held_port
from toolfleet_workers.programs import (
    agent_program,
    beat_program,
    example_program,
    flower_program,
    redis_program,
    worker_program,
)
from toolfleet_workers.redis_server import START_SECONDS, redis_url
from toolfleet_workers.stop_signals import StopSignals, stop_signals
from toolfleet_workers.supervisor import Supervisor

READY_SECONDS = 60.0
"""For one group of processes to be ready: several Pythons start at once, perhaps on a small and busy machine."""

_TEND_SECONDS = 0.2
_REDIS_SECONDS = 5.0


class LocalFleet:
    """A running fleet. `settings` are those to use it with; `flower_url` is `None` if it has no Flower."""

    def __init__(
        self, settings: Settings, flower_url: str | None, supervisor: Supervisor, signals: StopSignals
    ) -> None:
        self.settings = settings
        self.flower_url = flower_url
        self._supervisor = supervisor
        self._signals = signals

    def pids(self) -> dict[str, int]:
        """The processes by name: `redis`, `worker-fast`, `worker-slow`, `beat`, `flower`, `agent`, and the example modules'."""
        return {child.name: child.pid for child in self._supervisor.children}

    def tend(self) -> None:
        """Restart what has ended unexpectedly; returns at once. Raises `ChildFailed` if it ends again and again."""
        with self._signals.held():
            self._supervisor.tend()

    def watch(self) -> None:
        """Tend the fleet until `StopRequested` ends it."""
        while True:
            self.tend()
            time.sleep(_TEND_SECONDS)


@contextmanager
def local_fleet(
    folder: Path,
    *,
    settings: Settings,
    own_modules: Sequence[Example] = (),
    flower_port: int | None = None,
    agent: Mapping[str, str] | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Generator[LocalFleet]:
    """Run a whole fleet, with its data and its `logs` in `folder`, and end it in order: workers first, Redis last.

    Redis and modules are those of `settings`; if these name none, a Redis of our own, and the example modules if we
    are in a clone. `own_modules` are served beside those of `settings`, and instead of the examples. `flower_port` is the port for Flower, if it is free; without one there is no Flower. `agent` has the
    example core started, with these variables, and woken by jobs; it needs a clone. `announce` gets a sentence for each
    thing that happens.

    Main thread only. In the body SIGINT, SIGTERM and SIGHUP raise `StopRequested`; another one while the fleet ends makes
    it end fast. Raises `SettingsError`, `NoRedis`, `FleetUnavailable`, `ChildFailed`, or `FolderInUse`.
    """
    examples = list(own_modules) or ([] if settings.modules - {SCHEDULER} else find_examples())
    with ExitStack() as stack:
        signals = stack.enter_context(stop_signals())
        lock = stack.enter_context(folder_lock(folder, look=signals.check))
        supervisor = Supervisor(folder / "logs", announce=announce)
        stack.callback(lambda: supervisor.stop(in_hurry=lambda: signals.in_hurry))
        start = _Start(folder, supervisor, signals, stack)
        settings = start.modules(examples, start.redis(settings, lock=lock))
        settings = settings if agent is None else start.agent(settings, agent)
        flower_url = start.processes(settings, flower_port=flower_port)
        with signals.interrupts():
            yield LocalFleet(settings, flower_url, supervisor, signals)


class _Start:
    """The steps of a fleet's start. All but the last return the settings, completed by what they have started."""

    def __init__(self, folder: Path, supervisor: Supervisor, signals: StopSignals, stack: ExitStack) -> None:
        self._folder = folder
        self._supervisor = supervisor
        self._signals = signals
        self._stack = stack

    def redis(self, settings: Settings, *, lock: int) -> Settings:
        if settings.redis_url is not None:
            _check_redis(settings.redis_url, settings.sentinel_master)
            return settings
        port = self._port()
        self._run([redis_program(self._folder / "redis", port, lock=lock)], seconds=START_SECONDS)
        return settings.model_copy(update={"redis_url": redis_url(port)})

    def modules(self, examples: list[Example], settings: Settings) -> Settings:
        if not examples:
            return settings
        ports = {example: self._port() for example in examples}
        key = settings.signing_key
        self._run([example_program(example, port, self._folder, signing_key=key) for example, port in ports.items()])
        started = {example.name: f"http://{LOOPBACK}:{port}" for example, port in ports.items()}
        services = {**settings.module_services, **started}
        slow = settings.slow_modules | (SLOW_EXAMPLES & services.keys())
        return settings.model_copy(update={"module_services": services, "slow_modules": slow})

    def agent(self, settings: Settings, env: Mapping[str, str]) -> Settings:
        examples = find_examples_folder()
        if examples is None:
            raise SettingsError("The example core is in a clone of the project only.")
        port = self._port()
        secret = settings.core_secret or _new_core_secret()
        settings = settings.model_copy(update={"core_url": f"http://{LOOPBACK}:{port}", "core_secret": secret})
        self._run([agent_program(examples, port, self._folder, settings, env)])
        return settings

    def processes(self, settings: Settings, *, flower_port: int | None) -> str | None:
        watchers = [beat_program(settings)]
        url = None
        if flower_port is not None:
            port = self._port(flower_port)
            url = f"http://{LOOPBACK}:{port}"
            watchers.append(flower_program(settings, port))
        # Flower must not miss a worker's first events, and workers end before both: they are the last group.
        self._run(watchers, [worker_program(lane, settings) for lane in _lanes(settings)])
        return url

    def _run(self, *groups: list[Program], seconds: float = READY_SECONDS) -> None:
        children = [child for group in groups for child in self._supervisor.start(group)]
        self._supervisor.wait_ready(children, seconds=seconds, look=self._signals.check)

    def _port(self, preferred: int = 0) -> int:
        return self._stack.enter_context(held_port(preferred))


def _new_core_secret() -> str:
    """For this fleet's life: its core and its workers are told, and nobody else."""
    return f"whsec_{b64encode(secrets.token_bytes(32)).decode()}"


def _lanes(settings: Settings) -> list[Lane]:
    """The fast lane, which also refreshes the manifests, and the slow one if it has anything to do."""
    is_slow = any(lane_of(module, settings) == "slow" for module in settings.modules)
    return ["fast", "slow"] if is_slow else ["fast"]


def _check_redis(url: str, master: str | None) -> None:
    try:
        asyncio.run(_ping(url, master))
    except (RedisError, OSError) as exc:
        raise FleetUnavailable(f"Redis at {maybe_sanitize_url(url)} does not answer: {str(exc).rstrip('.')}.") from exc


async def _ping(url: str, master: str | None) -> None:
    async with async_client(url, master=master, timeout_seconds=_REDIS_SECONDS) as redis:
        await redis.ping()
