"""Runs a whole fleet on this machine: `toolfleet up`, and `demo`, which plays the scripts in `examples/` on a fleet of its own."""

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from toolfleet_cli.console import err, need, note
from toolfleet_registry.errors import SettingsError

if TYPE_CHECKING:
    from toolfleet_cli.local.fleet import LocalFleet

_INTERRUPTED = 130
_PIPE_WIDTH = 140  # room for the tables where no terminal says how wide it is


def register(app: typer.Typer) -> None:
    """Give the app the commands."""
    app.command()(up)
    app.command()(demo)


def up(
    *,
    modules: Annotated[
        list[Path] | None,
        typer.Option(
            "--module",
            metavar="FOLDER",
            help="Serve this module, too; `.` is the one here. Instead of the examples. May be repeated.",
        ),
    ] = None,
    tools: Annotated[
        list[Path] | None,
        typer.Option(
            "--tools",
            metavar="FOLDER",
            help="Serve the functions with `@tool` in its Python files, too. Instead of the examples. May be repeated.",
        ),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Restart a module when its Python files change.")] = False,
    gateway: Annotated[
        bool,
        typer.Option("--gateway/--no-gateway", help="Start a gateway, too; it does by default.", show_default=False),
    ] = True,
) -> None:
    """Run a whole fleet here, in the foreground: Redis, workers, beat, Flower, a gateway; in a clone the example modules, too.

    The other commands find it from this folder and those below. Its data lie in `.toolfleet/`.
    """
    need("up")
    from toolfleet_cli.commands.up import run_up

    raise typer.Exit(run_up(modules or [], tools or [], reload=reload, gateway=gateway))


def demo() -> None:
    """Play an agent's day on a fleet of its own, which is gone afterwards. Runs from a clone of the project."""
    need("demo")
    raise typer.Exit(_run_demo())


def _run_demo() -> int:
    """Play the three acts and leave nothing behind. Returns the exit code."""
    from toolfleet_cli.local.fleet import local_fleet
    from toolfleet_cli.local.modules import find_examples, find_examples_folder, hosted_modules
    from toolfleet_cli.local.supervisor import StopRequested
    from toolfleet_registry.settings import load_settings

    examples = find_examples_folder()
    if examples is None:
        raise SettingsError("The demo runs from a clone of the project, where its example modules are.")
    calls, chain, tools = (_load(examples / f"{name}.py") for name in ("demo", "demo_chain", "demo_tools"))
    with TemporaryDirectory(prefix="toolfleet-demo-") as name, contextlib.chdir(name), ExitStack() as stack:
        # From in there neither a running fleet nor another `toolfleet.toml` is seen: the demo has modules of its own.
        folder = Path(name)
        stage = tools.Stage(folder)
        stack.enter_context(stage.service())
        stage.write()
        settings = load_settings(module_services={}, scheduler=True)
        try:
            with (
                err.status("Starting a fleet …") as status,
                local_fleet(
                    folder,
                    settings=settings,
                    own_modules=find_examples(),
                    hosted=hosted_modules([], settings, start=folder, taken=(), not_applied={}),
                    agent=chain.AGENT_ENV,
                    announce=note,
                ) as fleet,
            ):
                status.stop()
                console = _console()
                return 0 if all([*_played(calls, chain, tools, stage, fleet, console)]) else 1
        except StopRequested:
            return _INTERRUPTED


def _played(
    calls: ModuleType, chain: ModuleType, tools: ModuleType, stage: Any, fleet: "LocalFleet", console: Console
) -> Iterator[bool]:
    """Play each act; whether it went as it should."""
    yield asyncio.run(calls.play(fleet.settings, console))
    yield asyncio.run(chain.play(fleet, console))
    yield asyncio.run(tools.play(fleet, stage, console))


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _load(path: Path) -> ModuleType:
    name = f"toolfleet_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SettingsError(f"The demo's script is missing: {path}.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module
