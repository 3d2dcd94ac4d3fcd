"""Completes tools, modules, ids and processes for the shell: from the fleet's Redis, in time or not at all, and never with an error."""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from redis import Redis

    from toolfleet_registry.settings import Settings

_SECONDS = 1.5  # a user waits at a prompt; Python takes half of it to load its modules
_COMMAND_SECONDS = 0.5
_MOST_IDS, _MOST_MODULES, _MOST_WORDS = 100, 20, 200
_MOST_BYTES = 4 * 2**20  # of the manifests that are read for one completion

_Ask: TypeAlias = Callable[["Redis", "Settings", str], Iterable[str]]


def _from_redis(ask: _Ask) -> Callable[[str], list[str]]:
    """Make a completion of a function that asks the fleet's Redis for words."""

    def complete(incomplete: str) -> list[str]:
        def words() -> Iterable[str]:
            from toolfleet_registry.redis.servers import sync_client
            from toolfleet_registry.settings import load_settings

            settings = load_settings()
            if settings.redis_url is None:
                return []
            url, master = settings.redis_url, settings.sentinel_master
            with sync_client(url, master=master, timeout_seconds=_COMMAND_SECONDS) as redis:
                return list(ask(redis, settings, incomplete))

        return _in_time(words, incomplete)

    return complete


@_from_redis
def complete_tools(redis: "Redis", settings: "Settings", incomplete: str) -> Iterable[str]:
    """Return the tools, or the modules' names if there are too many modules."""
    module, dot, _ = incomplete.partition(".")
    wanted = [
        name for name in sorted(_modules(redis, settings)) if name == module or (not dot and name.startswith(module))
    ]
    if len(wanted) > _MOST_MODULES:
        return [f"{name}." for name in wanted]
    found, bytes_left = list[str](), _MOST_BYTES
    for key in map(settings.keys.module_manifest, wanted):
        bytes_left -= redis.strlen(key)
        if bytes_left >= 0 and (manifest := redis.get(key)) is not None:
            found += [str(tool["name"]) for tool in json.loads(cast("bytes", manifest))["tools"]]
    return found


@_from_redis
def complete_modules(redis: "Redis", settings: "Settings", _: str) -> Iterable[str]:
    """Return the modules."""
    return _modules(redis, settings)


def complete_modules_and_tools(incomplete: str) -> list[str]:
    """Return the modules and the tools."""
    return [*complete_modules(incomplete), *complete_tools(incomplete)]


@_from_redis
def complete_dead(redis: "Redis", settings: "Settings", _: str) -> Iterable[str]:
    """Return the ids of the latest dead letters of each kind."""
    keys = settings.keys
    return _ids(redis, latest=[keys.dead_order, keys.dead_wakes_order, keys.dead_webhooks("-order")])


@_from_redis
def complete_keys(redis: "Redis", settings: "Settings", _: str) -> Iterable[str]:
    """Return the ids of API keys that are kept in Redis."""
    return _fields(redis, settings.keys.registry.api_keys)


@_from_redis
def complete_agents(redis: "Redis", settings: "Settings", _: str) -> Iterable[str]:
    """Return the agents that have a profile, in the settings or in Redis."""
    return [*settings.agents, *_fields(redis, settings.keys.registry.agents)]


@_from_redis
def complete_jobs(redis: "Redis", settings: "Settings", _: str) -> Iterable[str]:
    """Return the jobs that are due next, and the latest that have ended."""
    keys = settings.keys
    return _ids(redis, first=[keys.jobs_due, keys.programs_due], latest=[keys.jobs_ended, keys.programs_ended])


@_from_redis
def complete_wakes(redis: "Redis", settings: "Settings", _: str) -> Iterable[str]:
    """Return the wake-ups that are due next."""
    return _ids(redis, first=[settings.keys.wakes_due, settings.keys.calls_due])


@_from_redis
def complete_approvals(redis: "Redis", settings: "Settings", _: str) -> Iterable[str]:
    """Return the calls that wait for people."""
    from toolfleet_registry.redis.keys import ApprovalKeys

    return _ids(redis, first=[ApprovalKeys(settings.keys).waiting])


def complete_processes(incomplete: str) -> list[str]:
    """Return the processes of the `up` that runs here."""
    return _in_time(_processes, incomplete)


def complete_logs(incomplete: str) -> list[str]:
    """Return the names of the logs here."""
    return _in_time(_logs, incomplete)


def _in_time(words: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    """Return the matching words, if they are there in time.

    In a thread that is not waited for: a lookup may take long.
    """
    found: list[str] = []

    def run() -> None:
        with contextlib.suppress(Exception):  # a prompt is no place for errors: the command itself says what is wrong
            found.extend(sorted({word for word in words() if word.startswith(incomplete)})[:_MOST_WORDS])

    logging.disable(logging.CRITICAL)  # nor for warnings
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    logging.disable(logging.NOTSET)
    return list(found)


def _modules(redis: "Redis", settings: "Settings") -> set[str]:
    return set(settings.modules) | set(_fields(redis, settings.keys.modules))


def _fields(redis: "Redis", name: str) -> Iterable[str]:
    """Return the fields of a hash."""
    return map(_text, cast("list[Any]", redis.hkeys(name)))


def _ids(redis: "Redis", *, first: Iterable[str] = (), latest: Iterable[str] = ()) -> Iterable[str]:
    """Yield the first, or the latest, ids of sorted sets."""
    for name in first:
        yield from map(_text, cast("list[Any]", redis.zrange(name, 0, _MOST_IDS - 1)))
    for name in latest:
        yield from map(_text, cast("list[Any]", redis.zrevrange(name, 0, _MOST_IDS - 1)))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _processes() -> Iterable[str]:
    from toolfleet_registry.config.run_file import find_run_file

    run_file = find_run_file(Path.cwd())
    return [] if run_file is None else run_file.processes


def _logs() -> Iterable[str]:
    return log_names(logs_folder(Path.cwd()))


def log_names(folder: Path) -> list[str]:
    """Return the names of the logs in this folder."""
    return sorted(path.stem for path in folder.glob("*.log"))


def logs_folder(start: Path) -> Path:
    """Return the folder of the running fleet here; else the nearest that one has left.

    Raises `FleetError` if there is none.
    """
    from toolfleet_registry.config.run_file import find_running, left_logs
    from toolfleet_registry.errors import FleetError

    if (found := find_running(start)) is not None:
        return found[0] / "logs"
    if (folder := left_logs(start)) is None:
        raise FleetError("There are no logs: no `toolfleet up` has run here, or in a folder above.")
    return folder
