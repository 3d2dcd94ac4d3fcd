"""`python -m conformance [--only server|client] [--direct] [--scenario NAME]`: exits with 1 if any check fails."""

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from conformance.packages import SuiteMissing, installed
from conformance.results import Report
from conformance.stage import everything_server, gateway_endpoint
from conformance.suite import CLIENT_OPTIONS, REVISIONS, Side, run_client_set, run_scenario, run_server_set

_SUMMARY = Path(__file__).parents[2] / ".cache" / "conformance" / "summary.json"


def main() -> int:
    """Run what was asked for, print what it came to, and write that for programs."""
    options = argparse.ArgumentParser(
        prog="python -m conformance",
        description="The conformance suite of MCP, against a gateway with a server behind it.",
    )
    options.add_argument("--only", choices=["server", "client"], help="only one side: without it both are tried")
    options.add_argument("--direct", action="store_true", help="against the server itself, without a fleet")
    options.add_argument("--revision", choices=REVISIONS, help="only one set of requirements")
    options.add_argument("--scenario", help="only one scenario")
    options.add_argument("--summary", type=Path, default=_SUMMARY, help="where the summary is written, as JSON")
    options.add_argument("--folder", type=Path, help="for logs and results; a temporary one without it")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    for name in [name for name in os.environ if name.startswith("TOOLFLEET_")]:
        del os.environ[name]  # a run states its own
    try:
        installed()
    except SuiteMissing as exc:
        print(f"The suite cannot be had: {exc}.")  # noqa: T201 - what a run is for, here and below
        return 1
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="toolfleet-conformance-"))
    reports = _ran(chosen, folder.resolve())
    print("\n".join(report.text() for report in reports))  # noqa: T201
    chosen.summary.parent.mkdir(parents=True, exist_ok=True)
    chosen.summary.write_text(json.dumps([report.facts() for report in reports], indent=1))
    print(f"The summary is in {chosen.summary}, logs and results are in {folder}.")  # noqa: T201
    return 1 if any(report.failed for report in reports) else 0


def _ran(chosen: argparse.Namespace, folder: Path) -> list[Report]:
    reports = list[Report]()
    if chosen.only != "client":
        served = everything_server if chosen.direct else gateway_endpoint
        with served(_made(folder / "logs")) as url:
            reports += _tried("server", ["--url", url], chosen, folder)
    if chosen.only != "server" and not chosen.direct:
        reports += _tried("client", CLIENT_OPTIONS, chosen, folder)
    return reports


def _tried(side: Side, options: list[str], chosen: argparse.Namespace, folder: Path) -> list[Report]:
    reports = list[Report]()
    for revision in REVISIONS if chosen.revision is None else (chosen.revision,):
        results = folder / f"{side}-{revision}"
        if chosen.scenario is not None:
            reports.append(run_scenario(side, chosen.scenario, revision, options, results))
        else:
            run_set = run_server_set if side == "server" else run_client_set
            reports += run_set(revision, options, results)
    return reports


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
