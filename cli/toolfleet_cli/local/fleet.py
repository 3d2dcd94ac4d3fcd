"""Runs a whole fleet on this machine: Redis, modules, workers, beat, Flower and a gateway, as child processes."""

import asyncio
import fcntl
import os
import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import RedisError

from toolfleet_cli.local.environment import FLOWER_LOGIN
from toolfleet_cli.local.modules import SLOW_EXAMPLES, Example, HostedModule, find_examples, find_examples_folder
from toolfleet_cli.local.programs import (
    HostUsers,
    agent_program,
    beat_program,
    example_program,
    flower_program,
    gateway_program,
    host_program,
    redis_program,
    worker_program,
)
from toolfleet_cli.local.redis_server import LOOPBACK, START_SECONDS, held_port, kept_port, named_port, redis_url
from toolfleet_cli.local.supervisor import Child, Program, StopSignals, Supervisor, stop_signals
from toolfleet_gateway.auth.own_secrets import kept_key, kept_login
from toolfleet_modules.hosts.child_process import PATIENCE_SECONDS
from toolfleet_registry.config.gateway_settings import DEFAULT_PORT
from toolfleet_registry.config.run_file import ListedProcess
from toolfleet_registry.errors import FleetUnavailable, FolderInUse, SettingsError
from toolfleet_registry.redis.servers import async_client, reason_of, sync_client
from toolfleet_registry.settings import Settings
from toolfleet_tasks.control.server_check import faults_of
from toolfleet_tasks.queues import Lane, lane_of

_READY_SECONDS = 60.0
"""The seconds that a group of processes has to become ready: several Pythons start at once, perhaps on a small and busy machine."""

_MODULES_SECONDS = 20.0
"""The seconds for which the other processes wait for modules and hosts to be ready."""

_WORKER = "worker-"
_LANES: tuple[Lane, ...] = ("fast", "slow")
_TEND_SECONDS = 0.2
_REDIS_SECONDS = 5.0

_LOCK_FILE = "lock"
_POLL_SECONDS = 0.1
_WAIT_SECONDS = PATIENCE_SECONDS * 2  # what a killed fleet leaves behind is gone by then


