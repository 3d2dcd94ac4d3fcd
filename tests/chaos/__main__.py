"""`python -m chaos [calls rest mcp approvals] [--minutes N] [--seed N]`: exits with 1 if anything does not hold."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.plan import Plan
from chaos.run import run
from support.servers.rabbitmq import is_installed

if TYPE_CHECKING:  # with all frameworks, which the first part needs not
    from chaos.approvals.run import ApprovalRun
    from chaos.gateways.clients import Door
    from chaos.gateways.run import GatewayRun

_MINUTES = 20.0


@dataclass(frozen=True)
class Part:
    """How long a part runs, as a share of `--minutes`, and how many calls, jobs and faults it has in 20 minutes of the option."""

    share: float
    calls: int
    faults: int
    jobs: int = 0


PARTS = {
    "calls": Part(1, calls=20_000, faults=200, jobs=2_000),
    "rest": Part(1 / 6, calls=2_000, faults=64),
    "mcp": Part(1 / 4, calls=2_000, faults=64),
    "approvals": Part(1 / 2, calls=10_000, faults=120),
}
"""The parts, in their order. The first bounds its whole run; the others make calls for so long, and wait for the last ones."""


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line, and work out how much of everything each part has."""
    options = argparse.ArgumentParser(
        prog="python -m chaos", description="Calls, jobs and approvals under faults, and what became of them."
    )
    options.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; without any, all of them")
    options.add_argument(
        "--minutes",
        type=float,
        default=_MINUTES,
        help="how long `calls` runs; rest has a sixth of it, mcp a quarter, approvals half (so all take about twice as long), "
        f"and each part so many calls, jobs and faults as fit (default: {_MINUTES:g})",
    )
    options.add_argument("--seed", type=int, default=1, help="makes the same calls, jobs and faults again")
    options.add_argument("--calls", type=int, help="that each part makes, in the place of what fits its time")
    options.add_argument("--jobs", type=int, help="of the part calls")
    options.add_argument("--faults", type=int, help="that each part does")
    options.add_argument("--no-core", action="store_true", help="news of jobs are read from Redis, not sent by HTTP")
    options.add_argument(
        "--rabbitmq", action="store_true", help="the part calls has a RabbitMQ, which faults meet as well"
    )
    options.add_argument(
        "--folder", type=Path, help="for logs and journals; without it they are kept if something is wrong"
    )
    chosen = options.parse_args(words)
    if unknown := [part for part in chosen.parts if part not in PARTS]:
        options.error(f"there is no part {unknown[0]!r}: {', '.join(PARTS)}")
    if chosen.rabbitmq and not is_installed():
        options.error("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
    return chosen


def amounts_of(part: Part, chosen: argparse.Namespace) -> tuple[int, int, int, float]:
    """Return how many calls, jobs and faults a part has, and its seconds."""
    scale = chosen.minutes / _MINUTES
    calls, jobs, faults = (
        max(round(usual * scale), min(usual, 1)) if given is None else given
        for given, usual in ((chosen.calls, part.calls), (chosen.jobs, part.jobs), (chosen.faults, part.faults))
    )
    return calls, jobs, faults, chosen.minutes * 60 * part.share


async def _run(name: str, chosen: argparse.Namespace, folder: Path) -> tuple[str, int]:
    """Run a part. Return its report, and how many violations it has found."""
    calls, jobs, faults, seconds = amounts_of(PARTS[name], chosen)
    if name == "calls":
        plan = Plan(calls, faults, chosen.seed, seconds, jobs, not chosen.no_core, chosen.rabbitmq)
        ran = await run(plan, folder)
        return ran.table + (f"\n\n## Violations\n\n{ran.proofs}" if ran.violations else ""), len(ran.violations)
    found: GatewayRun | ApprovalRun
    if name == "approvals":
        from chaos.approvals.run import ApprovalPlan, run_approvals  # only for this part

        found = await run_approvals(ApprovalPlan(calls, faults, seconds, chosen.seed), folder)
    else:
        from chaos.gateways.run import GatewayPlan, run_gateways  # with all frameworks

        doors: tuple[Door, ...] = ("rest",) if name == "rest" else ("mcp", "agents")
        found = await run_gateways(GatewayPlan(calls, faults, seconds, chosen.seed, doors), folder)
    return found.report, len(found.violations)


def main() -> int:
    chosen = options_of()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]  # a run states its own
    top = (chosen.folder or Path(tempfile.mkdtemp(prefix="toolfleet-chaos-"))).resolve()
    broken = 0
    for name in chosen.parts or PARTS:
        folder = top / name
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        report, violations = asyncio.run(_run(name, chosen, folder))
        print(report, flush=True)  # noqa: T201 - what a run is for
        if violations:
            print(f"\n{violations} violations; everything is in {folder}", flush=True)  # noqa: T201
        broken += violations > 0
    if chosen.folder is None and not broken:
        shutil.rmtree(top)
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())
