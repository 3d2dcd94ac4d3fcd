"""Lists the programs that a fleet on one machine consists of."""

import hashlib
import http.client
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from toolfleet_cli.local.environment import (
    FLOWER_LOGIN,
    beat_command,
    environment_of,
    flower_command,
    flower_environment,
    gateway_command,
    no_secrets,
    worker_command,
)
from toolfleet_cli.local.modules import Example, HostedModule, data_environment
from toolfleet_cli.local.redis_server import LOOPBACK, STOP_SECONDS, is_ours, redis_command
from toolfleet_cli.local.supervisor import Child, Program
from toolfleet_modules.hosts import guard
from toolfleet_modules.hosts.child_process import USER_VARIABLE, Fence
from toolfleet_registry.config.gateway_settings import GATEWAY_LEAVE_SECONDS, GATEWAY_STOP_SECONDS
from toolfleet_registry.config.host_settings import FencedSpec, FolderSpec, Places
from toolfleet_registry.config.setting_sources import find_toml, private_places
from toolfleet_registry.directory.hosts import ANNOUNCE_VARIABLE, announce_keys
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, NULL, PREFIX, Settings
from toolfleet_tasks.messages.signing import module_keys
from toolfleet_tasks.queues import Lane
from toolfleet_tasks.transport.leases import DeathReports

# Python buffers what goes to a file: a log would lag behind, and lose its end in a crash.
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
# A child gets our whole environment, but what lets workers into modules is the business of workers.
_NO_HEADERS = {f"{PREFIX}MODULE_HEADERS": "{}"}
# The gateway's own key is the business of its clients.
_NO_GATEWAY_KEY = {f"{PREFIX}GATEWAY_KEY": NULL}
_DATA_ONLY = "on nopass ~* &* +@all -config +config|get +config|resetstat -acl -module -debug -replicaof -slaveof"
_GATEWAY_GRACE_SECONDS = 5  # for closing what it has open, once its requests have ended
_MODULE_GRACE_SECONDS = 5  # the workers have ended by then, so a module's remaining work is not waited for

_ANSWER_SECONDS = 2.0  # we ask again

_USERS = range(61_184, 65_520)  # those that systemd gives to services as they start: no service has one for good
_TRY_SECONDS = 20
_TRY = 'for path; do [ ! -e "$path" ] || [ -r "$path" ] || { echo "it cannot read $path"; exit 1; }; done'
_CHECK_SECONDS = 0.5
_READ = "toolfleet.toml, .toolfleet/gateway-key, and the `env` of other hosts' programs"


def redis_program(folder: Path, port: int, *, lock: int) -> Program:
    """Return the program of a Redis with its data in `folder`. It inherits the folder's lock, so no second one can be started on these data.

    It has no password, so any program on this machine may use it. None may have it write to, or load, another file.
    """
    return Program(
        "redis",
        [*redis_command(folder, port), "--user", "default", *_DATA_ONLY.split()],
        is_ready=_is_redis(port),
        env=no_secrets(),
        pass_fds=(lock,),
        patience_seconds=STOP_SECONDS,
    )


def example_program(example: Example, port: int, folder: Path, *, signing_keys: Sequence[str] = ()) -> Program:
    """Return one of the example modules; its data is in `folder`. It gets only the key derived for it."""
    key = module_keys(signing_keys, example.name)
    grace = f"--timeout-graceful-shutdown={_MODULE_GRACE_SECONDS}"
    return Program(
        example.name,
        [
            sys.executable,
            "-m",
            "toolfleet_modules.sdk.serve",
            example.app,
            "--host",
            LOOPBACK,
            "--port",
            str(port),
            grace,
        ],
        is_ready=serves(port, "/health"),
        env={**data_environment(folder), **no_secrets(), f"{PREFIX}MODULE_KEY": key, **_UNBUFFERED},
        cwd=example.folder,
        patience_seconds=_MODULE_GRACE_SECONDS * 2,
        is_optional=True,
    )


