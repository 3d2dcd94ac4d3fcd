"""The short form of the proof of approvals: people who decide about calls under every kind of fault. `make chaos` has the long one."""

from pathlib import Path

import pytest

from chaos.approvals.run import FAULTS, ApprovalPlan, run_approvals


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_nothing_runs_that_nobody_has_approved(tmp_path: Path) -> None:
    """Each fault happens once; what was approved runs once, what was not does not, and every case is decided."""
    plan = ApprovalPlan(cases=150, faults=len(FAULTS), seconds=12, seed=3)

    ran = await run_approvals(plan, tmp_path)

    assert ran.violations == [], ran.report
