"""Tools that are functions of our own: what the setting `local_tools` names, as the module `local`.

Importing them runs their program, so it happens only where they run, and where modules are asked what they offer.
"""

import asyncio
import functools
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from toolfleet_registry.admission import admit
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.discovery import Look, ManifestFailure
from toolfleet_registry.errors import ManifestRefused, SettingsError
from toolfleet_registry.handlers import path_of
from toolfleet_registry.local_function import LocalFunction
from toolfleet_registry.loggers import get_logger
from toolfleet_registry.names import LOCAL
from toolfleet_registry.settings import Settings
from toolfleet_registry.tags import ToolDef, handler_in

SETTING = "TOOLFLEET_LOCAL_TOOLS"

_log = get_logger(__name__)


class LocalTools:
    """The functions by their tools' names, and what they offer."""

    def __init__(self, functions: Iterable[LocalFunction]) -> None:
        self.functions: Mapping[str, LocalFunction] = {each.definition.name: each for each in functions}
        self.manifest = ModuleManifest(
            module_name=LOCAL,
            description="Functions of this fleet's own.",
            tools=sorted((each.definition for each in self.functions.values()), key=lambda tool: tool.name),
        )


def load_local_tools(settings: Settings) -> LocalTools | None:
    """The tools of the setting, `None` if it names none. Imports them, once a process. Raises `SettingsError`."""
    path = _path_in(settings)
    return None if path is None else _loaded(path)


async def look_at_local(settings: Settings) -> dict[str, Look]:
    """What the local tools offer, beside what `discover` finds; empty if there are none.

    A process that cannot import them, such as an agent with other packages than its workers, is told so and goes on. They
    are imported in a thread of their own, which may hang for ever: who asks meanwhile waits for the same one.
    """
    try:
        path = _path_in(settings)
        if path is None:
            return {}
        async with asyncio.timeout(settings.discovery_timeout_seconds):
            tools = await asyncio.wrap_future(_attempt(path))
    except TimeoutError:
        _log.warning("local_tools_not_imported", error="takes too long")
        reason = f"{SETTING}: not imported within {settings.discovery_timeout_seconds:g} s, and still at it."
        return {LOCAL: ManifestFailure(reason)}
    except SettingsError as exc:
        _log.warning("local_tools_not_imported", error=str(exc))
        return {LOCAL: ManifestFailure(str(exc))}
    return {LOCAL: tools.manifest}


def _path_in(settings: Settings) -> str | None:
    if settings.local_tools is not None and LOCAL in settings.module_services:
        raise SettingsError(f"{SETTING}: its tools are the module {LOCAL!r}; the one at an address needs another name.")
    return settings.local_tools


def _attempt(path: str) -> Future[LocalTools]:
    """The import that is under way or has succeeded in this process; a new one after one that has failed."""
    key = (os.getpid(), path)  # a fork has no threads
    known = _attempts.get(key)
    if known is not None and not (known.done() and known.exception()):
        return known
    attempt = _attempts[key] = Future[LocalTools]()
    attempt.set_running_or_notify_cancel()  # so that nobody who stops waiting can cancel it for the others
    # No thread of an executor's, which Python would wait for at its end.
    threading.Thread(target=_try, args=(path, attempt), name="local-tools", daemon=True).start()
    return attempt


def _try(path: str, attempt: Future[LocalTools]) -> None:
    try:
        attempt.set_result(_loaded(path))
    except BaseException as exc:  # noqa: BLE001 - whoever waits is told
        attempt.set_exception(exc)


def _loaded(path: str) -> LocalTools:
    try:
        return _load(path)
    except ValueError as exc:
        raise SettingsError(f"{SETTING}: {exc}") from exc


@functools.lru_cache(maxsize=8)
def _load(path: str) -> LocalTools:
    listed = _found_at(path, "the list of tools")
    if not isinstance(listed, list | tuple):
        reason = f"{path!r} is no list of tools, but a {type(listed).__name__}."
        raise ValueError(reason)  # noqa: TRY004 - one kind of error for whatever is wrong with the setting
    tools = dict[str, LocalFunction]()
    for entry in listed:
        tool = _local_tool(entry)
        if tool is None:
            continue
        if tool.definition.name in tools:
            raise ValueError(f"{path!r} has two tools named {tool.definition.name!r}.")
        tools[tool.definition.name] = tool
    loaded = LocalTools(tools.values())
    try:
        admit(LOCAL, loaded.manifest.model_dump(mode="json", exclude_none=True))
    except ManifestRefused as exc:
        raise ValueError(f"{path!r}: {exc}.") from exc
    return loaded


def _local_tool(entry: Any) -> LocalFunction | None:
    """A `ToolDef`'s or a function's own; `None` for one whose handler is a module's tool: agents may list it beside."""
    if not isinstance(entry, ToolDef):
        try:
            path_of(entry)
            return LocalFunction.of(entry)
        except ValueError as exc:
            raise ValueError(f"{exc}.") from exc
    path = handler_in(entry).path
    if path is None:
        return None
    function = _found_at(path, f"the handler of tool {entry.name!r}")
    try:
        path_of(function)
        return LocalFunction.of_tag(entry, function)
    except ValueError as exc:
        raise ValueError(f"Tool {entry.name!r}: {exc}.") from exc


def _found_at(path: str, what: str) -> Any:
    """What an import path names. Raises `ValueError`, also for whatever the imported program raises."""
    module_name, _, name = path.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(f"{path!r} must have the form 'package.module:name'.")
    # Started as `toolfleet`, Python does not look in the working directory; at the end it can hide nothing there.
    if not {"", os.getcwd()} & {*sys.path}:  # noqa: PTH109 - as Python writes it
        sys.path.append("")
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except (Exception, SystemExit) as exc:
        raise ValueError(f"{what}, {path!r}, cannot be imported: {type(exc).__name__}: {exc}") from exc
    if found is None:
        raise ValueError(f"{what}, {path!r}, cannot be found: {module_name!r} has no {name!r}.")
    return found


_attempts: dict[tuple[int, str], Future[LocalTools]] = {}
