"""Tells where a setting comes from (environment, `toolfleet.toml`, a running `up`), and reads the values of secrets.

No TOML parser reports lines: the document is read up to one line after the other, as few times as needed.

A setting of the version before that is gone and still set is named in a warning, for one version. It does not end the
start, but for `fast_transport` switched off at a Redis broker: such a fleet would carry its calls otherwise.
"""

import importlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from toolfleet_registry.config.host_settings import SecretSource
from toolfleet_registry.config.run_file import FOLDER, find_running
from toolfleet_registry.config.webhook_settings import secret_fault
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.redis.urls import is_redis_url

_log = logging.getLogger(
    "toolfleet"
)  # not structlog: without any set-up this is a line on stderr, in agents and commands

PREFIX = "TOOLFLEET_"
TOML_NAME = "toolfleet.toml"
MCP_FILE = "mcp.json"

Source: TypeAlias = Literal["environment", "file", "up", "default"]

ENVIRONMENT_ONLY = "TOOLFLEET_ENVIRONMENT_ONLY"
"""The variable by which a program tells its child that the environment has all settings: a file that has changed since counts for nothing."""

# Variables that are no settings: a module's own, those of its host, the mark of the example modules' processes, a worker's, and a child's.
_OTHERS = {
    *(f"TOOLFLEET_{name}" for name in ("MODULE_KEY", "ANNOUNCE_KEY", "HOST_USER", "COMMAND", "WORKER_NOTE")),
    ENVIRONMENT_ONLY,
}

_OFF = frozenset({"0", "false", "off", "no", "f", "n"})  # as pydantic reads them
# What Kubernetes tells every container of a service that is named so: `TOOLFLEET_REDIS_PORT_6379_TCP_ADDR`.
_KUBERNETES = r"\w+_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
_LIKENESS = 0.75

_warned: set[str] = set()

