"""One Redis, one module and one worker for all tests of a file that do not break them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web

from support.fleet import TestBed, WorkerProcess
from support.module_server import ModuleServer, Request, serve
from toolfleet import Caller, ToolFleet
from toolfleet_workers.redis_server import redis_server

OWNER = Caller(user_id="ada", permission="owner", allowed_modules="*")


async def echo(request: Request) -> dict[str, Any]:
    return {"success": True, "result": request["arguments"]}


async def nap(request: Request) -> dict[str, Any]:
    await asyncio.sleep(request["arguments"].get("seconds", 1))
    return {"success": True, "result": "awake"}


async def fail(request: Request) -> dict[str, Any]:
    return {"success": False, "error": "I cannot."}


async def turn_away(request: Request) -> web.Response:
    return web.Response(status=503, headers={"Retry-After": "0"}, text="later")


async def hang_up(request: Request) -> web.StreamResponse:
    """Answers half of what it promises: the effect may have happened."""
    return web.Response(status=200, headers={"Content-Type": "application/json"}, text='{"tool_name": ')


def make_module(name: str = "owls") -> ModuleServer:
    module = ModuleServer(name)
    module.add("echo", echo, effect="read")
    module.add("nap", nap, effect="read")
    module.add("nap_once", nap, effect="once")
    module.add("brief_nap", nap, effect="once", timeout_seconds=0.3)
    module.add("fail", fail)
    module.add("fail_once", fail, effect="once")
    module.add("turn_away", turn_away, effect="once")
    module.add("garble", hang_up, effect="once")
    module.add("garble_read", hang_up, effect="read")
    module.add("admin_only", echo, required_permission="admin")
    return module


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    """A module with tools that work, nap, fail, turn away and garble."""
    with serve(make_module()) as module:
        yield module


@pytest.fixture(scope="module")
def bed(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def worker(bed: TestBed) -> Iterator[WorkerProcess]:
    with bed.worker() as worker:
        yield worker


@pytest.fixture
async def fleet(bed: TestBed, worker: WorkerProcess) -> AsyncIterator[ToolFleet]:
    """An agent's fleet, with a worker."""
    for module in bed.modules:
        module.forget()
    async with ToolFleet(settings=bed.settings) as fleet:
        yield fleet


@pytest.fixture
def owner() -> Caller:
    return OWNER
