"""Lists the programs that a fleet on one machine consists of."""

import http.client
import signal
import sys
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
from toolfleet_cli.local.redis_server import STOP_SECONDS, is_ours, redis_command
from toolfleet_cli.local.supervisor import Child, Program
from toolfleet_cli.local.tcp_ports import LOOPBACK
from toolfleet_modules.hosts.child_process import USER_VARIABLE
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
    """A host that serves something as a module, and announces it. It has no keys but those of its module. `user`: of its programs."""
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
    """The example core of an agent. It signs calls and knows who may wake it, so that it has all settings."""
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
    """A worker of a lane, the first one or a later one. It ends when its calls have, which it limits itself; SIGQUIT puts them back into the queue."""
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
    """Beat. The last line of what it prints at its start says how long it sleeps at most."""
    return Program(
        "beat",
        beat_command(),
        is_ready=says("maxinterval ->"),
        env={**environment_of(settings), **_NO_HEADERS, **_NO_GATEWAY_KEY, **_UNBUFFERED},
    )


def flower_program(settings: Settings, port: int, *, login: str | None = None) -> Program:
    """Flower, for this machine only. `login`: the name and password that it asks for, with a colon between; None: as its variables say."""
    return Program(
        "flower",
        flower_command(LOOPBACK, port),
        is_ready=serves(port, "/healthcheck"),
        env={**flower_environment(settings), **({} if login is None else {FLOWER_LOGIN: login}), **_UNBUFFERED},
        is_optional=True,
    )


def gateway_program(settings: Settings, port: int, key: str | None) -> Program:
    """Return a gateway, for this machine only. There is no load balancer here: it takes no time for that at its end."""
    here = settings.model_copy(update={"gateway_leave_seconds": 0, "gateway_key": key})
    return Program(
        "gateway",
        gateway_command(port),
        is_ready=says("toolfleet gateway ready"),
        env={**environment_of(here), **_NO_HEADERS, **_UNBUFFERED},
        patience_seconds=settings.gateway_stop_seconds + _GATEWAY_GRACE_SECONDS,
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
