"""Plays the scripts in `examples/` on a fleet of its own: `toolfleet demo`."""

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from rich.console import Console

from toolfleet_cli.console.output import err, note
from toolfleet_cli.local.fleet import LocalFleet, local_fleet
from toolfleet_cli.local.modules import find_examples, find_examples_folder, hosted_modules
from toolfleet_cli.local.stop_signals import StopRequested
from toolfleet_registry.errors import SettingsError
from toolfleet_registry.settings import load_settings

_INTERRUPTED = 130
_PIPE_WIDTH = 140  # room for the tables where no terminal says how wide it is


def run_demo() -> int:
    """Play the three acts and leave nothing behind. Returns the exit code."""
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
    calls: ModuleType, chain: ModuleType, tools: ModuleType, stage: Any, fleet: LocalFleet, console: Console
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
