"""Reads the Python files of a tool folder: bounded, without following links out of it, and only what has changed.

A file names the packages that it needs in itself (PEP 723), or a `requirements.txt` lists them for all files.
"""

import ast
import hashlib
import os
import platform
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from toolfleet_registry.contracts.tool_definition import NO_TOOLS

Requirements: TypeAlias = frozenset[str]
"""Lines as PEP 508 has them, each in its normal form."""

REQUIREMENTS_FILE = "requirements.txt"

MOST_BYTES = 2**20  # of one file
MOST_FILES = 10_000
_BLOCK = re.compile(r"^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$", re.MULTILINE)  # of PEP 723
_MOST_PACKAGES = 200  # packages of one file
_PARSE_TRIES = 5
_SHOWN = 200  # characters of an error of Python's
_NOT_FOR_TOOLS = re.compile(r"[_.].*|test_.*|.*_test|tests?|conftest|__init__")  # for others to import, or for pytest


class FolderUnreadable(Exception):
    """The folder cannot be listed. The message says why, in one sentence."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file as it was read. `stem` is its name without `.py`, and what it is imported as; `digest` names its content.

    `requirements` are the packages that it asks for.
    """

    path: Path
    text: str = field(repr=False)
    digest: str
    has_tools: bool
    requirements: Requirements = frozenset()

    @property
    def version(self) -> tuple[str, Requirements]:
        """The version of a file; it changes when the file must be loaded again."""
        return self.digest, self.requirements

    @property
    def stem(self) -> str:
        """The file's name without `.py`."""
        return self.path.stem


@dataclass(frozen=True, slots=True)
class FileFault:
    """A file that cannot be used. `kind` is an `error_type` of `ToolLoadError`."""

    path: Path
    kind: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class FolderReading:
    """The content of a folder at one time: by file names, sorted.

    `requirements`: those of its `requirements.txt`, for all of them.
    """

    files: Mapping[str, SourceFile]
    faults: Mapping[str, FileFault]
    requirements: Requirements = frozenset()


_Result = SourceFile | FileFault | Requirements


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file's state on disk when it was read, and what came of it."""

    state: tuple[int, int, int, int]
    result: _Result
    tree: ast.Module | None = None


class SourceFolder:
    """The `.py` files that lie directly in `path`; none without one. Those that begin with `_` have no tools, and the others may import them.

    A file that is as it was is not read again. Not for use by two threads at once.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path or Path()
        self._is_there = path is not None
        self._seen: dict[str, _Seen] = {}

    def read(self) -> FolderReading:
        """Read what has changed. Raises `FolderUnreadable`."""
        if not self._is_there:
            return FolderReading({}, {})
        try:
            root = self.path.resolve(strict=True)
            found = list(os.scandir(root))
            names = [each.name for each in found if _is_source(each.name)]
            deeper = [each.name for each in found if _is_deeper(each)]
        except OSError as exc:
            raise FolderUnreadable(f"{self.path} cannot be read: {exc.strerror or exc}.") from exc
        if len(names) > MOST_FILES:
            raise FolderUnreadable(f"{self.path} has {len(names)} Python files; at most {MOST_FILES} are served.")
        self._seen = {name: seen for name in sorted(names) if (seen := self._read_one(root, name)) is not None}
        results: dict[str, _Result] = {name: seen.result for name, seen in self._seen.items()}
        message = "Its files are not read: only those that lie directly in the tool folder are."
        results |= {name: FileFault(self.path / name, NO_TOOLS, message) for name in sorted(deeper)}
        return FolderReading(
            {name: result for name, result in results.items() if isinstance(result, SourceFile)},
            {name: result for name, result in results.items() if isinstance(result, FileFault)},
            next((result for result in results.values() if isinstance(result, frozenset)), frozenset()),
        )

    def take_tree(self, name: str) -> ast.Module | None:
        """Return the syntax tree of a file that was just read, once: a tree takes fifty times what its text does."""
        seen = self._seen.get(name)
        if seen is None:
            return None
        self._seen[name] = replace(seen, tree=None)
        return seen.tree

    def _read_one(self, root: Path, name: str) -> _Seen | None:
        path = self.path / name
        try:
            found = os.stat(root / name)  # noqa: PTH116 - ten thousand of them
            state = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)
            known = self._seen.get(name)
            if known is not None and known.state == state:
                return known
            return _Seen(state, *_read(root, path, found))
        except FileNotFoundError:
            if (root / name).is_symlink():
                return _Seen((0, 0, 0, 0), FileFault(path, "FileRefused", "The link leads nowhere."))
            return None  # it has gone meanwhile
        except OSError as exc:
            return _Seen((0, 0, 0, 0), FileFault(path, "FileRefused", f"It cannot be read: {exc.strerror or exc}."))


def _is_source(name: str) -> bool:
    is_python = name.endswith(".py") and not name.startswith(".") and name != "__init__.py"
    return is_python or name == REQUIREMENTS_FILE


def _is_deeper(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder with Python files in it, which are not served."""
    if _NOT_FOR_TOOLS.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
        return False
    try:
        with os.scandir(entry.path) as found:
            return any(_is_source(each.name) for each in found)
    except OSError:
        return False


