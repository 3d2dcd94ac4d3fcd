"""One run: build everything up, make calls and faults, wait for quiet, look at what is left."""

import asyncio
import json
import random
import re
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos.checks.call_checks import Evidence, Violation, check_calls
from chaos.checks.job_checks import check_jobs, step_ids, then_ids
from chaos.checks.job_evidence import JobEvidence
from chaos.checks.leftovers import becomes_quiet, check_redis, check_workers, stored_results
from chaos.faults.fault_report import came_to
from chaos.faults.faults import UNSTORED, Fault, inflict, planned
from chaos.faults.moments import MOMENTS
from chaos.faults.rabbitmq_faults import AWAY_SECONDS
from chaos.job_report import deliveries, job_report, proof_of
from chaos.plan import AGENTS, LONGEST_TIMEOUT_SECONDS, Plan, is_hostile
from chaos.processes.agent import MADE, endings_of
from chaos.processes.job_agent import MADE as JOBS_MADE
from chaos.processes.programs import Program
from chaos.records.acts import read_acts
from chaos.records.append_only_file import written_results
from chaos.records.fleet_time import FleetWatch
from chaos.records.job_notes import notes_of, read_notes, read_records
from chaos.records.journal import read_journal
from chaos.records.outcomes import read_endings
from chaos.report import evidence_of, late_results, report, shown
from chaos.stage import Stage, stage, start_agents

_AT_ONCE = 3  # faults that may overlap
_TRIES = 5  # faults after one step, of which one must have been able to wait for it
_CHECK_SECONDS = 15
_LATE_SHARE = 1.3  # of the planned time: faults that could not keep up end there


@dataclass
class Ran:
    """What a run came to. `table` and `proofs` are for people."""

    table: str
    proofs: str
    violations: list[Violation] = field(default_factory=list)


async def run(plan: Plan, folder: Path) -> Ran:
    """Do it, in `plan.seconds` at the latest. Logs, the journal and the endings are left in `folder`."""
    began_at = time.monotonic()
    trouble: list[Violation] = []
    faults = planned(plan, random.Random(plan.seed))
    async with stage(plan, folder) as here:
        clock = FleetWatch(here.redis.url)
        watching = [asyncio.create_task(work) for work in (here.watch(), clock.follow())]
        try:
            async with asyncio.timeout(plan.seconds - _CHECK_SECONDS - (time.monotonic() - began_at)):
                trouble += await _load(here, faults)
        except TimeoutError:
            trouble.append(Violation("The run ended in time", f"it took more than {plan.seconds:.0f} s"))
        finally:
            for task in watching:
                task.cancel()
        left = check_redis(here)
        working = await check_workers(here)
        evidence = _evidence(here)
        jobs = _job_evidence(here, evidence, clock, faults)
        more = _figures(here, evidence, time.monotonic() - began_at)
    checks = {
        **check_calls(evidence),
        **(check_jobs(jobs) if plan.jobs else {}),
        **left,
        "Every worker works on after it all": working,
    }
    checks["The run went as planned"] = trouble + _not_done(plan, faults) + _nothing_shown(evidence, jobs)
    violations = [violation for found in checks.values() for violation in found]
    (folder / "faults.jsonl").write_text("".join(json.dumps(asdict(fault)) + "\n" for fault in faults))
    logs = sorted(folder.glob("worker-*.log"))
    proofs = "\n".join(
        evidence_of(violation, evidence, faults, logs) + proof_of(violation, jobs, faults, folder)
        for violation in shown(violations)
    )
    traces = came_to(faults, evidence, here.refusals, folder)
    table = report(plan, evidence, faults, checks, more, job_report(jobs) if plan.jobs else "", traces)
    return Ran(table, proofs, violations)


async def _load(here: Stage, faults: list[Fault]) -> list[Violation]:
    """Calls, jobs and faults side by side, until the last of each, and then quiet."""
    await start_agents(here)
    trouble = await _inflict_all(here, faults)
    for agent in here.agents[:AGENTS]:
        agent.send_signal(signal.SIGUSR2)
    for agent in here.agents:
        code = await agent.ended(seconds=here.plan.seconds)
        if code != 0:
            trouble.append(
                Violation("The run went as planned", f"{agent.name} ended with {code}: {agent.said()[-3000:]}")
            )
    for program in here.servers:
        async with here.alone(program):
            pass
    await becomes_quiet(here)
    return trouble


