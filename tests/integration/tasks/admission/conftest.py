"""A fleet with owls, whose calls wait here or there, and a worker by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from support.module_server import ModuleServer
from toolfleet_registry.settings import Settings


@pytest.fixture(params=["here", "elsewhere"])
def broker(request: pytest.FixtureRequest) -> str:
    """Where calls wait: in the database of the ledger, or elsewhere."""
    return str(request.param)


@pytest.fixture
def make(redis_url: str, owls: ModuleServer, broker: str) -> Callable[..., Settings]:
    """Settings of a fleet with this file's owls."""
    fields: dict[str, Any] = {
        "redis_url": redis_url,
        "module_services": {"owls": owls.url},
    }
    if broker == "elsewhere":
        fields["broker_url"] = f"{redis_url.rpartition('/')[0]}/1"
    return lambda **more: Settings(**{**fields, **more})


@pytest.fixture
def settings(make: Callable[..., Settings]) -> Settings:
    return make()