class LocalFleet:
    """A running fleet. `settings` are those to use it with; `flower_url` and `gateway_url` are `None` if it has none.

    `flower_login` is the file with the name and password that Flower asks for, `None` if its variables say otherwise. `gateway_key` is the
    one that its folder keeps, `None` if `settings` have one. `sources` are the folders of the modules that it serves itself, by process; `hosted` are the modules that hosts serve.
    """

    def __init__(
        self,
        settings: Settings,
        urls: "_Found",
        start: "_Start",
        sources: Mapping[str, Path],
        hosted: Sequence[HostedModule],
    ) -> None:
        self.settings = settings
        self.flower_url, self.flower_login = urls.flower, urls.flower_login
        self.gateway_url, self.gateway_key = urls.gateway, urls.gateway_key
        self.sources = {**sources, **_sources(hosted)}
        self.hosted = list(hosted)
        self.refusal: str | None = None
        """Why workers did not start with the settings that they were last to have."""
        self._change: _Change | None = None
        self._generation = 1
        self._start = start
        self._supervisor, self._signals = start.supervisor, start.signals

    def pids(self) -> dict[str, int]:
        """Return the processes by name: `redis`, `worker-fast`, `worker-slow`, `beat`, `flower`, `gateway`, `agent`, and the modules'."""
        return {child.name: child.pid for child in self._supervisor.children}

    def processes(self) -> dict[str, ListedProcess]:
        """Return the processes by name, with the state of each."""
        modules = {process: each.name for each in self.hosted for process in each.processes}
        modules = {**{name: name for name in self.sources}, **modules}
        return {
            child.name: ListedProcess(pid=child.pid, state=child.state, module=modules.get(child.name))
            for child in self._supervisor.children
        }

    def restart(self, name: str) -> bool:
        """Have the process of this name restart; `tend` does it. False if there is none."""
        with self._signals.held():
            return self._supervisor.restart(name)

    def serve_slow_lane(self) -> None:
        """Start a worker for the slow lane, where there is none yet; returns at once."""
        with self._signals.held():
            self._supervisor.start([worker_program("slow", self.settings)])

    def host(self, hosted: HostedModule) -> None:
        """Start what serves another module, or the same one in another way; returns at once. It announces itself."""
        self.unhost(hosted.name, but=hosted.processes)
        with self._signals.held():
            self._start.host(self.settings, hosted)
        self.hosted.append(hosted)
        self.sources |= _sources([hosted])

    def unhost(self, module: str, *, but: Collection[str] = ()) -> None:
        """End the processes that serve a module, `but` these; returns at once. They finish their calls first."""
        ending = {process for each in self.hosted if each.name == module for process in each.processes} - {*but}
        with self._signals.held():
            for child in self._supervisor.kept:
                if child.name in ending:
                    self._supervisor.dismiss(child)
        self._start.users.forget(module)
        self.hosted = [each for each in self.hosted if each.name != module]
        self.sources = {name: source for name, source in self.sources.items() if name not in ending}

    def reconfigure(self, settings: Settings) -> None:
        """Start workers with other settings; returns at once. Once they are ready, `tend` ends those with the former ones."""
        self._generation += 1
        lanes = {child.name.removeprefix(_WORKER) for child in self._workers()} | {*_lanes(settings)}
        new = [worker_program(lane, settings, generation=self._generation) for lane in _LANES if lane in lanes]
        with self._signals.held():
            until = time.monotonic() + _READY_SECONDS
            self._change = _Change(settings, self._workers(), self._supervisor.start(new), until)

    @property
    def is_changing(self) -> bool:
        """Return whether workers with other settings are not ready yet."""
        return self._change is not None

    def _workers(self) -> list[Child]:
        return [child for child in self._supervisor.kept if child.name.startswith(_WORKER)]

    def _go_over(self, change: "_Change") -> None:
        """Let the new workers take over, or the former ones go on, as soon as it is known whether the new ones start."""
        is_late = time.monotonic() > change.until
        failed = next(
            (each for each in change.new if each.exit_code is not None or (is_late and not each.is_ready)), None
        )
        if failed is None and not all(child.is_ready for child in change.new):
            return
        self._change = None
        for child in change.new if failed else change.old:
            self._supervisor.dismiss(child)
        if failed is None:
            self.settings, self.refusal = change.settings, None
            self._supervisor.replace(beat_program(self.settings))
        else:
            self.refusal = str(failed.failure("does not start with the new settings: the former ones stay"))

    def tend(self) -> None:
        """Restart what has ended unexpectedly; returns at once. Raises `ChildFailed` if it ends again and again.

        A module, Flower or the gateway is dead then, and the rest goes on.
        """
        with self._signals.held():
            for process in self._start.users.uncovered():
                self._supervisor.restart(process)
            if self._change is not None:
                self._go_over(self._change)
            self._supervisor.tend()

    def watch(self, also: Callable[[], None] = lambda: None) -> None:
        """Tend the fleet, and call `also` each time, until `StopRequested` ends it."""
        while True:
            self.tend()
            also()
            time.sleep(_TEND_SECONDS)


