"""`make simulate`: ten seeds of it, and how a plan that went wrong is made smaller."""

import os
import subprocess
import sys

from bed.early import TESTS
from simulation.plan import Life, Plan, Verdict
from simulation.smaller import smallest


def test_ten_seeds_leave_every_invariant_whole() -> None:
    options = "--first 1 --runs 10 --calls 200 --faults 6 --processes 2 --whole"
    words = ["-m", "simulation", *options.split()]
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    played = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)
    assert played.returncode == 0, played.stdout + played.stderr
    assert played.stdout.startswith("10 runs, ")


def test_a_plan_is_reduced_to_the_faults_that_it_needs() -> None:
    plan = Plan.of(7, calls=400, faults=20).with_workers(3)
    needed = {plan.faults[3].number, plan.faults[8].number}

    def play(tried: Plan) -> Verdict:
        has_all = needed <= {fault.number for fault in tried.faults}
        return Verdict(["It holds: not"] if has_all and tried.calls >= 50 and tried.workers >= 2 else [])

    small, runs = smallest(plan, play(plan), play)
    assert {fault.number for fault in small.faults} == needed
    assert (small.calls, small.workers, sum(small.life.values())) == (50, 2, 0)
    assert runs <= 60


def test_the_command_of_a_plan_makes_it_again() -> None:
    plan = Plan.of(7, calls=100, faults=20).without(range(2, 5)).with_workers(1).living({"jobs": 2, "clients": 1})
    numbers = {fault.number for fault in plan.faults}
    life: dict[Life, int] = {"jobs": 2, "clients": 1}
    assert Plan.of(7, calls=100, faults=20).only(numbers).with_workers(1).living(life) == plan
    assert f"--only {','.join(map(str, sorted(numbers)))}" in plan.command
    assert plan.command.endswith('--life jobs=2,clients=1"')
