"""`python -m faults [NAME ...]`: plant faults, one after the other, and print which test finds each. Exits with 1 if one is not found."""

import argparse
import sys
from pathlib import Path

from faults.hunt import Finding, Findings, Hunt
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
    options.add_argument("--room", action="store_true", help="only the tests of each fault's room")
    options.add_argument("--processes", type=int, default=2, help="so many processes run tests")
    chosen = options.parse_args()
    faults = read_table(chosen.table)
    if unknown := set(chosen.names).difference(fault.name for fault in faults):
        options.error(f"no fault has the name {', '.join(sorted(unknown))}")
    tree = TrialTree(_FOLDER)
    try:
        tree.refresh()
        hunt = Hunt(tree, Findings(_FOLDER / "findings.json"), processes=chosen.processes, only_room=chosen.room)
        missed = 0
        for fault in faults:
            if chosen.names and fault.name not in chosen.names:
                continue
            finding = (None if chosen.names else hunt.known(fault)) or hunt.search(fault)
            missed += finding.test is None
            print(_line(fault, finding), flush=True)  # noqa: T201 - what a run is for, here and below
    except (FaultRefused, TrialFailed) as exc:
        print(exc)  # noqa: T201
        return 1
    print(f"Not found: {missed}." if missed else "All were found.")  # noqa: T201
    return 1 if missed else 0


def _line(fault: Fault, finding: Finding) -> str:
    outcome = f"found by {finding.test}" if finding.test else f"NOT FOUND: {fault.breaks}"
    return "\n    ".join([f"{fault.room:<9} {fault.name}: {outcome} ({finding.seconds:g} s)", *finding.remarks])


if __name__ == "__main__":
    sys.exit(main())
