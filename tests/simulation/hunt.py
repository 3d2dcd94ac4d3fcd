"""Plants faults in a copy of the product, and has the simulation find each: `python -m simulation.hunt [NAME ...]`.

For each fault the rows of `kill_points` that may show it are gone through, and then plans of the simulation are played, or
programs of `simulation.programs`, with seeds that nobody has chosen before, until something does not hold, or two minutes of
one core are over. What then holds without the fault, too, has found it. Findings are kept, and the next run goes on where this
one has stopped.
"""

import argparse
import fcntl
import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from faults.hunt import Finding, Findings
from faults.planted import ROOT, Fault, FaultRefused, locate, read_product, read_table
from faults.trial import TrialFailed, TrialTree
from simulation.kill_points import ROWS, Row, is_sound, walk_here
from simulation.plan import Life, Plan
from simulation.programs import play_here

TABLE = Path(__file__).parent / "planted.toml"
ALSO = (
    "once-repeated-after-unknown",
    "claim-granted-twice",
    "claim-not-renewed",
    "dead-letter-lost",
    "attempt-given-back-counts",
    "approval-never-too-late",
    "key-of-other-arguments-joins",
    "other-bytes-signed",
)
"""The faults of `tests/faults/planted.toml` that are about the same.

Without two that do no harm here. `job-taken-twice`: of two pollers one moves the job, and its step has one id.
`redelivery-not-marked`: what a dead worker held is marked with its death, and the mark counts only where Redis has lost the
call's record: then the simulation allows another end.
"""

_FOLDER = ROOT / ".cache" / "simulation"
_MOST_POINTS = 5
"""Of a row each time that its turn comes, more or less: rows differ more than a row's points do."""
_TURNS = 4
"""Of the rows that are about a file, before one of each other row: a row has few points at which a fault is seen."""
_ROUNDS = 50
_SHARE_OF_ROWS = 0.7
"""Of the time; the rest is the plans', or the random programs'."""
_PROGRAMS = 15
"""In one go: there is time for some."""
_HANGS_FACTOR = 2
"""What works for so many times as long as it may has no end: a process whose clock jumps does not wait."""
_CALLS, _FAULTS = 300, 20
_SCENES = {
    "approvals": {"approved", "rejected", "expired"},
    "jobs": {"job"},
    "programs": {"program"},
    "wakeups": {"core", "stream", "job"},
}
"""Of the rows, by the folder or file of what they are about; all others are about calls."""
_OF_CALLS = {"call", "crowd", "queued", "late"}
_LIFE: dict[str, Mapping[Life, int]] = {"approvals": {"approvals": 40}, "jobs": {"jobs": 20}, "wakeups": {"jobs": 20}}
"""Of plans about the same, which have few calls beside it."""


def faults() -> list[Fault]:
    """Return the simulation's faults: those of its table, and those that it shares."""
    shared = {fault.name: fault for fault in read_table()}
    return [*read_table(TABLE), *(shared[name] for name in ALSO)]


def main() -> int:
    """Judge the faults that are asked for, or all of which nothing is known yet."""
    options = _options()
    if options.seed is not None:
        print(json.dumps(_search_here(options.near, options.seed, options.seconds, options.most)), flush=True)  # noqa: T201
        return 0
    wanted = [fault for fault in faults() if not options.names or fault.name in options.names]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what is planted is taken out
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _judge(wanted, options)
        except BlockingIOError:
            _say("Another run is under way.")
        except (FaultRefused, TrialFailed) as exc:
            _say(str(exc))
    return 1


def _judge(wanted: Sequence[Fault], options: argparse.Namespace) -> int:
    hunt, missed = _Hunt(options.seconds), 0
    for fault in wanted:
        finding = (None if options.names else hunt.known(fault)) or hunt.search(fault)
        missed += finding.test is None
        outcome = f"found by {finding.test}" if finding.test else f"NOT FOUND: {fault.breaks}"
        _say("\n    ".join([f"{fault.name}: {outcome} ({finding.seconds:g} s)", *finding.remarks]))
    _say(f"{len(wanted)} faults, not found: {missed}")
    return 1 if missed else 0


