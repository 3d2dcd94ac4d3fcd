"""`python -m chaos.gateways [--calls N] [--faults N] [--seconds N] [--seed N] [--doors rest mcp agents]`: exits with 1 if anything does not hold."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from chaos.gateways.clients import WAYS
from chaos.gateways.run import GatewayPlan, run_gateways


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m chaos.gateways", description="Clients of two gateways that repeat themselves under faults."
    )
    options.add_argument("--calls", type=int, default=2_000)
    options.add_argument("--faults", type=int, default=64)
    options.add_argument("--seconds", type=float, default=200, help="how long calls are made and faults happen")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--doors", nargs="+", choices=list(WAYS), default=list(WAYS), help="how clients call")
    options.add_argument("--folder", type=Path, help="for logs and the journal; otherwise kept if something is wrong")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]  # a run states its own
    folder = (chosen.folder or Path(tempfile.mkdtemp(prefix="toolfleet-chaos-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    plan = GatewayPlan(chosen.calls, chosen.faults, chosen.seconds, chosen.seed, tuple(chosen.doors))
    ran = asyncio.run(run_gateways(plan, folder))
    print(ran.report)  # noqa: T201 - what a run is for
    if ran.violations:
        print(f"\n{len(ran.violations)} violations; everything is in {folder}")  # noqa: T201
        return 1
    if chosen.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
