"""`python -m pauses [--pauses N] [--pairs N] [--once N] [--seed N] [--kind plain|sdk]`: exits with 1 if anything does not hold."""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from pauses.run import LEASE_SECONDS, PAUSE_SECONDS, Plan, run


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m pauses", description="Workers that stand still beyond their leases."
    )
    options.add_argument("--pauses", type=int, default=24)
    options.add_argument("--pairs", type=int, default=300, help="of writes in each burst")
    options.add_argument("--once", type=int, default=60, help="things to do once in each burst")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--kind", choices=("plain", "sdk"), help="of module; both in turn without it")
    chosen = options.parse_args()
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]  # a run states its own
    return max(_run(kind, chosen) for kind in ((chosen.kind,) if chosen.kind else ("plain", "sdk")))


def _run(kind: str, chosen: argparse.Namespace) -> int:
    plan = Plan(kind, chosen.pauses, chosen.pairs, chosen.once, chosen.seed)
    with tempfile.TemporaryDirectory(prefix="toolfleet-pauses-") as folder:
        os.chdir(folder)
        ran = asyncio.run(run(plan, Path(folder)))
        os.chdir("/")
    told = ran.told
    print(f"{kind} module: {plan.pauses} pauses of {PAUSE_SECONDS:.0f} s, leases of {LEASE_SECONDS} s")  # noqa: T201
    print(f"  {told.calls} calls, {ran.done} effects: {dict(told.ended.most_common())}")  # noqa: T201
    print(f"  {len(told.confirmed)} pairs confirmed, the older write last in {len(ran.overwritten)}")  # noqa: T201
    print(f"  {len(told.repeated)} once calls found not done and repeated, {len(ran.doubled)} done twice")  # noqa: T201
    return int(bool(ran.overwritten or ran.doubled))


if __name__ == "__main__":
    sys.exit(main())