def nothing_in(file: SourceFile) -> FileFault | None:
    """Return why a file offers no tools; `None` for one that others import, and for pytest's."""
    if _NOT_FOR_TOOLS.fullmatch(file.stem):
        return None
    if file.has_tools and _marks_tools(_tree_of(file.text, file.path)):
        message = "What it marks is a tool neither of toolfleet.sdk nor of LangChain: import tool from toolfleet.sdk."
        return FileFault(file.path, "InvalidTool", message)
    message = "It has no function with @tool at its top. A file that others import is named with a _ before."
    return FileFault(file.path, NO_TOOLS, message)


def _read(root: Path, path: Path, found: os.stat_result) -> tuple[_Result, ast.Module | None]:
    real = root / path.name
    if not stat.S_ISREG(found.st_mode):
        return FileFault(path, "FileRefused", "It is no file."), None
    if not real.resolve().is_relative_to(root):
        return FileFault(path, "SecurityError", "It is a link that leads out of the folder."), None
    if not path.stem.isidentifier() and path.name != REQUIREMENTS_FILE:
        return FileFault(path, "FileRefused", "Its name is none that Python can import."), None
    if found.st_size > MOST_BYTES:
        return FileFault(path, "FileRefused", f"It has {found.st_size} bytes; at most {MOST_BYTES} are read."), None
    with real.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    return (_listed(path, data), None) if path.name == REQUIREMENTS_FILE else _parsed(path, data)


def _listed(path: Path, data: bytes) -> Requirements | FileFault:
    try:
        return listed_requirements(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return FileFault(path, "InstallError", "It is no text in UTF-8.")
    except RequirementsFault as exc:
        return FileFault(path, "InstallError", str(exc))


def _parsed(path: Path, data: bytes) -> tuple[SourceFile | FileFault, ast.Module | None]:
    if len(data) > MOST_BYTES:
        return FileFault(path, "FileRefused", f"At most {MOST_BYTES} bytes are read."), None
    try:
        text = data.decode("utf-8-sig")
        tree = _tree_of(text, path)
    except UnicodeDecodeError:
        return FileFault(path, "SyntaxError", "It is no text in UTF-8."), None
    except SyntaxError as exc:
        return FileFault(path, "SyntaxError", f"{exc.msg[:_SHOWN]}.", exc.lineno), None
    except (ValueError, RecursionError, MemoryError, SystemError) as exc:  # null bytes, or what is nested too deep
        return FileFault(path, "SyntaxError", f"It cannot be parsed: {str(exc)[:_SHOWN] or type(exc).__name__}."), None
    try:
        requirements = requirements_in(text)
    except RequirementsFault as exc:
        return FileFault(path, "InstallError", str(exc)), None
    digest = hashlib.sha256(data).hexdigest()
    return SourceFile(path, text, digest, not path.name.startswith("_") and _has_tools(tree), requirements), tree


def _tree_of(text: str, path: Path) -> ast.Module:
    """Parse a file.

    Raises the errors of `ast.parse`, except those caused by other threads: CPython counts the depth of two threads'
    trees together.
    """
    for _ in range(_PARSE_TRIES):
        try:
            return ast.parse(text, str(path))
        except SystemError:  # "AST constructor recursion depth mismatch"
            continue
    return ast.parse(text, str(path))


def _has_tools(tree: ast.Module) -> bool:
    """Return whether tools may be found in the file, which is then imported. LangChain's tools can be made in many ways."""
    return _marks_tools(tree) or any(map(_imports_langchain, tree.body))


def _imports_langchain(statement: ast.stmt) -> bool:
    names = [each.name for each in statement.names] if isinstance(statement, ast.Import) else []
    names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) and not statement.level else []
    return any(re.match(r"langchain(_\w+)?(\.|$)", each) for each in names)


