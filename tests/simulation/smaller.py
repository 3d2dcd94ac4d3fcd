"""Makes a plan whose run went wrong smaller, for as long as it goes wrong in the same way: fewer calls, workers, faults and less life."""

from collections.abc import Callable
from dataclasses import replace

from simulation.plan import Plan, Verdict

_FEWEST_CALLS = 2


def smallest(plan: Plan, verdict: Verdict, play: Callable[[Plan], Verdict], most_runs: int = 60) -> tuple[Plan, int]:
    """Return the smallest plan found that goes wrong as this one did, and how many runs that took.

    Args:
        plan: What went wrong.
        verdict: What became of it.
        play: Plays a plan.
        most_runs: When to be content.

    """
    wrong, runs = _checks_of(verdict), 0

    def still_fails(smaller: Plan) -> bool:
        nonlocal runs
        runs += runs < most_runs
        return runs < most_runs and bool(wrong & _checks_of(play(smaller)))

    while plan.calls > _FEWEST_CALLS and still_fails(fewer := replace(plan, calls=max(plan.calls // 2, _FEWEST_CALLS))):
        plan = fewer
    while plan.workers > 1 and still_fails(fewer := plan.with_workers(plan.workers - 1)):
        plan = fewer
    for kind in [kind for kind, count in plan.life.items() if count]:
        if still_fails(fewer := plan.living({**plan.life, kind: 0})):
            plan = fewer
        while plan.life[kind] > 1 and still_fails(fewer := plan.living({**plan.life, kind: plan.life[kind] // 2})):
            plan = fewer
    size = len(plan.faults)
    while size:  # as ddmin does: parts are left out, then smaller parts
        start = 0
        while start < len(plan.faults):
            if still_fails(fewer := plan.without(range(start, start + size))):
                plan = fewer
            else:
                start += size
        size //= 2
    return plan, runs


def _checks_of(verdict: Verdict) -> set[str]:
    """Return the names of the checks that found something."""
    return {violation.partition(":")[0] for violation in verdict.violations}
