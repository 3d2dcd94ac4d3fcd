"""What a gateway's OpenAPI document says is so, for a little of what `make test-clients` has Schemathesis send."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gateways.keyed_gateway import KeyedGateway
from support.gateways.schema_fuzz import Plan, fuzzed_gateway, report_of
from support.module_server import ModuleServer

# What waits for hosts and modules, which are away, is left to the long form.
_PLAN = Plan("fuzzing", examples=1, seconds=100, without=["reloadTools", "refreshTools"])


@pytest.fixture
def gateway(owls: ModuleServer, tmp_path: Path) -> Iterator[KeyedGateway]:
    with fuzzed_gateway(owls, tmp_path) as gateway:
        yield gateway


async def test_schemathesis_finds_nothing(gateway: KeyedGateway, tmp_path: Path) -> None:
    """Every answer to an admin is one that the document has, and nothing breaks."""
    code, printed = await report_of(gateway, "ada", _PLAN, tmp_path / "report")

    assert code == 0, printed
    assert "request_failed" not in gateway.gateway.process.said()