def host_program(
    hosted: HostedModule, process: str, port: int, settings: Settings, *, user: int | None = None
) -> Program:
    """Return the program of a host, which has its module's keys only. `user` runs the host's own programs."""
    where = ["--address", LOOPBACK, "--port", str(port)]
    keys = settings.signing_keys
    return Program(
        process,
        [sys.executable, "-m", "toolfleet_cli", "host", *hosted.command, *where],
        is_ready=serves(port, "/health"),
        env={
            **environment_of(settings),
            **no_secrets(),
            f"{PREFIX}MODULE_KEY": module_keys(keys, hosted.name),
            ANNOUNCE_VARIABLE: announce_keys(keys, hosted.name),
            USER_VARIABLE: "" if user is None else str(user),
            **_UNBUFFERED,
        },
        patience_seconds=_MODULE_GRACE_SECONDS * 2,
        is_optional=True,
    )


def agent_program(examples: Path, port: int, folder: Path, settings: Settings, env: Mapping[str, str]) -> Program:
    """Return the program of the example agent's core. It signs calls and takes wake-ups, so it has all settings."""
    files = {"FILE_MANAGER_ROOT": str(folder / "files"), "AGENT_DATABASE_URL": f"sqlite:///{folder / 'agent.db'}"}
    grace = f"--timeout-graceful-shutdown={_MODULE_GRACE_SECONDS}"
    return Program(
        "agent",
        [sys.executable, "-m", "uvicorn", "agent_core.main:app", "--host", LOOPBACK, "--port", str(port), grace],
        is_ready=serves(port, "/health"),
        env={**environment_of(settings), **_NO_HEADERS, **_NO_GATEWAY_KEY, **files, **env, **_UNBUFFERED},
        cwd=examples,
        patience_seconds=_MODULE_GRACE_SECONDS * 2,
    )


def worker_program(lane: Lane, settings: Settings, *, generation: int = 1) -> Program:
    """Return the program of a lane's worker. It ends when its calls have ended; SIGQUIT puts them back into the queue."""
    return Program(
        f"worker-{lane}",
        worker_command(lane, generation=generation),
        is_ready=says("toolfleet worker ready"),
        env={**environment_of(settings.model_copy(update={"lane": lane})), **_NO_GATEWAY_KEY, **_UNBUFFERED},
        cwd=Path.cwd() if settings.local_tools else None,  # where Python looks for our own functions
        patience_seconds=settings.drain_seconds + HARD_LIMIT_MARGIN,
        hurry_signal=signal.SIGQUIT,
        reports=DeathReports(settings),
    )


def beat_program(settings: Settings) -> Program:
    """Return the program of beat. The last line of its start says how long it sleeps at most."""
    return Program(
        "beat",
        beat_command(),
        is_ready=says("maxinterval ->"),
        env={**environment_of(settings), **_NO_HEADERS, **_NO_GATEWAY_KEY, **_UNBUFFERED},
    )


def flower_program(settings: Settings, port: int, *, login: str | None = None) -> Program:
    """Return the program of Flower, for this machine only. `login` is `name:password`; by default its variables say it."""
    return Program(
        "flower",
        flower_command(LOOPBACK, port),
        is_ready=serves(port, "/healthcheck"),
        env={**flower_environment(settings), **({} if login is None else {FLOWER_LOGIN: login}), **_UNBUFFERED},
        is_optional=True,
    )


def gateway_program(settings: Settings, port: int, key: str | None) -> Program:
    """Return the program of a gateway for this machine only."""
    here = settings.model_copy(update={"gateway_key": key})
    return Program(
        "gateway",
        gateway_command(port),
        is_ready=says("toolfleet gateway ready"),
        env={**environment_of(here), **_NO_HEADERS, **_UNBUFFERED},
        patience_seconds=GATEWAY_LEAVE_SECONDS + GATEWAY_STOP_SECONDS + _GATEWAY_GRACE_SECONDS,
        is_optional=True,
    )


def says(text: str) -> Callable[[Child], bool]:
    """Return a check that it has written `text` since it was started."""
    return lambda child: text in child.said()


def serves(port: int, path: str) -> Callable[[Child], bool]:
    """Return a check that it answers a GET with 200."""

    def is_ready(_child: Child) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return is_ready


def _is_redis(port: int) -> Callable[[Child], bool]:
    """Return a check that it is the Redis server that answers on this port."""
    return lambda child: is_ours(port, child.pid)


