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


def complete_tools(incomplete: str) -> list[str]:
    """Return the tools, or the modules' names if there are too many modules."""
    return _asked(_tools, incomplete)


def complete_modules(incomplete: str) -> list[str]:
    """Return the modules."""
    return _asked(lambda redis, settings, _: _modules(redis, settings), incomplete)


def complete_modules_and_tools(incomplete: str) -> list[str]:
    """Return the modules and the tools."""
    return [*complete_modules(incomplete), *complete_tools(incomplete)]


def complete_dead(incomplete: str) -> list[str]:
    """Return the ids of the latest dead letters of each kind."""
    return _asked(
        lambda redis, settings, _: [
            *_latest(redis, settings.keys.dead_order),
            *_latest(redis, settings.keys.dead_wakes_order),
            *_latest(redis, settings.keys.dead_webhooks("-order")),
        ],
        incomplete,
    )


def complete_keys(incomplete: str) -> list[str]:
    """Return the ids of API keys that are kept in Redis."""
    return _asked(
        lambda redis, settings, _: map(_text, cast("list[Any]", redis.hkeys(settings.keys.registry.api_keys))),
        incomplete,
    )


def complete_agents(incomplete: str) -> list[str]:
    """Return the agents that have a profile, in the settings or in Redis."""
    return _asked(
        lambda redis, settings, _: [
            *settings.agents,
            *map(_text, cast("list[Any]", redis.hkeys(settings.keys.registry.agents))),
        ],
        incomplete,
    )


def complete_jobs(incomplete: str) -> list[str]:
    """Return the jobs that are due next, and the latest that have ended."""
    return _asked(
        lambda redis, settings, _: [
            *_first(redis, settings.keys.jobs_due),
            *_latest(redis, settings.keys.jobs_ended),
        ],
        incomplete,
    )


def complete_wakes(incomplete: str) -> list[str]:
    """Return the wake-ups that are due next."""
    return _asked(
        lambda redis, settings, _: [
            *_first(redis, settings.keys.wakes_due),
            *_first(redis, settings.keys.calls_due),
        ],
        incomplete,
    )


def complete_approvals(incomplete: str) -> list[str]:
    """Return the calls that wait for people."""
    from toolfleet_registry.redis.keys import ApprovalKeys

    return _asked(lambda redis, settings, _: _first(redis, ApprovalKeys(settings.keys).waiting), incomplete)


def complete_processes(incomplete: str) -> list[str]:
    """Return the processes of the `up` that runs here."""
    return _in_time(_processes, incomplete)


def complete_logs(incomplete: str) -> list[str]:
    """Return the names of the logs here."""
    return _in_time(_logs, incomplete)


def _asked(ask: _Ask, incomplete: str) -> list[str]:
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
    listed = cast("list[Any]", redis.hkeys(settings.keys.modules))
    return set(settings.modules) | {_text(name) for name in listed}


def _tools(redis: "Redis", settings: "Settings", incomplete: str) -> Iterable[str]:
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


def _latest(redis: "Redis", name: str) -> list[str]:
    return [_text(one) for one in cast("list[Any]", redis.zrevrange(name, 0, _MOST_IDS - 1))]


def _first(redis: "Redis", name: str) -> list[str]:
    return [_text(one) for one in cast("list[Any]", redis.zrange(name, 0, _MOST_IDS - 1))]


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
    from toolfleet_registry.config.run_file import FOLDER, find_running
    from toolfleet_registry.errors import FleetError

    if (found := find_running(start)) is not None:
        return found[0] / "logs"
    candidates = (folder / FOLDER / "logs" for folder in (start, *start.parents))
    folder = next((each for each in candidates if each.is_dir()), None)
    if folder is None:
        raise FleetError("There are no logs: no `toolfleet up` has run here, or in a folder above.")
    return folder