@contextmanager
def local_fleet(
    folder: Path,
    *,
    settings: Settings,
    own_modules: Sequence[Example] = (),
    hosted: Sequence[HostedModule] = (),
    flower_port: int | None = None,
    gateway: bool = False,
    agent: Mapping[str, str] | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Generator[LocalFleet]:
    """Run a whole fleet, with its data and its `logs` in `folder`, and end it in order: workers first, Redis last.

    Redis and modules are those of `settings`; if these name none, a Redis of our own, and the example modules if we are
    in a clone. `own_modules` and the `hosted` ones are served in addition to those of `settings`, and instead of the
    examples. `flower_port` is the port for Flower, if it is free; without one there is no Flower. `gateway` has a
    gateway started; `folder` keeps its key and port if the settings name none. `agent` has the example core started,
    with these variables, and woken by jobs; it needs a clone. `announce` gets a sentence for each thing.

    Main thread only. In the body SIGINT, SIGTERM and SIGHUP raise `StopRequested`; another one while the fleet ends
    makes it end fast. Raises `SettingsError`, `NoRedis`, `FleetUnavailable`, `ChildFailed`, or `FolderInUse`.
    """
    has_modules = bool(own_modules or hosted or settings.modules - settings.worker_modules)
    examples = list(own_modules) if has_modules else find_examples()
    with ExitStack() as stack:
        signals = stack.enter_context(stop_signals())
        lock = stack.enter_context(folder_lock(folder, check=signals.check))
        supervisor = Supervisor(folder / "logs", announce=announce)
        stack.callback(lambda: supervisor.stop(in_hurry=lambda: signals.in_hurry))
        start = _Start(folder, supervisor, signals, stack, HostUsers(folder, settings, announce))
        settings = start.modules(examples, hosted, start.redis(settings, announce, lock=lock))
        settings = settings if agent is None else start.agent(settings, agent)
        if gateway:
            start.gateway(settings, announce)
        urls = start.processes(settings, announce, flower_port=flower_port)
        with signals.interrupts():
            sources = {example.name: example.source for example in examples}
            yield LocalFleet(settings, urls, start, sources, hosted)


@dataclass(frozen=True, slots=True)
class _Change:
    """The `new` workers with other settings, and the `old` workers, which run until the new ones are ready."""

    settings: Settings
    old: list[Child]
    new: list[Child]
    until: float


@dataclass(frozen=True, slots=True)
class _Found:
    """The URLs of started services, for people and clients."""

    flower: str | None
    flower_login: Path | None
    gateway: str | None
    gateway_key: str | None


class _Start:
    """The steps of a fleet's start. All but the last return the settings, completed by what they have started."""

    def __init__(
        self, folder: Path, supervisor: Supervisor, signals: StopSignals, stack: ExitStack, users: HostUsers
    ) -> None:
        self._folder = folder
        self.users = users
        self.supervisor = supervisor
        self.signals = signals
        self._stack = stack
        self._gateway_port: int | None = None
        self._gateway_key: str | None = None

    def redis(self, settings: Settings, announce: Callable[[str], None], *, lock: int) -> Settings:
        note = self._folder / "redis-port"
        kept = named_port(note)
        # A user with the last fleet's variables means ours, which only now comes back.
        if settings.redis_url is not None and (kept is None or settings.redis_url != redis_url(kept)):
            _check_redis(settings.redis_url, settings.sentinel_master)
            _check_program(settings, announce)
            return settings
        # The same one each time: agents elsewhere have its address.
        port, taken = self._stack.enter_context(kept_port(note))
        if taken is not None:
            announce(f"Port {taken}, where Redis was, is another program's: Redis uses {port}.")
        self._run([redis_program(self._folder / "redis", port, lock=lock)], seconds=START_SECONDS)
        url = redis_url(port)
        keys = settings.keys
        with sync_client(url) as redis:  # the hosts in the directory of modules have ended with the fleet that was here
            redis.delete(keys.module_feeds, keys.hosts.announced, keys.hosts.heartbeats)
        return settings.model_copy(update={"redis_url": url})

    def modules(self, examples: list[Example], hosted: Sequence[HostedModule], settings: Settings) -> Settings:
        if not examples and not hosted:
            return settings
        ports = {each.name: self._port() for each in examples}
        keys = settings.signing_keys
        programs = [example_program(each, ports[each.name], self._folder, signing_keys=keys) for each in examples]
        hosts = [program for each in hosted for program in self._host_programs(each, settings)]
        self._run([*programs, *hosts], seconds=_MODULES_SECONDS)
        started = {name: f"http://{LOOPBACK}:{port}" for name, port in ports.items()}
        services = {**settings.module_services, **started}
        slow = settings.slow_modules | (SLOW_EXAMPLES & services.keys())
        return settings.model_copy(update={"module_services": services, "slow_modules": slow})

    def host(self, settings: Settings, hosted: HostedModule) -> None:
        """Start a host in a fleet that runs, or start it again. Its place is behind Redis: it ends after the workers."""
        self.users.forget(hosted.name)
        programs = self._host_programs(hosted, settings)
        self.supervisor.start([each for each in programs if not self.supervisor.replace(each)], at=1)

    def _host_programs(self, hosted: HostedModule, settings: Settings) -> list[Program]:
        user = self.users.user_of(hosted)
        return [host_program(hosted, process, self._port(), settings, user=user) for process in hosted.processes]

    def agent(self, settings: Settings, env: Mapping[str, str]) -> Settings:
        examples = find_examples_folder()
        if examples is None:
            raise SettingsError("The example core is in a clone of the project only.")
        port = self._port()
        secret = settings.core_secret or _new_core_secret()
        settings = settings.model_copy(update={"core_url": f"http://{LOOPBACK}:{port}", "core_secret": secret})
        self._run([agent_program(examples, port, self._folder, settings, env)])
        return settings

    def gateway(self, settings: Settings, announce: Callable[[str], None]) -> None:
        if settings.gateway_key is None:
            self._gateway_key = kept_key(self._folder / "gateway-key")
        if settings.gateway_port:
            self._gateway_port = self._port(settings.gateway_port)
            if self._gateway_port != settings.gateway_port:
                raise SettingsError(f"Port {settings.gateway_port}, where the gateway is to be, is another program's.")
        elif settings.gateway_port == 0:
            self._gateway_port = self._port()
        else:  # the same one each time: its clients have its address
            note = self._folder / "gateway-port"
            self._gateway_port, taken = self._stack.enter_context(kept_port(note, DEFAULT_PORT))
            if taken is not None:
                announce(f"Port {taken} is another program's: the gateway uses {self._gateway_port}.")

    def processes(self, settings: Settings, announce: Callable[[str], None], *, flower_port: int | None) -> "_Found":
        watchers = [beat_program(settings)]
        flower_url, login_file, gateway_url = None, None, None
        if flower_port is not None:
            port = self._port(flower_port)
            if port != flower_port:
                announce(f"Port {flower_port} is another program's: Flower uses {port}.")
            flower_url = f"http://{LOOPBACK}:{port}"
            if not any(os.environ.get(name) for name in (FLOWER_LOGIN, "FLOWER_AUTH")):
                login_file = self._folder / "flower-auth"
            login = None if login_file is None else kept_login(login_file)
            watchers.append(flower_program(settings, port, login=login))
        # Flower must not miss a worker's first events, and workers end before both: they are the last group.
        workers = [worker_program(lane, settings) for lane in _lanes(settings)]
        if self._gateway_port is not None:
            gateway_url = f"http://{LOOPBACK}:{self._gateway_port}"
            (self._folder / "gateway-url").write_text(f"{gateway_url}\n")
            # Modules it knows from the workers: what is added and removed while it runs, too.
            known = settings.model_copy(update={"module_services": {}})
            workers.append(gateway_program(known, self._gateway_port, settings.gateway_key or self._gateway_key))
        self._run(watchers, workers)
        return _Found(flower_url, login_file, gateway_url, self._gateway_key)

    def _run(self, *groups: list[Program], seconds: float = _READY_SECONDS) -> None:
        children = [child for group in groups for child in self.supervisor.start(group)]
        self.supervisor.wait_ready(children, seconds=seconds, check=self.signals.check)

    def _port(self, *preferred: int) -> int:
        return self._stack.enter_context(held_port(*preferred))


def _sources(hosted: Sequence[HostedModule]) -> dict[str, Path]:
    return {process: each.source for each in hosted for process in each.processes}


def _new_core_secret() -> str:
    """Make a secret for this fleet's life: only its core and its workers have it."""
    return f"whsec_{b64encode(secrets.token_bytes(32)).decode()}"


def _lanes(settings: Settings) -> list[Lane]:
    """Return the fast lane, which also refreshes the manifests, and the slow one if it has anything to do."""
    is_slow = any(lane_of(module, settings) == "slow" for module in settings.modules)
    return ["fast", "slow"] if is_slow else ["fast"]


def _check_redis(url: str, master: str | None) -> None:
    try:
        asyncio.run(_ping(url, master))
    except (RedisError, OSError) as exc:
        reason = reason_of(exc, "it takes too long").rstrip(".")
        raise FleetUnavailable(f"Redis at {maybe_sanitize_url(url)} does not answer: {reason}.") from exc


def _check_program(settings: Settings, announce: Callable[[str], None]) -> None:
    """Say what is wrong with the given Redis before its workers end because of it."""
    try:
        faults = asyncio.run(faults_of(settings))
    except (RedisError, OSError) as exc:
        reason = reason_of(exc, "it takes too long").rstrip(".")
        raise FleetUnavailable(f"Redis or the broker does not answer: {reason}.") from exc
    for fault in sorted(faults, key=lambda fault: fault.is_fatal):
        if fault.is_fatal:
            raise SettingsError(fault.text)
        announce(fault.text)


async def _ping(url: str, master: str | None) -> None:
    async with async_client(url, master=master, timeout_seconds=_REDIS_SECONDS) as redis:
        await redis.ping()


@contextmanager
def folder_lock(folder: Path, *, check: Callable[[], None] = lambda: None) -> Generator[int]:
    """Own `folder`, which is made if need be, for us and for every child that inherits the yielded descriptor.

    A fleet that was killed may take a moment to be gone: waits for that, calling `check`. Raises `FolderInUse`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        give_up_at = time.monotonic() + _WAIT_SECONDS
        while not _take(lock):
            check()
            holder = _holder(lock)
            if holder is not None or time.monotonic() > give_up_at:
                raise FolderInUse(folder, holder)
            time.sleep(_POLL_SECONDS)
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield lock
    finally:
        os.close(lock)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: int) -> int | None:
    """Return the process that took the lock, if it lives; otherwise its children still hold the lock."""
    text = os.pread(lock, 20, 0)
    if not text.isdigit():
        return None
    try:
        os.kill(int(text), 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return int(text)
    return int(text)
