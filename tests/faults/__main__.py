"""`python -m faults [NAME ...]`: plant faults, one after the other, and print which test finds each. Exits with 1 if one is not found."""

import argparse
import fcntl
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from faults.hunt import REACHES, Finding, Findings, Hunt
from faults.planted import ROOT, TABLE, Fault, FaultRefused, read_table
from faults.trial import TrialFailed, TrialTree

_FOLDER = ROOT / ".cache" / "faults"


def main() -> int:
    """Search for what is not known yet of the faults that are asked for, and print what is known then."""
    options = argparse.ArgumentParser(
        prog="python -m faults", description="Planted faults that the tests have to find."
    )
    options.add_argument("names", nargs="*", help="only these faults, also if what finds them is known")
    options.add_argument("--table", type=Path, default=TABLE, help="another table of faults")
    options.add_argument(
        "--reach", choices=REACHES, default="all", help="only the tests near each fault, or of its room"
    )
    options.add_argument("--processes", type=int, default=2, help="so many processes run tests")
    chosen = options.parse_args()
    faults = read_table(chosen.table)
    if unknown := set(chosen.names).difference(fault.name for fault in faults):
        options.error(f"no fault has the name {', '.join(sorted(unknown))}")
    wanted = [fault for fault in faults if not chosen.names or fault.name in chosen.names]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what is planted is taken out
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _search(wanted, chosen)
        except BlockingIOError:
            print("Another run is under way.")  # noqa: T201 - what a run is for, here and below
        except (FaultRefused, TrialFailed) as exc:
            print(exc)  # noqa: T201
    return 1


def _search(faults: Sequence[Fault], chosen: argparse.Namespace) -> int:
    tree, missed = TrialTree(_FOLDER), 0
    tree.refresh()
    hunt = Hunt(tree, Findings(_FOLDER / "findings.json"), processes=chosen.processes, reach=chosen.reach)
    for fault in faults:
        finding = (None if chosen.names else hunt.known(fault)) or hunt.search(fault)
        missed += finding.test is None
        print(_line(fault, finding), flush=True)  # noqa: T201
    print(f"Not found: {missed}." if missed else "All were found.")  # noqa: T201
    return 1 if missed else 0


def _line(fault: Fault, finding: Finding) -> str:
    outcome = f"found by {finding.test}" if finding.test else f"NOT FOUND: {fault.breaks}"
    return "\n    ".join([f"{fault.room:<9} {fault.name}: {outcome} ({finding.seconds:g} s)", *finding.remarks])


if __name__ == "__main__":
    sys.exit(main())
