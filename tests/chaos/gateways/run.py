"""Runs the clients of two gateways under faults, and says what became of their calls."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from chaos.checks.call_checks import Violation
from chaos.faults.fault_report import table
from chaos.faults.moments import until
from chaos.gateways.agents import Agents
from chaos.gateways.checks import check_intentions
from chaos.gateways.clients import GIVE_UP_SECONDS, WAYS, Client, Door, Intention, intentions
from chaos.gateways.scene import GATEWAY_FAULTS, Scene, scene, strike
from chaos.plan import MODULES
from chaos.records.journal import Journal, read_journal
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.redis.keys import Keys

_AT_ONCE = 2  # faults that may overlap
_QUIET_SECONDS = 30
_ANSWER_SECONDS = 30
_SHOWN = 10
_CLIENTS = httpx.Limits(max_connections=500, max_keepalive_connections=100)


@dataclass(frozen=True)
class GatewayPlan:
    """`seconds` is how long calls are made and faults happen; the rest of a run is what its last calls need. `doors`: which are used."""

    calls: int
    faults: int
    seconds: float
    seed: int
    doors: tuple[Door, ...] = tuple(WAYS)


@dataclass
class GatewayRun:
    """What a run came to: its report, and what did not hold."""

    report: str
    violations: list[Violation] = field(default_factory=list)


async def run_gateways(plan: GatewayPlan, folder: Path) -> GatewayRun:
    """Do it. Logs and the modules' journal are left in `folder`."""
    wanted = intentions(plan.calls, plan.doors, random.Random(plan.seed))
    began_at = time.monotonic()
    async with scene(folder, has_beat="agents" in plan.doors) as here:  # beat looks after jobs
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(_client(here, url)) for url in here.urls]
            agents = await stack.enter_async_context(Agents.open(here.settings))
            client = Client(here.streams, clients, random.Random(plan.seed + 1), agents)
            async with asyncio.TaskGroup() as group:
                group.create_task(_strike_all(plan, here))
                await _spread(plan, client, wanted, group)
        here.look_for_ends()
        journal = read_journal(here.journal)
        checks = {
            **check_intentions(wanted, journal),
            "Nothing is left in queues or in workers' hands": await _left(here),
            "Every key is known, and expires unless it may last": _lasting(here),
            "What ends was told to, and ends well": [Violation("ends", text) for text in here.ended_alone],
        }
    figures = {
        **_figures(wanted, journal, time.monotonic() - began_at),
        "starts of gateways that found no Redis": here.refusals,
    }
    violations = [one for found in checks.values() for one in found]
    return GatewayRun(_report(plan, here, figures, wanted, checks), violations)


def _client(here: Scene, url: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {here.key}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=_ANSWER_SECONDS, limits=_CLIENTS, trust_env=False)


async def _spread(plan: GatewayPlan, client: Client, wanted: Sequence[Intention], group: asyncio.TaskGroup) -> None:
    began_at = time.monotonic()
    for number, each in enumerate(wanted):
        due = began_at + number / len(wanted) * plan.seconds
        await asyncio.sleep(max(due - time.monotonic(), 0))
        group.create_task(client.have_done(each))


async def _strike_all(plan: GatewayPlan, here: Scene) -> None:
    """Each kind as often as the others, in a random order."""
    dice, places, began_at = random.Random(plan.seed + 2), asyncio.Semaphore(_AT_ONCE), time.monotonic()
    kinds = [*itertools.islice(itertools.cycle(GATEWAY_FAULTS), plan.faults)]

    async def one(kind: str) -> None:
        async with places:
            try:
                async with asyncio.timeout(GIVE_UP_SECONDS):
                    await strike(kind, here, dice)
            except Exception as exc:  # noqa: BLE001 - one that fails must not end the run
                here.ended_alone.append(f"{kind}: {exc!r}")

    async with asyncio.TaskGroup() as group:
        for number, kind in enumerate(dice.sample(kinds, len(kinds))):
            due = began_at + (number + dice.random()) / len(kinds) * plan.seconds
            await asyncio.sleep(max(due - time.monotonic(), 0))
            group.create_task(one(kind))


async def _left(here: Scene) -> list[Violation]:
    look, queues = here.redis.look, [f"tools.{name}" for name in MODULES]

    def is_quiet() -> bool:
        return not look.hlen("unacked") and not any(look.llen(queue) for queue in queues)

    if await until(is_quiet, seconds=_QUIET_SECONDS):
        return []
    return [Violation("left", f"unacked {look.hlen('unacked')}, {[(queue, look.llen(queue)) for queue in queues]}")]


def _lasting(here: Scene) -> list[Violation]:
    look, found = here.redis.look, list[Violation]()
    for key in map(str, look.scan_iter(count=500)):
        rule = Keys().rule_of(key)
        if rule is None or (not rule.lasting and look.ttl(key) == -1):
            found.append(Violation("keys", f"{key!r} is {'unknown' if rule is None else 'without an end'}", None, key))
    return found


def _figures(wanted: Sequence[Intention], journal: Journal, seconds: float) -> dict[str, object]:
    times = sorted(each.seconds for each in wanted)
    return {
        "seconds": round(seconds),
        "calls, each under a key of its own": len(wanted),
        "results told": sum(len(each.told) for each in wanted),
        "executions in the modules' journal": sum(len(journal.effects_of_ref[each.ref]) for each in wanted),
        "requests without an answer": sum(each.lost for each in wanted),
        "answers to come again": sum(each.refused for each in wanted),
        "streams taken up again": sum(each.resumed for each in wanted),
        "seconds until a result, median": round(times[len(times) // 2], 2),
        "seconds until a result, longest": round(times[-1], 2),
    }


def _report(
    plan: GatewayPlan,
    here: Scene,
    figures: Mapping[str, object],
    wanted: Sequence[Intention],
    checks: Mapping[str, list[Violation]],
) -> str:
    ends: Counter[tuple[str, str]] = Counter()
    for each in wanted:
        for text in each.told[:1]:
            result = ToolResult.model_validate_json(text)
            ends["success" if result.success else str(result.error_code), result.effect_state] += 1
    shown = [f"- {one.text[:2000]}" for found in checks.values() for one in found[:_SHOWN]]
    parts = [
        f"# Chaos at two gateways: {plan.calls:,} `once` calls, {sum(here.struck.values())} faults, seed {plan.seed}",
        table(("what", "value"), figures.items()),
        table(("fault", "happened"), here.struck.items()),
        table(("way", "calls"), Counter(each.way for each in wanted).items()),
        table(("result", "effect state", "calls"), ((*end, count) for end, count in sorted(ends.items()))),
        table(("check", "violations"), ((name, len(found) or "none") for name, found in checks.items())),
        *(["## Violations", "\n".join(shown)] if shown else []),
    ]
    return "\n\n".join(parts)
