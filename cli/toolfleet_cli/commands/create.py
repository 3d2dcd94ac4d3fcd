"""Writes the files of a new module, or of a new tool: `toolfleet create`."""

import importlib.util
import keyword
import os
import re
import shutil
import sys
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer

from toolfleet_cli.console import say
from toolfleet_registry.contracts.names import RESERVED
from toolfleet_registry.errors import SettingsError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_OURS = RESERVED | {"modules", "tests", "test"}
_RENAMED = {"dockerignore": ".dockerignore"}  # a template that begins with a dot would be hidden from us, too


def register(app: typer.Typer) -> None:
    """Give the app the command."""
    app.command()(create)


def create(
    kind: Annotated[Literal["module", "tool"], typer.Argument(help="What to create.", show_default=False)],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name: the first part of a module's tools' names, or the second.")
    ],
    *,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="FOLDER",
            help="Where a module's folder is to be made [.], or the tool folder [.toolfleet/tools].",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Create a module or a tool, with tests.

    A module is a folder of its name: two tools, tests for them, a pyproject.toml, a Dockerfile, and a README with what
    comes next. A tool is a Python file in a tool folder, and a test next to it: a fleet that serves the folder has the
    tool at once.
    """
    if kind == "module":
        folder = create_module(name, directory or Path())
        say(f"Made the module {name} in {folder}. Next:\n")
        say(f"  cd {folder}")
        say("  pytest                              # its tests")
        say("  toolfleet up --module .             # a fleet with it; stays until Ctrl-C")
        say(f"  toolfleet call {name}.greet name=Ada   # from another shell, there")
        return
    own = Path(".toolfleet", "tools")
    folder = directory or own
    say(f"Made the tool {name} in {create_tool(name, folder)}. Next:\n")
    served = "" if folder == own else f" --tools {folder}"
    say(f"  toolfleet up{served}    # a fleet with it, unless one serves the folder already")
    say(f"  toolfleet call {folder.resolve().name}.{name} text=owl times=2")


def create_module(name: str, directory: Path) -> Path:
    """Write the files of a module into `directory/name`, all of them or none. Returns that folder.

    Raises `SettingsError` for a name that will not do, and for a folder that is there already.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name[:60]!r} is no name for a module: small letters, digits and _ (at most 50), a letter first."
        )
    folder = directory / name
    if os.path.lexists(folder):  # before the rest: Python may find it, and take it for a package that is installed
        raise SettingsError(f"{folder} is there already: choose another name, or another --directory.")
    _check(name)
    if not directory.is_dir():
        raise SettingsError(f"There is no folder {directory}.")
    values = {"name": name, "version": version("toolfleet")}
    contents = _contents("module", values)
    draft = directory / f".{name}.{os.getpid()}"
    try:
        for path, text in contents.items():
            target = draft / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return folder


def create_tool(name: str, directory: Path) -> Path:
    """Write a tool's file into `directory`, which is made if it is missing, and a test next to it.

    Returns the tool's file.

    Raises `SettingsError` for an invalid name, and for an existing file.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name[:60]!r} is no name for a tool: small letters, digits and _ (at most 50), a letter first."
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in sys.stdlib_module_names or name == "tool":
        raise SettingsError(f"{name!r} means something in Python already: choose another name.")
    if name.startswith("test_"):
        raise SettingsError(f"{name!r} is how a test is named: choose another name.")
    contents = _contents("tool", {"name": name})
    if taken := [path for path in contents if os.path.lexists(directory / path)]:
        raise SettingsError(f"{directory / taken[0]} is there already: choose another name, or another --directory.")
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in contents.items():
        draft = directory / f".{path}.{os.getpid()}"
        draft.write_text(text, encoding="utf-8")
        draft.rename(directory / path)  # a host that watches never sees half of it
    return directory / f"{name}.py"


def _contents(kind: str, values: dict[str, str]) -> dict[str, str]:
    """Return the files' texts by their paths."""
    return {path: Template(text).substitute(values) for path, text in _templates(kind, values["name"]).items()}


def _check(name: str) -> None:
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in sys.stdlib_module_names:
        raise SettingsError(f"{name!r} means something in Python already: choose another name.")
    if name in _OURS:
        raise SettingsError(f"{name!r} means something to the fleet already: choose another name.")
    if importlib.util.find_spec(name) is not None:
        raise SettingsError(
            f"A Python package {name!r} is installed here, which yours would hide: choose another name."
        )


def _templates(kind: str, name: str) -> dict[str, str]:
    """Return the texts by their files' paths."""
    found: dict[str, str] = {}

    def collect(folder: Traversable, before: str) -> None:
        for each in folder.iterdir():
            if each.is_dir():
                collect(each, f"{before}{each.name}/")
            else:
                file = each.name.removesuffix(".txt").replace("NAME", name)
                found[before + _RENAMED.get(file, file)] = each.read_text(encoding="utf-8")

    collect(files("toolfleet_cli") / "templates" / kind, "")
    return found
