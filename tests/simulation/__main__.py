"""Plays plans, one seed after the other, in as many processes as there are cores: `python -m simulation`.

Prints what became of each seed that went wrong, and at the end how many calls and kills there were. Ends with 1 if anything
did not hold.
"""

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context

from simulation.plan import Plan, Verdict
from simulation.share import play_here


def main() -> None:
    options = _options()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of what a seed decides
        words = [sys.executable, "-m", "simulation", *sys.argv[1:]]
        os.execve(sys.executable, words, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - itself
    began_at, total, faults, wrong = time.monotonic(), Counter[str](), Counter[str](), list[int]()
    for seed, verdict in _played(options):
        total.update(runs=1, calls=verdict.calls, kills=verdict.kills, in_flight=verdict.in_flight)
        faults += verdict.faults
        if verdict.violations:
            wrong.append(seed)
            _show(seed, verdict)
    _say(
        f"{total['runs']} runs, {total['calls']} calls, {total['kills']} kills, of which {total['in_flight']} of workers that"
        f" held calls, in {time.monotonic() - began_at:.0f} s; {dict(faults)}"
    )
    _say(f"violations with the seeds {sorted(wrong)}" if wrong else "no violation")
    sys.exit(bool(wrong))


def _played(options: argparse.Namespace) -> Iterator[tuple[int, Verdict]]:
    """Play seeds until the time is over, or so many as are wanted."""
    ends_at = time.monotonic() + options.seconds
    last = None if options.runs is None else options.first + options.runs
    seeds = itertools.takewhile(
        lambda seed: time.monotonic() < ends_at and (last is None or seed < last), itertools.count(options.first)
    )
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        plans = (Plan.of(seed, calls=options.calls, faults=options.faults) for seed in seeds)
        waiting = {pool.submit(play_here, plan) for plan in itertools.islice(plans, options.processes)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            waiting |= {pool.submit(play_here, plan) for plan in itertools.islice(plans, len(done))}
            yield from (each.result() for each in done)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--first", type=int, default=None, help="the first seed; by default another one each time")
    parser.add_argument("--runs", type=int, default=None, help="how many seeds; by default as many as the time allows")
    parser.add_argument("--seconds", type=float, default=600, help="no run begins later than that")
    parser.add_argument("--calls", type=int, default=800, help="of each run")
    parser.add_argument("--faults", type=int, default=30, help="of each run, more or less")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.first is None:
        options.first = int(time.time()) % 1_000_000 * 1_000
    return options


def _show(seed: int, verdict: Verdict) -> None:
    _say(f"seed {seed}: {len(verdict.violations)} violations")
    for violation in verdict.violations[:5]:
        _say(f"  {violation}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    main()