class HostUsers:
    """The operating system's users of the fleet with its data in `data`: each host's programs have one.

    `announce` gets a sentence for each thing that is not hidden from programs.
    """

    def __init__(self, data: Path, settings: Settings, announce: Callable[[str], None]) -> None:
        toml = find_toml(data.resolve().parent)
        self._beside = data.resolve().parent if toml is None else toml.parent
        self._data, self._settings, self._announce = data, settings, announce
        self._private = private_places(self._beside, settings.secrets)
        self._users = dict[str, int | None]()
        self._within = dict[str, list[str]]()  # by module: processes whose programs work where what is private lies
        self._known, self._check_at = self._private_now(), 0.0
        self._has_said = False

    def user_of(self, hosted: HostedModule) -> int | None:
        """Return the user for the programs of a host; `None` if it has no programs, or they run as the host."""
        if hosted.name not in self._users:
            spec = hosted.spec or self._settings.hosts.get(hosted.name)
            if hosted.command[0] == "folder" and not isinstance(spec, FolderSpec):
                spec = FolderSpec(folder=hosted.source)
            places = spec.places(self._beside) if isinstance(spec, FencedSpec) and spec.isolation == "none" else None
            user = self._users[hosted.name] = None if places is None else self._chosen(hosted, places)
            if user is not None and isinstance(spec, FolderSpec) and spec.allow_builds:
                self._announce(
                    f"Packages that are built for {hosted.name} run their code as root, and can read {_READ}."
                )
        return self._users[hosted.name]

    def forget(self, module: str) -> None:
        """Choose again for a host that is described in another way."""
        self._users.pop(module, None)
        self._within.pop(module, None)

    def uncovered(self) -> set[str]:
        """Return the processes with programs that may see a replaced file: the mount that hides it was on the old one. Closes that to others."""
        now = time.monotonic()
        if not self._within or now < self._check_at:
            return set()
        self._check_at = now + _CHECK_SECONDS
        before, self._known = self._known, self._private_now()
        if before == self._known:
            return set()
        self._close()
        found = {process for processes in self._within.values() for process in processes}
        self._announce(
            f"A file next to toolfleet.toml was replaced. These restart, or their programs could read it: {', '.join(sorted(found))}."
        )
        return found

    def _chosen(self, hosted: HostedModule, places: Places) -> int | None:
        if os.geteuid() != 0:
            if not self._has_said:
                self._has_said = True
                self._announce(
                    f"The programs of hosts run as your user, and can read what you can, such as {_READ}. What keeps them "
                    'apart: isolation = "bwrap", or root, as which `up` gives the programs of each host a user of their own.'
                )
            return None
        self._close()
        user = self._free(hosted.name)
        if fault := self._fault(user, places):
            self._announce(f"The programs of {hosted.name} run as root, and can read {_READ}: {fault}.")
            return None
        if any(each.is_relative_to(path) for each in self._private for path in places.writable):
            self._within[hosted.name] = hosted.processes
            self._announce(
                f"The programs of {hosted.name} can change files next to toolfleet.toml: `directory` in [hosts.{hosted.name}] "
                "gives them a folder of their own."
            )
        return user

    def _fault(self, user: int, places: Places) -> str:
        """Try whether this user can have here what a host's programs need. Empty: it can."""
        fence = Fence(user=user, private=self._private, **places._asdict())
        with tempfile.TemporaryDirectory() as own:
            shell = ["/bin/sh", "-c", _TRY, "sh", *map(str, (*places.writable, *places.readable))]
            command = guard.run_command(os.getpid(), {"user": user}, fence.paths(Path(own)), shell)
            tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TRY_SECONDS, cwd=own)
        return (tried.stdout or tried.stderr).strip() if tried.returncode else ""

    def _free(self, name: str) -> int:
        """Return the same free user with each start, so that an operator can give it a folder."""
        digest = hashlib.sha256(f"{self._data.resolve()}\0{name}".encode()).digest()
        first = int.from_bytes(digest[:4], "big") % len(_USERS)
        taken = {each.pw_uid for each in pwd.getpwall()} | set(self._users.values())
        chosen: int = next(each for each in (*_USERS[first:], *_USERS[:first]) if each not in taken)
        return chosen

    def _private_now(self) -> list[int]:
        return [path.stat().st_ino if path.exists() else 0 for path in self._private]

    def _close(self) -> None:
        """Take from others what only the owner and the fleet have to read. A file's group keeps what it may."""
        for path in self._private:
            kept = 0o7700 if path.is_dir() else 0o7770
            if path.exists() and (mode := path.stat().st_mode & 0o7777) & ~kept:
                try:
                    path.chmod(mode & kept)
                except OSError as exc:
                    self._announce(f"{path} can be read by the programs of hosts: {exc.strerror}.")
