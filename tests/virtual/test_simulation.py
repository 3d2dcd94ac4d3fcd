"""`make simulate`: ten seeds of it, two runs of one seed, and how a plan that went wrong is made smaller."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bed.early import TESTS
from simulation.plan import Life, Plan, Verdict
from simulation.smaller import smallest


def played(options: str, *more: str) -> str:
    """Play plans in which all holds. Return what the command says."""
    return said_by("simulation", "--whole", *options.split(), *more)


def said_by(module: str, *words: str) -> str:
    """Run a command of the simulation, which finds nothing wrong. Return what it says."""
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    ended = subprocess.run([sys.executable, "-m", module, *words], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.timeout(600)  # it plays them in processes of its own, as fast as the machine is
def test_ten_seeds_leave_every_invariant_whole() -> None:
    assert played("--first 1 --runs 10 --calls 200 --faults 6 --processes 2").startswith("10 runs, ")


def test_programs_end_as_in_python_whichever_suspension_their_worker_dies_at() -> None:
    """Four programs of 1 to 50 calls; `python -m simulation.programs` runs 2,000. Each call is made once."""
    said = said_by("simulation.programs", *"--count 4 --seed 1 --processes 1".split())
    found = re.search(r"4 programs of (\d+) calls, .* (\d+) suspensions, .* by (\d+) deaths.* 0 violations", said)
    assert found is not None, said
    calls, suspensions, deaths = map(int, found.groups())
    assert calls > suspensions >= deaths > 20


def may_have_a_network() -> bool:
    """Return whether a process may have a network of its own: in another's ports and Redis's chance differ."""
    words = ["unshare", "--user", "--net", "--mount", "true"]
    return (
        shutil.which(words[0]) is not None and subprocess.run(words, check=False, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not may_have_a_network(), reason="no process may have a network of its own")
def test_two_runs_of_a_seed_are_alike_in_every_event(tmp_path: Path) -> None:
    """What each member writes, the time, and the order in which connections are ready: a run that went wrong comes again."""
    traces = tmp_path / "first", tmp_path / "first2"
    options = "--first 12 --runs 1 --calls 30 --faults 4 --processes 1 --twice --trace"
    assert played(options, str(traces[0])).startswith("2 runs, ")
    first, second = (trace.read_text().splitlines() for trace in traces)
    assert len(first) > 1000
    assert first == second


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
