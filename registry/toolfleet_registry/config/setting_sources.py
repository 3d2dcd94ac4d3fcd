"""Tells where a setting comes from: the environment, a line of `toolfleet.toml`, a running `up`; and which names are unknown.

No TOML parser reports lines: the document is read up to one line after the other, as few times as needed.
"""

import importlib
import logging
import os
import re
import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from toolfleet_registry.config.host_settings import SecretSource
from toolfleet_registry.config.removed_settings import REMOVED
from toolfleet_registry.config.run_file import FOLDER, find_running
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
_KUBERNETES = re.compile(
    r"\w+_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)
_LIKENESS = 0.75

_warned: set[str] = set()


def line_of(path: Sequence[str | int], text: str) -> int | None:
    """The line, from 1 on, of what stands at this path of keys and places; `None` if there is nothing, or it is no TOML."""
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
    """The nearest `toolfleet.toml` in `start` or a folder above."""
    candidates = (folder / TOML_NAME for folder in (start, *start.parents))
    return next((path for path in candidates if path.is_file()), None)


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
    """The file, and the line that sets this, or the key or element at this path; `None` if the nearest file does not."""
    file = find_toml(start)
    try:
        keys = (path,) if isinstance(path, str) else path
        line = None if file is None else line_of(keys, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return None if line is None else f"{file}, line {line}"


def likeliest(name: str, settings: Collection[str]) -> str | None:
    """The setting that was probably meant by this name, if any is like it."""
    import difflib  # noqa: PLC0415 - needed after a mistake only

    return next(iter(difflib.get_close_matches(name, settings, n=1, cutoff=_LIKENESS)), None)


def misspelt(settings: Collection[str], environ: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """The variables that begin as ours do and are none of these settings, each with the one that was probably meant, if any is like it."""
    known = {f"{PREFIX}{name.upper()}" for name in settings}
    found = dict[str, str | None]()
    for variable in environ:
        name = variable.upper()
        if not name.startswith(PREFIX) or name in known or name in _OTHERS or _KUBERNETES.fullmatch(name):
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


def warn_of_misspelt(settings: Collection[str], environ: Mapping[str, str] = os.environ) -> None:
    """Log each variable that `misspelt` finds, once a process."""
    for variable, like in misspelt(settings, environ).items():
        _warn(variable, ", and changes nothing" + ("." if like is None else f"; did you mean {like}?"))


def removed_in(variables: Mapping[str, str | None]) -> dict[str, str]:
    """Return the removed settings among a process's variables, whose names are in lower case here, by their names."""
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