REMOVED: Final[Mapping[str, str]] = {
    "fast_transport": "calls travel by the fleet's own transport at Redis, and by kombu's at RabbitMQ; remove it",
    "gateway_max_body_bytes": "a body has room for four calls with the largest arguments: TOOLFLEET_MAX_ARGUMENTS_BYTES",
    "gateway_body_seconds": "a request's body has 30 s to arrive",
    "gateway_max_header_bytes": "a request's URL and headers have 32 KiB",
    "gateway_header_seconds": "a request's headers have 10 s to arrive",
    "gateway_streams": "half of TOOLFLEET_GATEWAY_CONNECTIONS may be streams",
    "gateway_wait_seconds": "a call's request is held open for 30 s, or as its client says: `Prefer: wait=N`",
    "gateway_longest_wait_seconds": "a call's request is held open for 300 s at most",
    "gateway_result_kept_seconds": "a result stays for 600 s after it was handed out",
    "mcp_wait_seconds": "an MCP client waits for a call for 50 s, and is then told how to ask for it",
    "mcp_task_seconds": "a call becomes a task after 0.5 s, for a client that takes tasks",
    "mcp_grace_seconds": "a call whose client has gone waits 10 s for a repeat",
    "mcp_session_seconds": "a session that sends nothing is kept for an hour",
    "tool_debounce_ms": "changes of files are gathered for 500 ms at most",
    "tool_load_seconds": "the import of one file may take TOOLFLEET_DISCOVERY_TIMEOUT_SECONDS, as that of functions in workers",
    "tool_environment_days": "packages that no host has used for 30 days are removed",
    "tool_install_seconds": "`uv` has 15 minutes to install packages",
    "core_timeout_seconds": "the core has 30 s for its answer",
    "dead_wakes_kept": "TOOLFLEET_DEAD_LETTERS_KEPT counts for wake-ups, too",
    "dead_webhooks_kept": "TOOLFLEET_DEAD_LETTERS_KEPT counts for events of the registry, too",
    "completions_kept_seconds": "wake-ups wait for an agent without HTTP for 7 days",
    "job_kept_seconds": "an ended job can be looked at for 7 days",
    "max_job_seconds": "no job may last longer than 366 days",
    "shortest_poll_seconds": "no job may poll more often than TOOLFLEET_JOBS_INTERVAL_SECONDS, or once a second",
    "manifest_requests": "a process asks 500 modules at once",
    "max_manifest_bytes": "a manifest has 4 MiB",
    "manifest_ttl_seconds": "a manifest is kept for an hour, or for three times TOOLFLEET_REFRESH_INTERVAL_SECONDS if that is longer",
    "manifest_stale_seconds": "tools are stale after three times TOOLFLEET_REFRESH_INTERVAL_SECONDS",
    "max_clock_offset_seconds": "a worker whose clock is 300 s off takes no calls",
    "agent_backlog_limit": "50,000 calls may wait in one agent",
    "broker_patience_seconds": "a call waits 30 s for a broker that is away, within its deadline",
    "restart_seconds": "a worker that SIGTERM ends counts for 60 s as one that is being restarted; TOOLFLEET_UNSERVED_SECONDS has calls wait longer",
    "breaker_failures": "a module is away after 20 calls in a row without an answer",
    "breaker_seconds": "a module that is away is left alone for 10 s at most",
    "gate_blocks_once": "a gate that fails or is late always blocks tools whose effect must not happen twice",
    "loop_stall_seconds": "the watchdog logs what blocks an event loop for 5 s",
    "metrics_ports": "16 ports are tried, from TOOLFLEET_METRICS_PORT on",
    "metrics_tools": "a process counts 200 tools by themselves",
    "up_gateway": "`toolfleet up --no-gateway` starts none",
    "gateway_leave_seconds": "a gateway that is to stop accepts requests for another second",
    "gateway_stop_seconds": "requests that are running when a gateway stops have 30 s to end",
    "module_backlogs": "TOOLFLEET_BACKLOG_LIMIT and TOOLFLEET_BACKLOG_BYTES count for each module",
    "host_oauth_folder": "hosts keep their tokens in the folder `oauth` of TOOLFLEET_HOST_DATA_FOLDER",
    "tool_environments": "hosts install packages into the folder `environments` of TOOLFLEET_HOST_DATA_FOLDER",
    "mcp_listed_tools": "with more than 500 tools an MCP client is shown three in their place",
}
"""Name of a setting that is gone -> what holds in its place, as the end of a sentence."""

_COMMAND_SECONDS = 30.0
_MOST_BYTES = 64 * 2**10


def line_of(path: Sequence[str | int], text: str) -> int | None:
    """Return the line, from 1 on, of what stands at this path of keys and places; `None` if there is nothing, or it is no TOML."""
    lines = text.splitlines()
    if not path or not _has(path, lines, len(lines)):
        return None
    without, within = 0, len(lines)  # the first so many lines have nothing there, and these do
    while within - without > 1:
        tried = _readable_between(lines, without, within)
        if tried is None:
            break
        if _has(path, lines, tried):
            within = tried
        else:
            without = tried
    begun = (number for number, line in enumerate(lines[without:within], without + 1) if _says_something(line))
    return next(begun, within)


def _readable_between(lines: Sequence[str], low: int, high: int) -> int | None:
    """Return how many lines, more than `low` and less than `high`, can be parsed by themselves; the nearest to the middle."""
    middle = (low + high) // 2
    below, above = range(middle, low, -1), range(middle + 1, high)
    return next((number for number in (*below, *above) if _read(lines, number) is not None), None)


def _read(lines: Sequence[str], number: int) -> dict[str, Any] | None:
    import tomllib  # of those who have such a file

    try:
        return tomllib.loads("\n".join(lines[:number]))
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _has(path: Sequence[str | int], lines: Sequence[str], number: int) -> bool:
    found: Any = _read(lines, number)
    for part in path:
        try:
            found = found[part]
        except (LookupError, TypeError):
            return False
    return True


