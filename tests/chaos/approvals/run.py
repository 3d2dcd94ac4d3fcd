"""Plays the cases under faults, and says what became of them."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from chaos.approvals.cases import AGENTS, GIVE_UP_SECONDS, Case, Players, make_cases
from chaos.approvals.checks import check_cases
from chaos.checks.call_checks import Violation
from chaos.faults.fault_report import table
from chaos.gateways.scene import GATEWAY_FAULTS, Scene, scene, strike
from chaos.records.journal import read_journal
from toolfleet import ToolFleet

FAULTS = [kind for kind in GATEWAY_FAULTS if "gateway" not in kind and "streams" not in kind]
"""Those of a run: workers and Redis."""

_FLEETS = 4
_SHOWN = 10


@dataclass(frozen=True)
class ApprovalPlan:
    """`seconds` is how long cases begin and faults happen."""

    cases: int
    faults: int
    seconds: float
    seed: int


@dataclass
class ApprovalRun:
    """What a run came to: its report, and what did not hold."""

    report: str
    violations: list[Violation] = field(default_factory=list)


async def run_approvals(plan: ApprovalPlan, folder: Path) -> ApprovalRun:
    """Do it. Logs and the modules' journal are left in `folder`."""
    cases, began_at = make_cases(plan.cases, random.Random(plan.seed)), time.monotonic()
    more = {"agents": AGENTS, "jobs_interval_seconds": 1, "dead_letters_kept": plan.cases}
    async with scene(folder, gateways=0, has_beat=True, more=more) as here:
        async with AsyncExitStack() as stack:
            fleets = [await stack.enter_async_context(ToolFleet(settings=here.settings)) for _ in range(_FLEETS)]
            players = Players(fleets, random.Random(plan.seed + 1))
            async with asyncio.TaskGroup() as group:
                group.create_task(_strike_all(plan, here))
                for number, case in enumerate(cases):
                    due = began_at + number / len(cases) * plan.seconds
                    await asyncio.sleep(max(due - time.monotonic(), 0))
                    group.create_task(players.play(case))
        here.look_for_ends()
        journal = read_journal(here.journal)
        checks = {
            **check_cases(cases, journal),
            "What ends was told to, and ends well": [Violation("ends", text) for text in here.ended_alone],
        }
    violations = [one for found in checks.values() for one in found]
    executed = sum(len(journal.effects_of_ref.get(ref, [])) for case in cases for ref in (case.ref, case.edited))
    figures = {"seconds": round(time.monotonic() - began_at), "cases": len(cases), "executions": executed}
    return ApprovalRun(_report(plan, here, figures, cases, checks), violations)


async def _strike_all(plan: ApprovalPlan, here: Scene) -> None:
    """Each kind as often as the others, in a random order."""
    dice, began_at = random.Random(plan.seed + 2), time.monotonic()
    kinds = [*itertools.islice(itertools.cycle(FAULTS), plan.faults)]
    for number, kind in enumerate(dice.sample(kinds, len(kinds))):
        due = began_at + (number + dice.random()) / len(kinds) * plan.seconds
        await asyncio.sleep(max(due - time.monotonic(), 0))
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await strike(kind, here, dice)
        except Exception as exc:  # noqa: BLE001 - one that fails must not end the run
            here.ended_alone.append(f"{kind}: {exc!r}")


def _report(
    plan: ApprovalPlan,
    here: Scene,
    figures: Mapping[str, object],
    cases: Sequence[Case],
    checks: Mapping[str, list[Violation]],
) -> str:
    ends = Counter((case.kind, "?" if case.decided is None else case.decided.state) for case in cases)
    told = Counter("-" if case.told is None else case.told.error_code or "success" for case in cases)
    shown = [f"- {one.text[:2000]}" for found in checks.values() for one in found[:_SHOWN]]
    parts = [
        f"# Approvals under faults: {plan.cases:,} `once` calls, {sum(here.struck.values())} faults, seed {plan.seed}",
        table(("what", "value"), figures.items()),
        table(("fault", "happened"), here.struck.items()),
        table(("kind", "came to", "cases"), ((*end, count) for end, count in sorted(ends.items()))),
        table(("told of approved calls", "cases"), sorted(told.items())),
        table(("check", "violations"), ((name, len(found) or "none") for name, found in checks.items())),
        *(["## Violations", "\n".join(shown)] if shown else []),
    ]
    return "\n\n".join(parts)