def _marks_tools(tree: ast.Module) -> bool:
    """Return whether a function at the top of the file is decorated with something called `tool`, or a `ToolDef` is made there."""
    functions = (each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(_is_tool(decorator) for function in functions for decorator in function.decorator_list) or any(
        _makes_tool(each) for each in tree.body
    )


def _is_tool(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return _is_named(called, "tool")


def _is_named(called: ast.expr, name: str) -> bool:
    return (isinstance(called, ast.Name) and called.id == name) or (
        isinstance(called, ast.Attribute) and called.attr == name
    )


def _makes_tool(statement: ast.stmt) -> bool:
    """Return whether it is `count = tool(function)`, `count = tool(effect="read")(function)`, or has a `ToolDef(...)`, also in a list."""
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    made = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    return any(
        isinstance(each, ast.Call) and (_is_tool(each) or _is_tool(each.func) or _is_named(each.func, "ToolDef"))
        for each in made
    )


class RequirementsFault(Exception):
    """The requirements cannot be read. The message says why, in one sentence."""


def requirements_in(text: str) -> Requirements:
    """Return the packages of a file's block `# /// script`; none without a block. Raises `RequirementsFault`."""
    if "# /// script" not in text:
        return frozenset()
    blocks = [each["content"] for each in _BLOCK.finditer(text) if each["type"] == "script"]
    if len(blocks) != 1:
        raise RequirementsFault("It has several blocks `# /// script`, or one without an end.")
    lines = (line[2:] if line.startswith("# ") else line[1:] for line in blocks[0].splitlines())
    try:
        said = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as exc:
        raise RequirementsFault(f"Its block `# /// script` is no TOML: {str(exc)[:_SHOWN]}.") from None
    _check_python(said.get("requires-python"))
    named = said.get("dependencies", [])
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise RequirementsFault("`dependencies` is no list of texts.")
    return _normal(named)


def listed_requirements(text: str) -> Requirements:
    """Return the packages of a `requirements.txt`, which has one on each line, and no options. Raises `RequirementsFault`."""
    lines = (re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip() for line in text.splitlines())
    named = [line for line in lines if line]
    if option := next((line for line in named if line.startswith("-")), None):
        raise RequirementsFault(f"{option[:_SHOWN]!r} is an option: the host has those, in `tool_install_options`.")
    return _normal(named)


def _check_python(wanted: Any) -> None:
    if wanted is None:
        return
    try:
        is_met = SpecifierSet(wanted).contains(platform.python_version(), prereleases=True)
    except (InvalidSpecifier, TypeError, AttributeError):
        raise RequirementsFault(f"`requires-python` is none: {str(wanted)[:_SHOWN]!r}.") from None
    if not is_met:
        raise RequirementsFault(f"It needs Python {wanted[:_SHOWN]}, and this is {platform.python_version()}.")


def _normal(named: Iterable[str]) -> Requirements:
    found = set[str]()
    for line in named:
        try:
            found.add(str(Requirement(line)))
        except InvalidRequirement:
            raise RequirementsFault(f"{line[:_SHOWN]!r} names no package.") from None
    if len(found) > _MOST_PACKAGES:
        raise RequirementsFault(f"It asks for {len(found)} packages; at most {_MOST_PACKAGES} are installed.")
    return frozenset(found)
