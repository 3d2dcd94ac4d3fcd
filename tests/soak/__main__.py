"""`python -m soak [--minutes N] [--rate N] [--seed N]`: exits with 1 if a process goes on growing."""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from soak.report import grown, grown_keys, table
from soak.run import Plan, run


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m soak", description="Calls at a steady rate, and who grows.")
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--rate", type=float, default=100, help="calls a second")
    options.add_argument("--rest-rate", type=float, default=20, help="what clients of gateways do a second")
    options.add_argument("--mcp-rate", type=float, default=20, help="what MCP clients of gateways do a second")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]  # a run states its own
    plan = Plan(chosen.minutes, chosen.rate, chosen.seed, chosen.rest_rate, chosen.mcp_rate)
    with tempfile.TemporaryDirectory(prefix="toolfleet-soak-") as folder:
        os.chdir(folder)
        ran = asyncio.run(run(plan, Path(folder)))
        os.chdir("/")
    print(table(ran))  # noqa: T201 - what a run is for
    growing = [*grown(ran.samples), *grown_keys(ran.redis)]
    print("\n".join(growing) or "\nNobody goes on growing.")  # noqa: T201
    return int(bool(growing or ran.trouble))


if __name__ == "__main__":
    sys.exit(main())
