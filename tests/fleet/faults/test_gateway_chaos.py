"""The short form of the proof of gateways: clients that repeat themselves under every kind of fault. `make chaos` has the long one."""

from pathlib import Path

import pytest

from chaos.gateways.run import GatewayPlan, run_gateways
from chaos.gateways.scene import GATEWAY_FAULTS


@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_a_call_that_is_repeated_at_another_gateway_runs_once(tmp_path: Path) -> None:
    """Each fault happens once, the modules' journal shows no call twice, and each client has the first result, byte for byte."""
    plan = GatewayPlan(calls=120, faults=len(GATEWAY_FAULTS), seconds=6, seed=3)

    ran = await run_gateways(plan, tmp_path)

    assert ran.violations == [], ran.report
