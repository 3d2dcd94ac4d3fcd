"""Plays plans, one seed after the other, in as many processes as there are cores: `python -m simulation`.

Prints what became of each seed that went wrong, and at the end how many calls and kills there were. Ends with 1 if anything
did not hold.
"""

import argparse
import ctypes
import itertools
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from simulation.plan import SHARES, Life, Plan, Verdict
from simulation.smaller import smallest

_REDUCED = 3  # of all that went wrong
_REDUCING_SECONDS = 180  # for each of these: what goes wrong may take long to end
_ADDR_NO_RANDOMIZE = 0x0040000
real_monotonic = time.monotonic


def main() -> None:
    options = _options()
    _fix_addresses()
    from simulation.pool import played  # from here on time is virtual

    began_at, total, faults, wrong = real_monotonic(), Counter[str](), Counter[str](), set[int]()
    life = Counter[str]()
    digests: dict[int, str] = {}
    failed: dict[int, tuple[Plan, Verdict]] = {}
    for plan, verdict in played(_plans(options), options.processes, options.trace):
        total.update(runs=1, calls=verdict.calls, kills=verdict.kills, in_flight=verdict.in_flight)
        faults += verdict.faults
        life += verdict.life
        if verdict.digest != digests.setdefault(plan.seed, verdict.digest):
            verdict.violations.append(f"Two runs of a seed are alike: {digests[plan.seed]} {verdict.digest}")
        if verdict.violations:
            wrong.add(plan.seed)
            _show(plan.seed, verdict)
            failed.setdefault(plan.seed, (plan, verdict))
    _say(
        f"{total['runs']} runs, {total['calls']} calls, {total['kills']} kills, of which {total['in_flight']} of workers that"
        f" held calls, in {real_monotonic() - began_at:.0f} s, {_processor_seconds():.0f} s of them on a processor; {dict(life)}; {dict(faults)}"
    )
    for plan, verdict in [] if options.whole else list(failed.values())[:_REDUCED]:
        small, runs = smallest(plan, verdict, _player(real_monotonic() + _REDUCING_SECONDS))
        _say(f"seed {plan.seed} made smaller in {runs} runs: {small.calls} calls, {small.workers} workers")
        for fault in small.faults:
            _say(f"  {fault}")
        _say(f"  {small.command}")
    _say(f"violations with the seeds {sorted(wrong)}" if wrong else "no violation")
    sys.exit(bool(wrong))


def _player(ends_at: float) -> Callable[[Plan], Verdict]:
    """Return a function that plays a plan, and takes for good what has not gone wrong by then."""
    from simulation.pool import played

    def play(plan: Plan) -> Verdict:
        left = ends_at - real_monotonic()
        verdict = next(played(iter([plan]), 1, seconds=left))[1] if left > 0 else Verdict()
        return verdict if real_monotonic() < ends_at else Verdict()

    return play


def _processor_seconds() -> float:
    """Return what all runs and their Redis servers have taken together."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _fix_addresses() -> None:
    """Begin again with the same addresses and the same hashes of texts in every process: they order sets."""
    if os.environ.get("PYTHONHASHSEED") == "0":
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).personality(_ADDR_NO_RANDOMIZE)
    words = [sys.executable, "-m", "simulation", *sys.argv[1:]]
    os.execve(sys.executable, words, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - itself


def _plans(options: argparse.Namespace) -> Iterator[Plan]:
    """Make plans until the time is over, or so many as are wanted."""
    ends_at = real_monotonic() + options.seconds
    for seed in itertools.count(options.first):
        if real_monotonic() > ends_at or (options.runs is not None and seed >= options.first + options.runs):
            return
        plan = Plan.of(seed, calls=options.calls, faults=options.faults)
        if options.only is not None:
            plan = plan.only({int(number) for number in options.only.split(",") if number != "none"})
        if options.workers is not None:
            plan = plan.with_workers(options.workers)
        if options.life is not None:
            plan = plan.living(options.life)
        yield from [plan] * (1 + options.twice)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--first", type=int, default=None, help="the first seed; by default another one each time")
    parser.add_argument("--runs", type=int, default=None, help="how many seeds; by default as many as the time allows")
    parser.add_argument("--seconds", type=float, default=600, help="no run begins later than that")
    parser.add_argument("--calls", type=int, default=2500, help="of each run")
    parser.add_argument("--faults", type=int, default=120, help="of each run, more or less")
    parser.add_argument("--workers", type=int, help="of each run; by default what the seed says")
    parser.add_argument(
        "--life", type=_life, metavar="KIND=NUMBER,...", help="how many of each; by default what the seed says"
    )
    parser.add_argument("--only", metavar="NUMBERS", help="the faults, by their numbers, that happen; or `none`")
    parser.add_argument("--whole", action="store_true", help="do not make smaller what went wrong")
    parser.add_argument("--twice", action="store_true", help="play each seed twice, and see that both runs are alike")
    parser.add_argument(
        "--trace", type=Path, help="write what happens to FILE, and in later runs to FILE2, FILE3, ...", metavar="FILE"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.first is None:
        options.first = int(time.time()) % 1_000_000 * 1_000
    return options


def _life(text: str) -> dict[Life, int]:
    """Read `jobs=3`, with commas in between, or `none`."""
    given = dict(word.split("=") for word in text.split(",") if word != "none")
    if unknown := given.keys() - SHARES.keys():
        raise argparse.ArgumentTypeError(f"nothing lives that is called {', '.join(sorted(unknown))}")
    return {kind: int(given.get(kind, 0)) for kind in SHARES}


def _show(seed: int, verdict: Verdict) -> None:
    _say(f"seed {seed}: {len(verdict.violations)} violations")
    for violation in verdict.violations[:5]:
        _say(f"  {violation}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    main()