def _says_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """The origin of a value. `place`: the variable, or the file, with the line if it is found."""

    source: Source
    place: str = ""


def find_toml(start: Path) -> Path | None:
    """Return the nearest `toolfleet.toml` in `start` or a folder above."""
    candidates = (folder / TOML_NAME for folder in (start, *start.parents))
    return next((path for path in candidates if path.is_file()), None)


def unread_env_file(folder: Path) -> Path | None:
    """Return the folder's `.env` if it has settings: a compose file reads it, and nothing here does."""
    path = folder / ".env"
    try:
        return path if PREFIX in path.read_text(encoding="utf-8", errors="replace") else None
    except OSError:
        return None


def find_own_programs() -> None:
    """Have Python look for what settings name in the working directory and next to `toolfleet.toml`: last, where a file can hide no other."""
    here = Path.cwd()
    toml = find_toml(here)
    for folder in dict.fromkeys((here, here if toml is None else toml.parent)):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    importlib.invalidate_caches()  # a file may have come since Python looked last


def private_places(beside: Path, sources: Mapping[str, SecretSource]) -> tuple[Path, ...]:
    """Files next to `toolfleet.toml` that no host's program reads: settings, other hosts' settings, the fleet's data, and secrets."""
    files = [each.file for each in sources.values() if each.file is not None]
    return tuple((beside / each).absolute() for each in (Path(TOML_NAME), Path(MCP_FILE), Path(FOLDER), *files))


def origin_of(name: str, *, start: Path, environ: Mapping[str, str] = os.environ) -> SettingOrigin:
    """Return the origin of a setting, by its name in `Settings`, for a process in the folder `start`."""
    wanted = f"{PREFIX}{name.upper()}"
    if (variable := next((each for each in environ if each.upper() == wanted and environ[each]), None)) is not None:
        return SettingOrigin("environment", variable)
    if (place := place_in_toml(name, start)) is not None:
        return SettingOrigin("file", place)
    running = find_running(start)
    if running is not None and name in running[1].settings:
        return SettingOrigin("up", str(running[0]))
    return SettingOrigin("default")


def setting_place(path: Sequence[str | int], *, start: Path) -> str:
    """Return the place of a part of a setting: the file's line, as near as there is one, or the variable."""
    origin = origin_of(str(path[0]), start=start)
    if origin.source == "file":
        found = (place_in_toml(path[:length], start) for length in range(len(path), 0, -1))
        return next((place for place in found if place is not None), origin.place)
    return origin.place or f"{PREFIX}{str(path[0]).upper()}"