class _Hunt:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._tree, self._findings = TrialTree(_FOLDER), Findings(_FOLDER / "findings.json")
        self._tree.refresh()
        self._product = read_product(ROOT)
        own = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
        self._states = {found: _digest(sorted(self._product.items()), [] if found else own) for found in (True, False)}

    def known(self, fault: Fault) -> Finding | None:
        """Return what an earlier run found: a fault that was found is known, and one that was not until the simulation changes."""
        kept = self._findings.of(fault)
        return kept if kept is not None and kept.state == self._states[kept.test is not None] else None

    def search(self, fault: Fault) -> Finding:
        """Let the simulation run with the fault until something does not hold that holds without it."""
        seed, path = time.time_ns() // 1000 % 1_000_000, locate(fault, self._product)
        began_at, left, remarks = time.monotonic(), self._seconds, list[str]()
        found: dict[str, Any] = {}
        while left > 0 and not found:
            with self._tree.changed(path, fault.old, fault.new):
                found = self._ran(str(path), seed, left)
            left -= found["took"] or left
            if not found["violation"]:
                break
            if (doubt := self._doubt(found, str(path), seed)) is not None:
                remarks.append(f"{doubt} does not count: without the fault, too")
                seed, found = seed + 1000, {}
        place = f"{found['where'] or path} with the seed {found.get('seed', seed)}" if found.get("violation") else ""
        shown = f"{place}: {found['violation'][:300]}" if place else None
        digest, seconds = _digest(fault.old, fault.new), round(time.monotonic() - began_at, 1)
        finding = Finding(digest, self._states[shown is not None], shown, seconds, "all", tuple(remarks))
        self._findings.add(finding)
        return finding

    def _doubt(self, found: dict[str, Any], path: str, seed: int) -> str | None:
        """Return what does not hold without the fault, where that has been found. A search that crashed is made again, too."""
        where = found["where"]
        if not where:
            again = self._ran(path, seed, self._seconds)
            return None if again["where"] else again["violation"] or None
        if is_sound(where):
            return None
        return self._ran(where, found["seed"], self._seconds, found["points"])["violation"] or None

    def _ran(self, near: str, seed: int, seconds: float, most: int = 0) -> dict[str, Any]:
        """Run this command in the copy, for one search."""
        words = ["--near", near, "--seed", str(seed), "--seconds", str(seconds), "--most", str(most)]
        env = {**self._tree.variables, "PYTHONPATH": "tests", "PYTHONHASHSEED": "0"}
        command = [str(self._tree.python), "-m", "simulation.hunt", *words]
        ended = subprocess.run(command, cwd=self._tree.root, env=env, capture_output=True, text=True, check=False)
        lines = ended.stdout.splitlines()
        if ended.returncode or not lines:
            said = "it has no end" if ended.returncode == -signal.SIGPROF else ended.stderr[-300:]
            return {"violation": said or f"it ends with {ended.returncode}", "where": "", "points": 0, "took": seconds}
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer


def _search_here(near: str, seed: int, seconds: float, most: int) -> dict[str, Any]:
    """Look for a violation in this process. `near`: the file with the fault, or the one row, or plan, that is to be repeated."""
    signal.setitimer(signal.ITIMER_PROF, seconds * _HANGS_FACTOR)
    out, dice, ends_at = sys.stdout, Random(seed), seconds
    answer: dict[str, Any] = {"violation": "", "where": "", "points": 0}
    rows = [row for row in ROWS if row.name == near] or (
        [] if near.startswith("plan") else _ordered(near, dice) * _ROUNDS
    )
    try:
        for row in rows:
            has_time = _SHARE_OF_ROWS * ends_at if most == 0 else ends_at  # a repeat needs no plans
            if answer["violation"] or _spent() > has_time:
                break
            own_seed = seed if most else dice.randrange(1_000_000)
            found = walk_here(
                row,
                own_seed,
                most=_MOST_POINTS,
                is_enough=lambda found: bool(
                    found.violations or _spent() > ends_at or found.points == (most or 2 * _MOST_POINTS)
                ),
            )
            gc.freeze()  # what is dead stays in memory, and is not to be looked through again and again
            if found.violations:
                where = {"where": row.name, "points": found.points, "seed": own_seed}
                answer = {"violation": found.violations[0], **where}
        number = 0
        while near not in {row.name for row in ROWS} and not answer["violation"] and _spent() < ends_at:
            answer = _played(near, seed + number)
            number += 1
            if near.startswith("plan"):
                break
    finally:
        sys.stdout = out
    return {**answer, "took": _spent()}


def _spent() -> float:
    """Return the CPU time of this process and of those that have ended in it, in seconds."""
    return sum(os.times()[:4])


def _played(near: str, seed: int) -> dict[str, Any]:
    if "/programs" in near:  # plans have none
        about, violations = "programs", play_here(seed, range(_PROGRAMS)).violations
    else:
        about = next((word for word in _LIFE if f"/{word}" in near), "")
        violations = _violations_of(seed, about)
    where = {"where": f"plan/{about}" if violations else "", "points": 0, "seed": seed}
    return {"violation": violations[0] if violations else "", **where}


def _violations_of(seed: int, about: str) -> list[str]:
    from simulation.pool import played  # it needs virtual time

    plan = Plan.of(seed, calls=_CALLS, faults=_FAULTS)
    if about:
        plan = replace(plan, calls=_CALLS // 4).living(_LIFE[about])
    ((_, verdict),) = played(iter([plan]), 1)
    return verdict.violations


def _ordered(near: str, dice: Random) -> list[Row]:
    """Order the rows as the seed says: those that are about a file come first, and several times."""
    about = next((found for word, found in _SCENES.items() if f"/{word}" in near), _OF_CALLS)
    rows = dice.sample(ROWS, len(ROWS))
    return [row for row in rows if row.scene in about] * _TURNS + [row for row in rows if row.scene not in about]


def _digest(*words: object) -> str:
    return hashlib.sha256(repr(words).encode()).hexdigest()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation.hunt", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these faults, also if what finds them is known")
    parser.add_argument("--seconds", type=float, default=120, help="of one core, for each fault")
    for name, kind in (("near", str), ("seed", int), ("most", int)):  # what it asks itself, in the copy
        parser.add_argument(f"--{name}", type=kind, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.names).difference(fault.name for fault in faults()):
        parser.error(f"no fault has the name {', '.join(sorted(unknown))}")
    return options


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    sys.exit(main())