async def _inflict_all(here: Stage, faults: list[Fault]) -> list[Violation]:
    dice = random.Random(here.plan.seed + 1)
    places = asyncio.Semaphore(_AT_ONCE)
    began_at, planned_seconds = time.monotonic(), here.plan.load_seconds
    trouble: list[Violation] = []

    async def one(fault: Fault) -> None:
        async with places:
            if time.monotonic() - began_at < planned_seconds * _LATE_SHARE:
                try:
                    await inflict(fault, here, dice)
                except Exception as exc:  # noqa: BLE001 - one that fails must not end the run
                    trouble.append(Violation("The run went as planned", f"{fault}: {exc!r}"))

    async with asyncio.TaskGroup() as group:
        for number, fault in enumerate(faults):
            due = began_at + (number + dice.random()) / len(faults) * planned_seconds
            await asyncio.sleep(max(due - time.monotonic(), 0))
            group.create_task(one(fault))
    return trouble


def _evidence(here: Stage) -> Evidence:
    endings = [ending for number in range(AGENTS) for ending in read_endings(endings_of(here.folder, number))]
    journal = read_journal(here.journal)
    call_ids = {ending.call_id for ending in endings if ending.call_id and not is_hostile(ending.tool)}
    call_ids |= {entry.call_id for entry in journal.entries if not is_hostile(entry.tool)}  # that answer with megabytes
    jobs = read_records(here.redis.look)
    call_ids |= then_ids(jobs) | step_ids(jobs)
    made = sum(_made(agent, MADE) for agent in here.agents[:AGENTS])
    stored = stored_results(here.redis.look, sorted(call_ids))
    stored = written_results(here.folder / "redis", step_ids(jobs)) | stored  # a job drops what it has had
    return Evidence(endings, journal, made, stored)


def _job_evidence(here: Stage, calls: Evidence, clock: FleetWatch, faults: list[Fault]) -> JobEvidence:
    made = _made(here.agents[-1], JOBS_MADE) if here.plan.jobs else 0
    return JobEvidence(
        notes=read_notes(notes_of(here.folder)),
        records=read_records(here.redis.look),
        acts=read_acts(here.folder, here.redis.look),
        journal=calls.journal,
        stored=calls.stored,
        expected=made,
        has_core=here.plan.has_core,
        time=clock.seen(here.folder.glob("*.log")),
        away=[
            (fault.began_at, fault.ended_at + AWAY_SECONDS[fault.kind])
            for fault in faults
            if fault.kind in AWAY_SECONDS and fault.is_done
        ],
        unstored=[(fault.began_at, fault.ended_at) for fault in faults if fault.kind in UNSTORED and fault.is_done],
    )


def _made(agent: Program, words: str) -> int:
    """How many it says that it has made; one that was stopped before has not said so."""
    found = re.findall(rf"{re.escape(words)} (\d+)$", agent.said(), re.MULTILINE)
    return int(found[-1]) if found else -1


def _figures(here: Stage, evidence: Evidence, seconds: float) -> dict[str, object]:
    late = [ending.seconds - ending.timeout for ending in evidence.endings]
    return {
        "seconds": round(seconds),
        "calls a second": round(len(evidence.endings) / here.plan.load_seconds, 1),
        "latest end, seconds after the deadline": round(max(late, default=0), 2),
        "late results, refused by the ledger": late_results(here.folder.glob("worker-*.log")),
        **deliveries(here.folder),
        "dead letters": here.redis.look.hlen("toolfleet:dead"),
        "longest deadline, seconds": LONGEST_TIMEOUT_SECONDS,
    }


def _nothing_shown(calls: Evidence, jobs: JobEvidence) -> list[Violation]:
    """A run in which hardly anything works shows nothing, whatever holds."""
    planned = [ending for ending in calls.endings if ending.way not in {"burst", "hostile"}]
    good = sum(ending.result is not None and ending.result.success for ending in planned)
    made, completed = len(jobs.records), sum(job.place.state == "completed" for job in jobs.records.values())
    texts = [
        f"only {good} of {len(planned)} calls succeeded" if good * 2 < len(planned) else "",
        f"only {made} of {len(jobs.notes)} jobs were made" if made * 2 < len(jobs.notes) else "",
        f"only {completed} of {made} jobs completed" if completed * 4 < made else "",
    ]
    return [Violation("The run went as planned", text) for text in texts if text]


def _not_done(plan: Plan, faults: list[Fault]) -> list[Violation]:
    done = sum(fault.is_done for fault in faults)
    few = plan.faults - done > max(plan.faults // 20, 1)
    texts = [f"only {done} of {plan.faults} faults happened"] if few else []
    happened = {fault.kind for fault in faults if fault.is_done}
    texts += [f"no fault {kind!r} happened" for kind in sorted({fault.kind for fault in faults} - happened)]
    for moment in {fault.moment for fault in faults} - {MOMENTS[0]}:
        tried = [fault for fault in faults if fault.moment == moment and fault.is_done]
        if len(tried) >= _TRIES and not any(fault.was_seen for fault in tried):
            texts.append(f"no fault struck after {moment!r}, which was never seen")
    return [Violation("The run went as planned", text) for text in texts]
