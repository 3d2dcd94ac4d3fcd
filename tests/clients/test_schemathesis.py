"""What a gateway's OpenAPI document says is so, whatever Schemathesis sends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gateways.keyed_gateway import KeyedGateway
from support.gateways.schema_fuzz import Plan, fuzzed_gateway, report_of
from support.module_server import ModuleServer

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1500)]
_PHASES, _SECONDS = "examples,coverage,fuzzing,stateful", 1_200


@pytest.fixture
def gateway(owls: ModuleServer, tmp_path: Path) -> Iterator[KeyedGateway]:
    with fuzzed_gateway(owls, tmp_path) as gateway:
        yield gateway


@pytest.mark.parametrize(("who", "examples"), [("ada", 200), ("gus", 50)])
async def test_schemathesis_finds_nothing(gateway: KeyedGateway, who: str, examples: int, tmp_path: Path) -> None:
    """Every answer to an admin, and to a guest who may do nothing, is one that the document has; nothing breaks, and all goes on."""
    code, printed = await report_of(gateway, who, Plan(_PHASES, examples, _SECONDS), tmp_path / "report")

    assert code == 0, printed
    assert "request_failed" not in gateway.gateway.process.said()
    assert (await gateway.get(who, "/readyz")).status_code == 200
