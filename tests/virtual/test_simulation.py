"""`make simulate`: how a plan that went wrong is made smaller."""

from simulation.plan import Plan, Verdict
from simulation.smaller import smallest


def test_a_plan_is_reduced_to_the_faults_that_it_needs() -> None:
    plan = Plan.of(7, calls=400, faults=20).with_workers(3)
    needed = {plan.faults[3].number, plan.faults[8].number}

    def play(tried: Plan) -> Verdict:
        has_all = needed <= {fault.number for fault in tried.faults}
        return Verdict(["It holds: not"] if has_all and tried.calls >= 50 and tried.workers >= 2 else [])

    small, runs = smallest(plan, play(plan), play)
    assert {fault.number for fault in small.faults} == needed
    assert (small.calls, small.workers) == (50, 2)
    assert runs <= 60


def test_the_command_of_a_plan_makes_it_again() -> None:
    plan = Plan.of(7, calls=100, faults=20).without(range(2, 5)).with_workers(1)
    numbers = {fault.number for fault in plan.faults}
    assert Plan.of(7, calls=100, faults=20).only(numbers).with_workers(1) == plan
    assert f"--only {','.join(map(str, sorted(numbers)))}" in plan.command
