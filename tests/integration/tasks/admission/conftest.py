"""A fleet with owls over each transport, and a worker by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from support.module_server import ModuleServer
from toolfleet_registry.settings import Settings


@pytest.fixture(params=["fast", "fast-elsewhere", "stock"])
def transport(request: pytest.FixtureRequest) -> str:
    """What carries the calls; `elsewhere` is a broker in another database than the ledger."""
    return str(request.param)


@pytest.fixture
def make(redis_url: str, owls: ModuleServer, transport: str) -> Callable[..., Settings]:
    """Settings of a fleet with this file's owls."""
    fields: dict[str, Any] = {
        "redis_url": redis_url,
        "module_services": {"owls": owls.url},
        "fast_transport": transport != "stock",
    }
    if transport == "fast-elsewhere":
        fields["broker_url"] = f"{redis_url.rpartition('/')[0]}/1"
    return lambda **more: Settings(**{**fields, **more})


@pytest.fixture
def settings(make: Callable[..., Settings]) -> Settings:
    return make()
