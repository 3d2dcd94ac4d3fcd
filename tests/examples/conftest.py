"""The example modules over real HTTP, each served once from this process."""

from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_core import opening
from agent_core.app import create_app
from agent_core.settings import AgentSettings
from support.core.core_bot import SECRET, Bot, Open
from support.core.reciting_model import Line, RecitingModel
from support.fleet import TestBed
from support.module_server import ModuleServer
from support.modules.example_modules import Module, serving_here
from support.modules.workshop import end, processes_of
from support.servers.postgres import PostgresServer, find_postgres, postgres_server
from support.waiting import wait_until_sync
from toolfleet_registry.settings import Settings

MODULES = (
    "claude_code",
    "code_executor",
    "deployer",
    "file_manager",
    "knowledge",
    "location",
    "report_builder",
    "research",
)


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str], Module]]:
    """Serves a module from its first use on; all share one root for users' files."""
    folder = tmp_path_factory.mktemp("modules")
    started: dict[str, Module] = {}
    with ExitStack() as stack:

        def start(name: str) -> Module:
            if name not in started:
                started[name] = stack.enter_context(serving_here(name, folder))
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


@pytest.fixture
def knowledge(serve: Callable[[str], Module]) -> Module:
    return serve("knowledge")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A test's own; when the test ends, nothing runs in it any more."""
    yield tmp_path
    try:
        wait_until_sync(lambda: not processes_of(tmp_path), "nothing is left running")
    finally:
        end(processes_of(tmp_path))


@pytest.fixture(scope="session")
def postgres_process() -> Generator[PostgresServer]:
    if (programs := find_postgres()) is None:
        pytest.skip("there is no PostgreSQL for this machine")
    with postgres_server(programs) as server:
        yield server


@pytest.fixture
def postgres(postgres_process: PostgresServer) -> PostgresServer:
    """Without our tables."""
    postgres_process.empty()
    return postgres_process


@pytest.fixture
def opened(bed: TestBed, worker: object, owls: ModuleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a core with a reciting model; a second one finds the first one's conversations."""
    owls.forget()
    monkeypatch.setenv("FILE_MANAGER_ROOT", str(tmp_path / "files"))

    @asynccontextmanager
    async def open_core(*lines: Line, **settings: Any) -> AsyncGenerator[Bot]:
        model = RecitingModel(*lines)
        monkeypatch.setattr(opening, "_model", lambda *_: model)
        values: dict[str, Any] = {
            "database_url": f"sqlite:///{tmp_path / 'agent.db'}",
            "patience_seconds": 2,
            **settings,
        }
        fleet_settings: Settings = bed.settings.model_copy(update={"core_secret": SECRET})
        app = create_app(AgentSettings(**values), fleet_settings)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://core") as http,
        ):
            yield Bot(http, app)

    return open_core
