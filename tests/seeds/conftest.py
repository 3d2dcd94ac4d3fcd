"""A fleet of modules as the documents have them: plain HTTP services that declare no effects."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from aiohttp import web

from seeds.rows import ROWS
from support.fleet import TestBed
from support.module_server import ModuleServer, Request, serve
from support.owls import echo, nap
from support.worker_process import WorkerProcess
from toolfleet import ToolFleet
from toolfleet_cli.local.redis_server import redis_server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect the tests here of a row that is open to fail: one that passes says that the row is open no more."""
    open_rows = {test: number for number, row in ROWS.items() if row["state"] == "open" for test in row["shown"]}
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test.startswith("tests/seeds/") and test in open_rows:
            item.add_marker(pytest.mark.xfail(reason=f"row {open_rows[test]} is open", strict=True))


async def refuse(_: Request) -> web.Response:
    return web.Response(status=500, text="out of paper")


async def miss(_: Request) -> web.Response:
    return web.Response(status=404, text="no such page")


async def decline(_: Request) -> dict[str, Any]:
    return {"success": False, "error": "no luck"}


SEARCH = {
    "description": "Search the web and return results",
    "parameters": [
        {"name": "query", "type": "string", "description": "Search query"},
        {"name": "max_results", "type": "integer", "description": "Max results", "required": False},
        {"name": "order", "type": "string", "description": "Order", "required": False, "enum": ["new", "best"]},
    ],
}


def make_modules() -> dict[str, ModuleServer]:
    """The example of the document, a module whose tools fail, one that never answers, and one that gives no manifest."""
    modules = {
        name: ModuleServer(name) for name in ("research", "file_manager", "code_executor", "scheduler", "faulty")
    }
    modules["mute"] = ModuleServer("mute", is_mute=True)
    modules["research"].add("web_search", echo, required_permission="guest", **SEARCH)
    modules["research"].add("fetch_webpage", echo, required_permission="guest")
    modules["file_manager"].add("create_document", echo, required_permission="guest")
    modules["file_manager"].add("delete_file", echo, required_permission="user")
    modules["code_executor"].add("run_python", echo, required_permission="user")
    modules["code_executor"].add("run_shell", echo, required_permission="admin")
    modules["scheduler"].add("look", echo, required_permission="admin")
    modules["faulty"].add("e500", refuse)
    modules["faulty"].add("e404", miss)
    modules["faulty"].add("fail", decline)
    modules["faulty"].add("nap", nap, timeout_seconds=0.3)
    modules["faulty"].add("issue.create", echo)
    modules["faulty"].add("closed", echo, required_permission="superuser")
    return modules


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleServer]:
    return make_modules()


@pytest.fixture(scope="module")
def seeded(modules: dict[str, ModuleServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    folder = tmp_path_factory.mktemp("seeded")
    (folder / "logs").mkdir()
    with ExitStack() as stack:
        for module in modules.values():
            stack.enter_context(serve(module))
        url = stack.enter_context(redis_server(folder / "redis"))
        yield TestBed(url, tuple(modules.values()), folder / "logs")


@pytest.fixture(scope="module")
def seeded_worker(seeded: TestBed) -> Iterator[WorkerProcess]:
    with seeded.worker() as worker:
        yield worker


@pytest.fixture
async def agent(seeded: TestBed, seeded_worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    async with ToolFleet(settings=seeded.settings) as fleet:
        yield fleet
