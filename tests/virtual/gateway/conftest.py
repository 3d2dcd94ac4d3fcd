"""What tests of gateways share: two over one Redis, with one key, and a worker."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from bed.fleet import Bed, Gateway
from support.module_server import ModuleServer


@pytest.fixture
def module(owls: ModuleServer) -> ModuleServer:
    """What the gateways serve. A file may have another one."""
    return owls


@pytest.fixture
def given() -> dict[str, Any]:
    """The settings of the gateways and the worker. A file may have others."""
    return {}


@pytest.fixture
async def gateways(bed: Bed, module: ModuleServer, given: dict[str, Any]) -> tuple[Gateway, Gateway]:
    """Two, which a client could meet behind one address."""
    bed.given |= given
    await bed.serve(module)
    await bed.worker()
    return await bed.gateway(), await bed.gateway()


@pytest.fixture
async def here(gateways: tuple[Gateway, Gateway]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the first gateway."""
    async with gateways[0].client() as client:
        yield client


@pytest.fixture
async def there(gateways: tuple[Gateway, Gateway]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the other one."""
    async with gateways[1].client() as client:
        yield client
