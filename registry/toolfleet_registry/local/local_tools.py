"""Loads tools that are functions of our own: what the setting `local_tools` names, as the module `local`.

Importing them runs their program, so it happens in workers only, in a thread: a program may fail, hang, or want to end the
process. What cannot be imported is missing, is told with its file and line, and is tried again at the next look.
"""

import asyncio
import importlib
import inspect
import os
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from toolfleet_registry.admission_rules import admit
from toolfleet_registry.config.setting_sources import find_own_programs
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.contracts.names import LOCAL
from toolfleet_registry.directory.directory import LOCAL_FAULT
from toolfleet_registry.errors import ManifestRefused, SettingsError
from toolfleet_registry.local.local_function import LocalFunction
from toolfleet_registry.manifests.discovery import DiscoveryResult, ManifestFailure
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.tags import ToolDef, handler_in, path_of

_log = get_logger(__name__)

_LIBRARIES = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_MOST_SHOWN = 300  # characters of foreign text in a reason

_AGAIN_SECONDS = 10.0  # between two imports of what cannot be imported, however many calls want it

_NOT_YET = "not imported yet."


class ProgramFault(ValueError):
    """A user's program cannot be imported, or is no tool; the message says where, and quotes no value of the program."""


def check_path(path: str) -> None:
    """Raise `ValueError` unless it has the form `package.module:name`."""
    module_name, _, name = path.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(f"{path!r} must have the form 'package.module:name'.")


def found_at(path: str, what: str) -> Any:
    """Import the target of an import path. Raises `ProgramFault`, also for any exception of the imported program."""
    check_path(path)
    module_name, _, name = path.partition(":")
    find_own_programs()
    try:
        module = importlib.import_module(module_name)
        found = getattr(module, name, None)
    except BaseException as exc:  # also SystemExit: nothing that a program does at its import ends the process
        raise ProgramFault(f"{what}, {path!r}, cannot be imported: {_error_text(exc)}{_at(place_of(exc))}") from exc
    if found is None:
        place = getattr(module, "__file__", None)
        raise ProgramFault(f"{what}, {path!r}, cannot be found: {module_name!r} has no {name!r}{_at(place)}.")
    return found


def place_of(exc: BaseException) -> str | None:
    """`file, line n`, where the program failed: its own innermost line rather than one of a library's; `None` if none ran."""
    if isinstance(exc, SyntaxError) and exc.filename and os.path.exists(exc.filename):  # noqa: PTH110 - it may be any text
        return f"{exc.filename}, line {exc.lineno}"
    lines = [frame for frame in _frames(exc.__traceback__) if not _is_ours(frame.filename)]
    own = [frame for frame in lines if not frame.filename.startswith(_LIBRARIES)]
    last = (own or lines)[-1:]
    return f"{last[0].filename}, line {last[0].lineno}" if last else None


def place_of_function(function: Callable[..., Any]) -> str | None:
    """`file, line n`, where a function is defined; `None` for one that is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else f"{code.co_filename}, line {code.co_firstlineno}"


def _frames(tb: TracebackType | None) -> list[traceback.FrameSummary]:
    # A walk, and not a reading of the files: these may be anything.
    return [
        traceback.FrameSummary(frame.f_code.co_filename, number, frame.f_code.co_name, lookup_line=False)
        for frame, number in traceback.walk_tb(tb)
    ]


def _error_text(exc: BaseException) -> str:
    """Return the exception's type, and its message only if that names parts of programs: other messages may quote secrets."""
    kind = type(exc).__name__
    if isinstance(exc, SyntaxError):
        return f"{kind}: {exc.msg}"[:_MOST_SHOWN]
    return f"{kind}: {exc}"[:_MOST_SHOWN] if isinstance(exc, ImportError | NameError | AttributeError) else kind


def _at(place: str | None) -> str:
    return "" if place is None else f" ({place})"


