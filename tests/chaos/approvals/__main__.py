"""`python -m chaos.approvals [--cases N] [--faults N] [--seconds N] [--seed N]`: exits with 1 if anything does not hold."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from chaos.approvals.run import ApprovalPlan, run_approvals


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m chaos.approvals", description="People who decide about calls under faults."
    )
    options.add_argument("--cases", type=int, default=10_000)
    options.add_argument("--faults", type=int, default=120)
    options.add_argument("--seconds", type=float, default=600, help="how long cases begin and faults happen")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--folder", type=Path, help="for logs and the journal; otherwise kept if something is wrong")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]  # a run states its own
    folder = (chosen.folder or Path(tempfile.mkdtemp(prefix="toolfleet-chaos-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    plan = ApprovalPlan(chosen.cases, chosen.faults, chosen.seconds, chosen.seed)
    ran = asyncio.run(run_approvals(plan, folder))
    print(ran.report)  # noqa: T201 - what a run is for
    if ran.violations:
        print(f"\n{len(ran.violations)} violations; everything is in {folder}")  # noqa: T201
        return 1
    if chosen.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
