"""Provides Toolfleet's pytest fixtures: `toolfleet_module` and `toolfleet_fleet`, with or without pytest-asyncio.

::

    def test_a_tool(toolfleet_module):  # in process, without sockets: milliseconds
        owls = toolfleet_module(module)
        assert owls.call("count", day=1).result == {"owls": 5}


    def test_the_whole_way(toolfleet_fleet):  # a real Redis and a real worker: seconds
        fleet = toolfleet_fleet(module, default_timeout=5)
        assert fleet.call("owls.count", day=1).success

What a test has started ends with it. It is loaded wherever Toolfleet is installed, so it imports next to nothing.
"""

from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from toolfleet_cli.testing.fleet import RunningFleet
    from toolfleet_cli.testing.in_process import InProcess
    from toolfleet_modules.sdk.module import Module
    from toolfleet_registry.contracts import Level


class OpenModule:
    """The type of the fixture `toolfleet_module`."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, module: "Module", *, user_id: str | None = None, permission: "Level" = "user") -> "InProcess":
        """Start the module in this process. `user_id` and `permission` are those of calls that name none."""
        from toolfleet_cli.testing.in_process import in_process

        return self._stack.enter_context(in_process(module, user_id=user_id, permission=permission))


class StartFleet:
    """The type of the fixture `toolfleet_fleet`."""

    def __init__(self, stack: ExitStack, folders: pytest.TempPathFactory) -> None:
        self._stack, self._folders = stack, folders

    def __call__(self, *modules: "Module | str", with_beat: bool = False, **settings: Any) -> "RunningFleet":
        """Start a fleet of its own, as `run_fleet` does."""
        from toolfleet_cli.testing.fleet import run_fleet

        folder = self._folders.mktemp("toolfleet")
        return self._stack.enter_context(run_fleet(*modules, folder=folder, with_beat=with_beat, **settings))


@pytest.fixture
def toolfleet_module() -> Generator[OpenModule]:
    """Starts a `toolfleet.sdk.Module` in this process: `toolfleet_module(module).call("tool", argument=1)`.

    The call goes through the module's own app: arguments are checked, results bounded, progress is in `result.progress`.
    """
    with ExitStack() as stack:
        yield OpenModule(stack)


@pytest.fixture
def toolfleet_fleet(tmp_path_factory: pytest.TempPathFactory) -> Generator[StartFleet]:
    """Starts a whole fleet: a Redis on a free port, a worker in a process of its own, and the given modules.

    `toolfleet_fleet(module, "owls.main:app", default_timeout=5)`: a module object is served from this process, so that a
    test can look into it; an import path from another one. The rest are settings. For a fleet that several tests share,
    use `toolfleet_cli.testing.fleet.run_fleet` in a fixture of your own.
    """
    with ExitStack() as stack:
        yield StartFleet(stack, tmp_path_factory)
