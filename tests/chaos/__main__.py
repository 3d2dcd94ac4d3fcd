"""`python -m chaos [--calls N] [--jobs N] [--faults N] [--seed N] [--minutes N] [--rabbitmq]`: exits with 1 if anything does not hold."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from chaos.plan import Plan
from chaos.run import run
from support.servers.rabbitmq import is_installed


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m chaos", description="Calls and jobs under faults, and what became of them."
    )
    options.add_argument("--calls", type=int, default=20_000)
    options.add_argument("--jobs", type=int, default=2_000)
    options.add_argument("--faults", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--minutes", type=float, default=24, help="bounds the whole run")
    options.add_argument("--no-core", action="store_true", help="news of jobs are read from Redis, not sent by HTTP")
    options.add_argument("--rabbitmq", action="store_true", help="calls wait in a RabbitMQ, which faults meet as well")
    options.add_argument(
        "--folder", type=Path, help="for logs and journals; without it they are kept if something is wrong"
    )
    chosen = options.parse_args()
    if chosen.rabbitmq and not is_installed():
        options.error("RabbitMQ is not installed: apt-get install --no-install-recommends rabbitmq-server")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]  # a run states its own
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="toolfleet-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    plan = Plan(
        calls=chosen.calls,
        faults=chosen.faults,
        seed=chosen.seed,
        seconds=chosen.minutes * 60,
        jobs=chosen.jobs,
        has_core=not chosen.no_core,
        on_rabbitmq=chosen.rabbitmq,
    )
    ran = asyncio.run(run(plan, folder.resolve()))
    print(ran.table)  # noqa: T201 - what a run is for
    if ran.violations:
        print(f"\n## Violations\n\n{ran.proofs}\n\n{len(ran.violations)} violations; everything is in {folder}")  # noqa: T201
        return 1
    if chosen.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
