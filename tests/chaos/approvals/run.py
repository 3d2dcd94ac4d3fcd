"""Has cases played under faults, and says what became of them."""

import asyncio
import itertools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chaos.approvals import player_process
from chaos.approvals.cases import AGENTS, GIVE_UP_SECONDS, Case, make_cases, read_ends
from chaos.approvals.checks import check_cases
from chaos.approvals.clock_faults import CLOCKED, clock_faults
from chaos.approvals.player_process import PLAYERS, ends_file
from chaos.checks.call_checks import Violation
from chaos.faults.fault_report import table
from chaos.gateways.scene import GATEWAY_FAULTS, Scene, scene
from chaos.processes.programs import Program
from chaos.records.journal import read_journal
from support.worker_process import TESTS

FAULTS = {
    **{kind: fault for kind, fault in GATEWAY_FAULTS.items() if "gateway" not in kind and "streams" not in kind},
    **clock_faults(),
}
"""Those of a run: workers, Redis, and clocks where they can be set."""

_LAST_SECONDS = 4 * GIVE_UP_SECONDS  # for the last cases, on a busy machine
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
    clocked, longest = CLOCKED if clock_faults() else (), dict[str, float]()
    async with scene(folder, gateways=0, has_beat=True, clocked=clocked, more=more) as here:
        async with _players(plan, here) as players:
            await _strike_all(plan, here, longest)
            give_up_at = began_at + plan.seconds * 2 + _LAST_SECONDS
            for player in players:
                if (code := await player.ended(seconds=max(give_up_at - time.monotonic(), 0))) != 0:
                    here.ended_alone.append(f"{player.name} ended with {code}:\n{player.said()[-2000:]}")
        here.look_for_ends()
        read_ends(cases, [ends_file(folder, number) for number in range(PLAYERS)])
        journal = read_journal(here.journal)
        checks = {
            **check_cases(cases, journal),
            "What ends was told to, and ends well": [Violation("ends", text) for text in here.ended_alone],
        }
    violations = [one for found in checks.values() for one in found]
    executed = sum(len(journal.effects_of_ref.get(ref, [])) for case in cases for ref in (case.ref, case.edited))
    figures = {"seconds": round(time.monotonic() - began_at), "cases": len(cases), "executions": executed}
    return ApprovalRun(_report(plan, here, longest, figures, cases, checks), violations)


@asynccontextmanager
async def _players(plan: ApprovalPlan, here: Scene) -> AsyncGenerator[list[Program]]:
    """Agents and people, who begin at once."""
    players = list[Program]()
    for number in range(PLAYERS):
        name = f"player-{number}"
        env = here.env_of(name)
        env["PYTHONPATH"] = os.pathsep.join([str(TESTS), env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))])
        words = [number, plan.cases, plan.seconds, plan.seed, here.folder]
        command = [sys.executable, "-m", player_process.__name__, *map(str, words)]
        players.append(Program(name, command, player_process.READY, here.folder, env))
    try:
        for player in players:
            player.start()
        for player in players:
            await player.is_up()
        yield players
    finally:
        for player in players:
            await asyncio.to_thread(player.stop)


async def _strike_all(plan: ApprovalPlan, here: Scene, longest: dict[str, float]) -> None:
    """Each kind as often as the others, in a random order. `longest`: the seconds of the longest of each kind."""
    dice, began_at = random.Random(plan.seed + 2), time.monotonic()
    kinds = [*itertools.islice(itertools.cycle(FAULTS), plan.faults)]
    for number, kind in enumerate(dice.sample(kinds, len(kinds))):
        due = began_at + (number + dice.random()) / len(kinds) * plan.seconds
        await asyncio.sleep(max(due - time.monotonic(), 0))
        struck_at = time.monotonic()
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await FAULTS[kind](here, dice)
        except Exception as exc:  # noqa: BLE001 - one that fails must not end the run
            here.ended_alone.append(f"{kind}: {exc!r}")
        else:
            here.struck[kind] += 1
            longest[kind] = max(longest.get(kind, 0), time.monotonic() - struck_at)


def _report(
    plan: ApprovalPlan,
    here: Scene,
    longest: Mapping[str, float],
    figures: Mapping[str, object],
    cases: Sequence[Case],
    checks: Mapping[str, list[Violation]],
) -> str:
    ends = Counter((case.kind, case.state or "?") for case in cases)
    told = Counter("-" if case.told is None else case.told.error_code or "success" for case in cases)
    shown = [f"- {one.text[:2000]}" for found in checks.values() for one in found[:_SHOWN]]
    parts = [
        f"# Approvals under faults: {plan.cases:,} `once` calls, {sum(here.struck.values())} faults, seed {plan.seed}",
        table(("what", "value"), figures.items()),
        table(
            ("fault", "happened", "longest, seconds"),
            ((kind, count, f"{longest[kind]:.1f}") for kind, count in here.struck.items()),
        ),
        table(("kind", "came to", "cases"), ((*end, count) for end, count in sorted(ends.items()))),
        table(("told of approved calls", "cases"), sorted(told.items())),
        table(("check", "violations"), ((name, len(found) or "none") for name, found in checks.items())),
        *(["## Violations", "\n".join(shown)] if shown else []),
    ]
    return "\n\n".join(parts)