def _is_ours(filename: str) -> bool:
    return filename == __file__ or filename.startswith(("<frozen ", os.path.dirname(importlib.__file__)))  # noqa: PTH120


class LocalTools:
    """The local functions by their tools' names, their manifest, and the reasons for missing ones.

    `manifest` is `None` if none could be imported: the worker's previous manifest then stays.
    """

    def __init__(self, functions: Iterable[LocalFunction], faults: Sequence[str] = ()) -> None:
        self.functions = {each.definition.name: each for each in functions}
        self.manifest: ModuleManifest | None = None
        if self.functions or not faults:
            self.manifest = ModuleManifest(
                module_name=LOCAL,
                description="Functions of this fleet's own.",
                tools=sorted((each.definition for each in self.functions.values()), key=lambda tool: tool.name),
            )
        self.error = _error_of(faults)
        """What is wrong, in one sentence; `None` if all are there."""


class LocalSource:
    """The present local tools of this process; each query costs a dict lookup.

    If they cannot be imported, the import is retried in the background: on each query, after a pause.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def find(self, tool_name: str) -> LocalFunction | None:
        """Return the function of a tool; `None` if it is not there, or not yet."""
        return self._present().tools.functions.get(tool_name)

    @property
    def is_away(self) -> bool:
        """Whether none of them could be imported: other workers may have them."""
        return self._present().tools.manifest is None

    @property
    def is_complete(self) -> bool:
        """Whether all of them are imported, so that a missing name is no tool."""
        present = self._present()
        return present.done.done() and present.tools.error is None

    def _present(self) -> "_Attempt":
        known = _attempts.get((os.getpid(), self._path))
        if known is None or (known.is_in_vain and machine_clock.monotonic() > known.ended_at + _AGAIN_SECONDS):
            return _attempt(self._path)
        return known


def load_local_tools(settings: Settings) -> LocalTools:
    """Return the tools of the setting as far as they can be had within `discovery_timeout_seconds`.

    Raises `SettingsError` for a setting that names nothing that could be imported anywhere.
    """
    path = _path_in(settings)
    if path is None:
        return LocalTools(())
    seconds = settings.discovery_timeout_seconds
    try:
        return _attempt(path).done.result(seconds)
    except Late:
        return LocalTools((), [_late(seconds)])


async def probe_local(settings: Settings) -> dict[str, DiscoveryResult]:
    """Return the local tools' manifest, in addition to the results of `discover`; empty if there are none.

    The import may hang for ever: concurrent probes wait for the same one, for a module's time.
    """
    try:
        path = _path_in(settings)
    except SettingsError as exc:
        return {LOCAL: ManifestFailure(str(exc))}
    if path is None:
        return {}
    seconds = settings.discovery_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            tools = await asyncio.wrap_future(_attempt(path).done)
    except TimeoutError:
        tools = LocalTools((), [_late(seconds)])
    if tools.error is None and tools.manifest is not None:
        return {LOCAL: tools.manifest}
    error = str(tools.error)
    _log.warning("local_tools_not_imported", error=error)
    return {LOCAL: ManifestFailure(error, offered=tools.manifest)}


@dataclass(slots=True)
class _Attempt:
    """One import. `tools` are those that there are: of the attempt before, until this one has ended well."""

    tools: LocalTools
    done: "Future[LocalTools]" = field(default_factory=Future["LocalTools"])
    ended_at: float = 0.0

    @property
    def is_in_vain(self) -> bool:
        return self.done.done() and self.done.result().error is not None

    def end(self, tools: LocalTools) -> None:
        """End the attempt; tools that were found before are replaced only by better ones."""
        if tools.manifest is not None or self.tools.manifest is None:
            self.tools = tools
        self.ended_at = machine_clock.monotonic()
        self.done.set_result(tools)


def _path_in(settings: Settings) -> str | None:
    if not settings.local_tools:
        return None
    if LOCAL in settings.module_services:
        raise SettingsError(
            f"{LOCAL_FAULT}its tools are the module {LOCAL!r}; the one at an address needs another name."
        )
    try:
        check_path(settings.local_tools)
    except ValueError as exc:
        raise SettingsError(f"{LOCAL_FAULT}{exc}") from None
    return settings.local_tools


def _attempt(path: str) -> _Attempt:
    """Return the import that is under way or has succeeded in this process; a new one after one that has failed."""
    key = (os.getpid(), path)  # a fork has no threads
    known = _attempts.get(key)
    if known is not None and not known.is_in_vain:
        return known
    attempt = _attempts[key] = _Attempt(LocalTools((), [_NOT_YET]) if known is None else known.tools)
    attempt.done.set_running_or_notify_cancel()  # so that a waiter that leaves does not cancel it for the others
    try:  # no thread of an executor's, which Python would wait for at its end
        threading.Thread(target=_try, args=(path, attempt), name="local-tools", daemon=True).start()
    except RuntimeError:
        attempt.end(LocalTools((), ["this machine has no thread to import them in."]))
    return attempt


def _try(path: str, attempt: _Attempt) -> None:
    try:
        tools = _load(path)
    except ProgramFault as exc:
        tools = LocalTools((), [str(exc)])
    except BaseException as exc:  # noqa: BLE001 - what a strange object raises, or a defect of ours: the waiters are told
        tools = LocalTools((), [f"{path!r} cannot be read: {type(exc).__name__}."])
    attempt.end(tools)


def _load(path: str) -> LocalTools:
    """Return all that can be had. Raises `ProgramFault` if that is nothing."""
    listed = found_at(path, "the list of tools")
    if not isinstance(listed, list | tuple):
        raise ProgramFault(f"{path!r} is no list of tools, but a {type(listed).__name__}.")
    tools, faults = dict[str, LocalFunction](), list[str]()
    for entry in listed:
        try:
            tool = _local_tool(entry)
        except Exception as exc:  # noqa: BLE001 - as below; the others are none the worse for it
            reason = (
                str(exc).removesuffix(".")
                if isinstance(exc, ValueError)
                else f"it cannot be read: {type(exc).__name__}"
            )
            faults.append(f"{reason}{_place_in(entry)}.")
            continue
        if tool is not None and tool.definition.name in tools:
            faults.append(f"{path!r} has two tools named {tool.definition.name!r}{_place_in(entry)}.")
        elif tool is not None:
            tools[tool.definition.name] = tool
    loaded = LocalTools(tools.values(), faults)
    if loaded.manifest is not None:
        try:
            admit(LOCAL, loaded.manifest.model_dump(mode="json", exclude_none=True))
        except ManifestRefused as exc:
            raise ProgramFault(f"{path!r}: {exc}.") from exc
    return loaded


def _local_tool(entry: Any) -> LocalFunction | None:
    """Return the tool of a `ToolDef` or of a function; `None` if its handler is a module's tool, which agents may list as well."""
    if not isinstance(entry, ToolDef):
        path_of(entry)
        return LocalFunction.of(entry)
    path = handler_in(entry).path
    if path is None:
        return None
    function = found_at(path, f"the handler of tool {entry.name!r}")
    try:
        path_of(function)
        return LocalFunction.of_tag(entry, function)
    except ValueError as exc:
        raise ValueError(f"Tool {entry.name!r}: {exc}") from exc


def _place_in(entry: Any) -> str:
    """Return the place of an entry's function, as far as it can be found."""
    function = entry.handler if isinstance(entry, ToolDef) else entry
    place = place_of_function(function) if callable(function) else None
    return "" if place is None else f" ({place})"


def _error_of(faults: Sequence[str]) -> str | None:
    if not faults:
        return None
    more = f" And {len(faults) - 1} more." if len(faults) > 1 else ""
    return f"{LOCAL_FAULT}{faults[0]}{more}"


def _late(seconds: float) -> str:
    return f"not imported within {seconds:g} s, and still at it."


_attempts: dict[tuple[int, str], _Attempt] = {}
