"""The example modules as real servers, each started once."""

from collections.abc import Callable, Generator
from contextlib import ExitStack

import pytest

from support.example_modules import Module, running

MODULES = ("claude_code", "code_executor", "deployer", "file_manager", "report_builder", "research")


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str], Module]]:
    """Starts a module at the first use; all share one root for users' files."""
    folder = tmp_path_factory.mktemp("modules")
    started: dict[str, Module] = {}
    with ExitStack() as stack:

        def start(name: str) -> Module:
            if name not in started:
                started[name] = stack.enter_context(running(name, folder))
            return started[name]

        yield start


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest, serve: Callable[[str], Module]) -> Module:
    """Each of the modules in turn."""
    return serve(str(request.param))


@pytest.fixture
def file_manager(serve: Callable[[str], Module]) -> Module:
    return serve("file_manager")


@pytest.fixture
def code_executor(serve: Callable[[str], Module]) -> Module:
    return serve("code_executor")


@pytest.fixture
def research(serve: Callable[[str], Module]) -> Module:
    return serve("research")


@pytest.fixture
def report_builder(serve: Callable[[str], Module]) -> Module:
    return serve("report_builder")
