"""Runs a whole fleet for tests: a Redis, a worker and modules, which end with the test."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from toolfleet import Caller, Settings, SettingsError, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.environment import beat_command, environment_of, worker_command
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_cli.testing.served import child, served, served_elsewhere
from toolfleet_modules.sdk.module import Module
from toolfleet_registry.settings import load_settings
from toolfleet_tasks.client.fleet import SyncToolFleet
from toolfleet_tasks.messages.signing import module_keys

_CALL_SECONDS = 60.0
_OWNER = Caller(permission="owner", allowed_modules="*")


class RunningFleet:
    """A fleet under test: `call` for short, `sync` and `agent()` for everything that an agent can do.

    `folder` has the logs of its processes.
    """

    def __init__(self, settings: Settings, sync: SyncToolFleet, folder: Path) -> None:
        self.settings = settings
        self.sync = sync
        self.folder = folder

    def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Run a tool as a user with all rights, within a minute."""
        return self.sync.call(ToolCall(tool_name=tool, arguments=arguments), _OWNER, timeout=_CALL_SECONDS)

    def agent(self) -> ToolFleet:
        """Return an agent for async tests: `async with fleet.agent() as agent: await agent.call(…)`."""
        return ToolFleet(settings=self.settings)


@contextmanager
def run_fleet(
    *modules: Module | str, folder: Path, with_beat: bool = False, **settings: Any
) -> Generator[RunningFleet]:
    """Start a fleet with these modules, and end all of it. From the main thread.

    A module is a `Module`, which is served from this process, or `package.main:app`, which is imported by another. Data
    and logs are in `folder`. `with_beat`: periodic work is done, as jobs need it. `settings` are named as in
    `toolfleet.toml`. Raises `SettingsError`, or `FleetError` if something does not start.
    """
    with ExitStack() as stack:
        url = stack.enter_context(redis_server(folder / "redis"))
        made = load_settings(**{"redis_url": url, **settings})
        services = dict(made.module_services)
        for module in modules:
            name = module.name if isinstance(module, Module) else module.partition(":")[0].partition(".")[0]
            if name in services:
                raise SettingsError(f"There are two modules named {name!r}.")
            services[name] = stack.enter_context(_served(module, name, folder, made))
        made = made.model_copy(update={"module_services": services})
        env = environment_of(made)
        if with_beat:
            stack.enter_context(child(beat_command(), folder / "beat.log", "maxinterval ->", env=env))
        stack.enter_context(child(worker_command("all"), folder / "worker.log", "toolfleet worker ready", env=env))
        yield RunningFleet(made, stack.enter_context(ToolFleet.sync(settings=made)), folder)


@contextmanager
def _served(module: Module | str, name: str, folder: Path, settings: Settings) -> Generator[str]:
    if isinstance(module, Module):
        with served(module) as url:
            yield url
        return
    key = module_keys(settings.signing_keys, name)
    with served_elsewhere(module, folder, {"TOOLFLEET_MODULE_KEY": key}) as url:
        yield url
