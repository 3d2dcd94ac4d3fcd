"""Imports tool files in the process that runs them, from the texts that their host has read: nothing is looked for on disk."""

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from toolfleet_modules.hosts.processes.langchain_tools import (
    is_langchain_tool,
    langchain_function,
    langchain_tools_in,
)
from toolfleet_modules.hosts.processes.load_plan import PACKAGE, SourceText
from toolfleet_modules.hosts.processes.tag_tools import tag_function, tag_tools_in, takes_context
from toolfleet_modules.sdk.marks import ToolMark, mark_of
from toolfleet_modules.sdk.offer import Facts
from toolfleet_modules.sdk.tool import Tool

_log = logging.getLogger("toolfleet.host")

_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class LoadFault:
    """The reason why a file is not imported. `line` is in this file, if the fault has a place there."""

    kind: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class MarkedTool:
    """A tool, and what was said of it."""

    tool: Tool
    mark: ToolMark


class ToolModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The files of a folder as a package of this process, and functions that are named by dotted paths. `texts` are by the files' names without `.py`; `secrets`: which their tools may name.

    `faults` has what went wrong, also with files that others import.
    """

    def __init__(self, module: str, texts: Mapping[str, SourceText], secrets: Sequence[str] = ()) -> None:
        self._secrets = frozenset(secrets)
        self.faults: dict[str, LoadFault] = {}
        self._module = module
        self._texts = texts
        self._tools: dict[str, dict[str, MarkedTool]] = {}

    def install(self) -> None:
        """Let Python find them."""
        sys.meta_path.insert(0, self)

    def tools(self, stem: str) -> Mapping[str, MarkedTool]:
        """Return the tools of a file, or of a dotted path, by their full names; it is imported when they are asked for first. With a fault, there are none."""
        known = self._tools.get(stem)
        if known is None:
            known = self._tools[stem] = self._load(stem)
        return known

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a file by its name in the package, or the package."""
        del path, target
        package, _, stem = fullname.partition(".")
        if package != PACKAGE or (stem and stem not in self._texts):
            return None
        origin = self._texts[stem].path if stem else None
        return importlib.util.spec_from_loader(fullname, self, origin=origin, is_package=not stem)

    def exec_module(self, module: ModuleType) -> None:
        """Run a file's text."""
        stem = module.__name__.partition(".")[2]
        if not stem:
            return
        source = self._texts[stem]
        module.__file__ = source.path
        try:
            exec(compile(source.text, source.path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - what it is for
        except BaseException as exc:
            self.faults.setdefault(stem, _fault_of(exc, source.path))
            raise

    def _load(self, stem: str) -> dict[str, MarkedTool]:
        path = self._texts[stem].path if stem in self._texts else stem
        try:
            if "." in stem:
                return self._named(stem)
            module = importlib.import_module(f"{PACKAGE}.{stem}")
            return self._marked_in(module)
        except BaseException as exc:  # noqa: BLE001 - also SystemExit: the file's author may raise anything
            _log.warning("%s does not load", path, exc_info=exc)
            self.faults.setdefault(stem, _fault_of(exc, path))
            return {}

    def _named(self, path: str) -> dict[str, MarkedTool]:
        """The function with this dotted path, marked or not."""
        module, _, name = path.rpartition(".")
        function = getattr(importlib.import_module(module), name, None)
        if is_langchain_tool(function):
            tool = self._made_of(langchain_function, function)
            return {tool.definition.name: MarkedTool(tool, ToolMark())}
        if not callable(function):
            raise _InvalidTool(f"{module} has no function {name!r}.")
        mark = mark_of(function) or ToolMark()
        tool = self._tool_of(function, mark)
        return {tool.definition.name: MarkedTool(tool, mark)}

    def source(self, path: str) -> dict[str, str] | None:
        """Return the file and digest of a function with a dotted path; `None` for a file of the folder, which the host has read."""
        module = sys.modules.get(path.rpartition(".")[0])
        if module is None:
            return None
        file = getattr(module, "__file__", None) or module.__name__
        data = Path(file).read_bytes() if Path(file).is_file() else file.encode()
        return {"file": file, "digest": hashlib.sha256(data).hexdigest()}

    def _marked_in(self, module: ModuleType) -> dict[str, MarkedTool]:
        """Return the marked tools that were defined there, without those imported from another file."""
        found: dict[str, MarkedTool] = {}
        for thing in list(vars(module).values()):
            mark = mark_of(thing)
            if mark is None or getattr(thing, "__module__", None) != module.__name__:
                continue
            tool = self._tool_of(thing, mark)
            known = found.get(tool.definition.name)
            if known is not None and known.tool.function is not thing:
                raise _InvalidTool(f"It has two tools named {tool.definition.name!r}.")
            found[tool.definition.name] = MarkedTool(tool, mark)
        made = [self._tag_of(each) for each in tag_tools_in(module)]
        made += [self._made_of(langchain_function, each) for each in langchain_tools_in(module)]
        for tool in made:
            if tool.definition.name in found:
                raise _InvalidTool(f"It has two tools named {tool.definition.name!r}.")
            found[tool.definition.name] = MarkedTool(tool, ToolMark())
        return found

    def _tag_of(self, tool: Any) -> Tool:
        made = self._made_of(tag_function, tool)
        own = {"listed": tool.listed, "takes_context": takes_context(tool)}
        return replace(made, definition=made.definition.model_copy(update=own))

    def _made_of(self, read: Callable[[Any], tuple[Callable[..., Any], Facts]], thing: Any) -> Tool:
        try:
            return Tool.of(self._module, *read(thing))
        except (TypeError, ValueError, NameError) as exc:
            raise _InvalidTool(str(exc)) from exc

    def _tool_of(self, function: Any, mark: ToolMark) -> Tool:
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", None)
        try:
            tool = Tool.of(self._module, function, mark.facts)
        except (TypeError, ValueError) as exc:
            raise _InvalidTool(str(exc), line) from exc
        if missing := sorted(set(mark.secrets) - self._secrets):
            message = f"{tool.definition.name} names the secret {missing[0]!r}, which its host has not."
            raise _InvalidTool(message, line, "SecretMissing")
        return tool


def find_packages_in(folder: str) -> None:
    """Let Python find packages there, before those that the host has for itself, and after its own library."""
    at = next((at for at, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))), None)
    sys.path.insert(len(sys.path) if at is None else at, folder)
    importlib.invalidate_caches()


class _InvalidTool(Exception):
    def __init__(self, message: str, line: int | None = None, kind: str = "InvalidTool") -> None:
        super().__init__(message)
        self.line, self.kind = line, kind


def _fault_of(exc: BaseException, path: str) -> LoadFault:
    """Return the fault in one sentence. Messages of other exceptions may be a program's data: only the log has them."""
    line = next(
        (frame.lineno for frame in reversed(traceback.extract_tb(exc.__traceback__)) if frame.filename == path), None
    )
    if isinstance(exc, _InvalidTool):
        return LoadFault(exc.kind, str(exc)[:_LONGEST_MESSAGE], exc.line)
    if isinstance(exc, ImportError):
        return LoadFault("ImportError", f"{str(exc)[:_LONGEST_MESSAGE]}.", line)
    kind = type(exc).__name__
    return LoadFault(kind, f"It raised {kind} when it was imported; its host's log says more.", line)