def place_in_toml(path: str | Sequence[str | int], start: Path) -> str | None:
    """Return the file, and the line that sets this, or the key or element at this path; `None` if the nearest file does not."""
    file = find_toml(start)
    try:
        keys = (path,) if isinstance(path, str) else path
        line = None if file is None else line_of(keys, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return None if line is None else f"{file}, line {line}"


def likeliest(name: str, settings: Collection[str]) -> str | None:
    """Return the setting that was probably meant by this name, if any is like it."""
    import difflib  # needed after a mistake only

    return next(iter(difflib.get_close_matches(name, settings, n=1, cutoff=_LIKENESS)), None)


def misspelt(settings: Collection[str], environ: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Return the variables that begin as ours do and are none of these settings, each with the one that was probably meant, if any is like it."""
    known = {f"{PREFIX}{name.upper()}" for name in settings}
    found = dict[str, str | None]()
    for variable in environ:
        name = variable.upper()
        if not name.startswith(PREFIX) or name in known or name in _OTHERS or re.fullmatch(_KUBERNETES, name):
            continue
        if name.removeprefix(PREFIX).lower() in REMOVED:
            continue
        like = likeliest(name.removeprefix(PREFIX).lower(), settings)
        found[variable] = None if like is None else f"{PREFIX}{like.upper()}"
    return found


def removed(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of settings that are gone, each with what holds in its place."""
    names = {variable: variable.upper().removeprefix(PREFIX).lower() for variable in environ}
    return {
        variable: REMOVED[name]
        for variable, name in names.items()
        if variable.upper().startswith(PREFIX) and name in REMOVED
    }


def warn_of_misspelt(settings: Collection[str]) -> None:
    """Log each variable that `misspelt` finds, once a process."""
    for variable, like in misspelt(settings).items():
        _warn(variable, ", and changes nothing" + ("." if like is None else f"; did you mean {like}?"))


def removed_in(variables: Mapping[str, str | None]) -> dict[str, str]:
    """Return the removed settings among a process's variables, with their names in lower case here, by their names."""
    return {name: text for name in REMOVED if (text := variables.get(f"{PREFIX}{name}".lower()))}


def drop_removed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings without removed ones, and log each of these once a process.

    Raises `ValueError` for a removed one on which the fleet's calls depend.
    """
    for name in REMOVED.keys() & given.keys():
        if name == "fast_transport":
            _refuse_stock_parts(given, setting_place((name,), start=Path.cwd()))
        variable, place = f"{PREFIX}{name.upper()}", place_in_toml(name, Path.cwd())
        shown = variable if place is None or variable in os.environ else f"{place}: {name}"
        _warn(shown, f" any more, and changes nothing: {REMOVED[name]}.")
    return {name: value for name, value in given.items() if name not in REMOVED}


def _refuse_stock_parts(given: Mapping[str, Any], place: str) -> None:
    broker = given.get("broker_url") or given.get("redis_url")
    if str(given["fast_transport"]).lower() in _OFF and (broker is None or is_redis_url(str(broker))):
        raise ValueError(
            f"{place}: kombu's transport is for RabbitMQ only, and this fleet's broker is Redis. First end all workers "
            "of the version before, by SIGTERM: they finish the calls that they run, and the others stay in their "
            "queues. Then take the setting away everywhere, and start this version"
        )


def _warn(shown: str, advice: str) -> None:
    if shown not in _warned:
        _warned.add(shown)
        _log.warning("%s is no setting%s", shown, advice)


def secret_value(name: str, sources: Mapping[str, SecretSource], *, folder: Path) -> str:
    """Return the value; `folder` is where relative files lie. Raises `SettingsError`, which does not show it."""
    source = sources.get(name) or SecretSource(variable=name)
    if source.variable is not None:
        if source.variable not in os.environ:
            raise SettingsError(f"The secret {name} is not there: the variable {source.variable} is not set.")
        return os.environ[source.variable]
    data = _content(name, folder / source.file) if source.file is not None else _printed(name, source.command, folder)
    if len(data) > _MOST_BYTES:
        raise SettingsError(f"The secret {name} has more than {_MOST_BYTES} bytes.")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SettingsError(f"The secret {name} is no text in UTF-8.") from None


def _content(name: str, file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_MOST_BYTES + 1)
    except OSError as exc:
        raise SettingsError(f"The secret {name} cannot be read from {file}: {exc.strerror}.") from None


def _printed(name: str, command: tuple[str, ...], folder: Path) -> bytes:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"no end within {_COMMAND_SECONDS:g} s"
        raise SettingsError(f"The program for the secret {name} cannot be run: {reason}.") from None
    if done.returncode:
        raise SettingsError(f"The program for the secret {name} ended with {done.returncode}.")
    return done.stdout


def channel_secret(name: str, sources: Mapping[str, SecretSource]) -> str:
    """Return the Standard Webhooks secret of this name; relative files are resolved next to `toolfleet.toml`.

    Raises `SettingsError`.
    """
    toml = find_toml(Path.cwd())
    value = secret_value(name, sources, folder=Path.cwd() if toml is None else toml.parent)
    if (fault := secret_fault(value)) is not None:
        raise SettingsError(f"The secret {name} {fault}.")
    return value
