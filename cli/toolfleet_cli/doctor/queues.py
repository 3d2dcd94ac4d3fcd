"""Checks the queues and the modules: what waits for which workers, whether a canary comes through, and which manifests are bad."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from toolfleet_cli.console import age
from toolfleet_cli.doctor.check import CheckResult, Diagnosis, Patient, error, remark, warning
from toolfleet_registry.catalog.operator import Difference, operating
from toolfleet_registry.contracts.names import LOCAL
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.artifacts import Probe, written_probe
from toolfleet_tasks.client.session import worker_job_service
from toolfleet_tasks.operations.fleet_status import FleetStatus, ModuleTrouble, QueueStatus, read_status
from toolfleet_tasks.operations.worker_probes import CanaryFlight, fly
from toolfleet_tasks.presence import workers_by_queue
from toolfleet_tasks.queue_states import LANE_PREFIX, QueueStates, QueueStateStore
from toolfleet_tasks.queues import CONTROL, IDLE, lane_of, queue_of
from toolfleet_tasks.resources.agents import profile_notes

_OLD_SECONDS = 30.0
_OF_OTHERS = frozenset({"troubles", "not_applied", "broker_error"})  # facts of the check `manifests`, and no numbers
_NAMED = 5

CANARY_SECONDS: Final = 60.0
"""The seconds that all canaries may take: room for several hundred modules."""

_MARGIN_SECONDS = 10.0
_WHY_SILENT = "Its calls wait in the same queue, and end as `expired`, or are begun late."

_MODULES = "toolfleet modules list; see the log"
_APPLY = "Correct it as it says: `toolfleet up` says when it is applied, and `toolfleet status` shows what is left."


async def check_queues(patient: Patient) -> CheckResult:
    """Check the queues by what workers note of themselves each second."""
    settings = patient.settings
    known, states = await _modules_and_states(patient)
    status, served = await read_status(settings), await workers_by_queue(settings)
    async with worker_job_service(settings) as service:
        unnamed = await service.hooks.without_job_id()
    findings = [
        *_unserved(sorted(known.names - known.ending), known.settings, served),
        *_idle(served),
        *(one for queue in status.queues if queue.state != "paused" for one in _late(queue)),
        *_held_up(states, known),
        *_left_behind(status),
        *_replayable(unnamed),
    ]
    facts = {name: value for name, value in asdict(status).items() if name not in _OF_OTHERS}
    facts |= {"workers_by_queue": dict(served), "jobs_with_unnamed_hooks": len(unnamed)}
    return CheckResult(tuple(findings), facts)


def _unserved(modules: list[str], settings: Settings, served: Counter[str]) -> Iterable[Diagnosis]:
    if not served[CONTROL]:
        yield error(
            f"No worker takes from {CONTROL}.",
            "Manifests are not read and jobs do not go on: those are tasks of the fast lane.",
            "toolfleet worker --lane fast",
        )
    for lane in ("fast", "slow"):
        found = [name for name in modules if lane_of(name, settings) == lane and not served[queue_of(name)]]
        if not found:
            continue
        names = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
        text, fix = f"No worker takes calls of {names} (lane {lane}).", f"toolfleet worker --lane {lane}"
        if lane in settings.scale_from_zero_lanes:
            yield remark(text, "The lane starts workers when calls come.", fix)
        else:
            yield error(text, f"Such calls are refused after {settings.unserved_seconds:g} s.", fix)


def _idle(served: Counter[str]) -> Iterable[Diagnosis]:
    if served[IDLE]:
        yield warning(
            f"{served[IDLE]} workers have no queue: their lane has no module.",
            "They use memory and do nothing.",
            "End them, or name modules: TOOLFLEET_MODULE_SERVICES, TOOLFLEET_SLOW_MODULES, `toolfleet modules add`.",
        )


async def _modules_and_states(patient: Patient) -> tuple[KnownModules, QueueStates]:
    known = KnownModules(patient.settings)
    async with patient.redis() as redis:
        known.take((await ModuleDirectory(redis, patient.settings).read()).entries)
        return known, await QueueStateStore(redis, patient.settings).read()


def _held_up(states: QueueStates, known: KnownModules) -> Iterable[Diagnosis]:
    """Yield the paused and draining queues, which operators may have forgotten."""
    for name, state in sorted(states.stored.items()):
        lane = name.removeprefix(LANE_PREFIX)
        subject = f"The queue {queue_of(name)}" if lane == name else f"Each queue of the lane {lane}"
        if lane == name and name not in known.names | known.served | known.ending:
            subject += ", whose module is not there,"
        yield warning(
            f"{subject} has been {state.state} for {age(max(fleet_clock.now() - state.since, 0.0))}.",
            "Its calls wait, and end as `expired` at their deadlines."
            if state.state == "paused"
            else "New calls are refused as `busy`; those that wait are run.",
            f"toolfleet queues resume {name}; `toolfleet queues list` says who has done it, and why.",
        )


def _late(queue: QueueStatus) -> Iterable[Diagnosis]:
    if queue.waiting and not queue.workers:
        yield error(
            f"{queue.waiting} messages wait in {queue.queue}, and no worker takes from it.",
            "They end as `expired`, unless a worker comes.",
            f"toolfleet worker --lane {queue.lane}",
        )
    elif (queue.oldest_seconds or 0) > _OLD_SECONDS:
        yield warning(
            f"{queue.waiting} messages wait in {queue.queue}, the oldest for {age(queue.oldest_seconds)}.",
            "Their clients may have given up by the time they begin.",
            f"Start more workers of lane {queue.lane}, or give the module more processes: `toolfleet status` shows which is short.",
        )


def _replayable(job_ids: list[str]) -> Iterable[Diagnosis]:
    if job_ids:
        names = ", ".join(job_ids[:_NAMED])
        yield warning(
            f"The hooks of {len(job_ids)} jobs take requests that do not name the job: {names}.",
            "A request that is signed for one of them ends another one with the same secret.",
            "Make such jobs with `requires_job_id` in `hook`, have the outside system send `job_id`, and give each a secret of its own.",
        )


def _left_behind(status: FleetStatus) -> Iterable[Diagnosis]:
    if status.overdue_jobs:
        yield warning(
            f"{status.overdue_jobs} jobs are overdue.",
            "They are not polled, and their agents hear of their end late.",
            "See that one beat runs: `toolfleet beat`.",
        )
    if status.quarantined:
        yield warning(
            f"{status.quarantined} messages lie in quarantine.",
            "No worker could read them; their calls have ended as not executed.",
            "toolfleet redis-cli lrange toolfleet:quarantine 0 9, then del it",
        )
    if status.dead_letters:
        text = f"{status.dead_letters} calls are dead letters."
        yield remark(text, "How they ended is not known: a person has to decide.", "toolfleet dead-letters list")
    if dead := status.dead_wakes + status.dead_webhooks:
        yield remark(
            f"{dead} wake-ups or webhooks were given up.",
            "No receiver has accepted them.",
            "toolfleet dead-letters list",
        )


async def send_canaries(patient: Patient) -> CheckResult:
    """Send a canary, which runs no tool, through each queue. Queues that no worker consumes, or that are paused, get none."""
    settings = patient.settings
    known, states = await _modules_and_states(patient)
    served = await workers_by_queue(settings)
    queues = {CONTROL: ""} if served[CONTROL] else {}
    own = {LOCAL, *settings.worker_modules}  # they are where the worker is: it asks nothing
    for module in sorted(known.names - known.ending):
        if served[queue_of(module)] and not states.is_paused(module, lane_of(module, known.settings)):
            queues[queue_of(module)] = "" if module in own else module
    most = min(patient.canary_seconds, CANARY_SECONDS - _MARGIN_SECONDS)
    async with written_probe(settings) as probe:
        flights = await fly(settings, queues, seconds=most) if queues else []
    findings = [*_canary_findings(flights, most), *_store_findings(flights, probe)]
    return CheckResult(tuple(findings), {"canaries": [_fact(one) for one in flights]})


def _store_findings(flights: Iterable[CanaryFlight], probe: Probe | None) -> Iterable[Diagnosis]:
    """Yield what is wrong with the store of artifacts: who cannot write there, or read what was written elsewhere."""
    if probe is None:
        return
    harm, fix = (
        "Large results are not kept, or cannot be read.",
        "Give all workers and gateways the same TOOLFLEET_ARTIFACT_STORE.",
    )
    if probe.fault is not None:
        yield error(f"This process cannot write into the store of artifacts: {probe.fault}", harm, fix)
        return
    for one in flights:
        if one.answer is not None and one.answer.artifacts != probe.text:
            said = "has no store" if one.answer.artifacts is None else "cannot read what was written here"
            text = f"Worker {one.answer.worker} {said}, of TOOLFLEET_ARTIFACT_STORE."
            yield error(text, harm, fix, quoted=one.answer.artifacts or "")


def _canary_findings(flights: Iterable[CanaryFlight], seconds: float) -> Iterable[Diagnosis]:
    for one in flights:
        if one.fate == "unknown":
            yield warning(
                f"A worker of {one.queue} does not know canaries: it is older than this doctor.",
                "Its queue cannot be examined, and it leaves what newer agents send to newer workers.",
                "Upgrade that worker: `toolfleet status --json` names the workers of each lane.",
            )
        elif one.fate == "waiting":
            yield error(
                f"No worker has taken a canary out of {one.queue} within {seconds:g} s, though workers say that they consume it.",
                _WHY_SILENT,
                "Look at `toolfleet status`: start more workers if all slots are taken, else restart those of that lane.",
            )
        elif one.fate == "silent":
            yield error(
                f"A worker has taken a canary out of {one.queue} and has not answered within {seconds:g} s.",
                _WHY_SILENT,
                "Look for `loop_stalled` in the workers' logs (`toolfleet logs`), and restart the one that stands still.",
            )
        elif one.answer is not None and one.answer.health not in {None, "well"}:
            yield _unwell(one)


def _unwell(one: CanaryFlight) -> Diagnosis:
    health, worker = (one.answer.health, one.answer.worker) if one.answer is not None else ("", "")
    said = {
        "away": "does not answer `GET /health`",
        "not_ready": "says that it cannot serve now",
        "unknown": "cannot be asked: the worker itself has no descriptors, ports, route or name service",
    }
    return error(
        f"Module {one.module} {said.get(str(health), f'is {health}')}, says worker {worker}.",
        "Its calls fail, or wait until it is back.",
        f"Start the module, or correct its address: `toolfleet modules list` shows it. Try `curl -i ADDRESS/health` where {worker} runs.",
    )


def _fact(one: CanaryFlight) -> dict[str, object]:
    answer = one.answer
    return {
        "queue": one.queue,
        "fate": one.fate,
        "queued_seconds": one.queued,
        "total_seconds": one.total,
        "worker": None if answer is None else answer.worker,
        "release": None if answer is None else answer.release,
        "messages_version": None if answer is None else answer.version,
        "health": None if answer is None else answer.health,
        "health_seconds": None if answer is None else answer.health_seconds,
    }


async def check_manifests(patient: Patient) -> CheckResult:
    """Check the modules by what workers have found, without asking a module."""
    settings = patient.settings
    status = await read_status(settings)
    async with operating(settings) as operator:
        differences, closed = await operator.differences(), await operator.closed()
    lines = (error(one, "The fleet works as if that line were not there.", _APPLY) for one in status.not_applied)
    findings = [
        *lines,
        *(_trouble(one) for one in status.troubles),
        *_drift(differences),
        *_closed(closed, differences),
    ]
    findings += [
        remark(note.text, note.why, "toolfleet modules list; toolfleet tools list")
        for note in await profile_notes(settings)
    ]
    facts: dict[str, Any] = {
        # Neither a module's error nor the reason of a closed tool: both quote what a module has said.
        "troubles": [asdict(replace(one, error=None)) for one in status.troubles],
        "drifted": {one.tool_name: one.kind for one in differences},
        "closed": sorted(closed),
    }
    return CheckResult(tuple(findings), facts)


def _trouble(one: ModuleTrouble) -> Diagnosis:
    quoted = one.error or ""
    if one.trouble == "stale":
        return warning(
            f"The manifest of module {one.module} is {age(one.seconds)} old.",
            "Agents are offered tools as they were; those that it has lost fail.",
            "See that beat runs (`toolfleet beat`), and `toolfleet modules refresh` asks all modules at once.",
            quoted=quoted,
        )
    if one.trouble == "recovering":
        return remark(f"Module {one.module} is recovering: {one.reason}.", "Calls may wait for seconds.", _MODULES)
    if one.trouble == "failing":
        return warning(
            f"Module {one.module} is failing: {one.reason}.", "Its calls fail.", f"{_MODULES} of {one.module}"
        )
    if one.trouble == "not ready":
        return error(
            f"Module {one.module} is not ready.",
            "The fleet goes on without it, and uses it once it is ready.",
            f"toolfleet logs {one.module}; correct what it says",
            quoted=f"{quoted[:1].upper()}{quoted[1:].removesuffix('.')}.",
        )
    if one.trouble == "away":
        return error(
            f"Module {one.module} is left alone: {one.reason}.",
            "Its calls are refused until a worker reaches it.",
            f"Start {one.module}, or correct its address: toolfleet modules list",
            quoted=quoted,
        )
    return error(
        f"There is no manifest of module {one.module} ({one.trouble}).",
        "Agents are offered none of its tools.",
        "toolfleet modules refresh; if that finds nothing, start the module, and see that beat runs",
        quoted=quoted,
    )


def _drift(differences: Iterable[Difference]) -> Iterable[Diagnosis]:
    by_module = dict[tuple[str, bool], list[Difference]]()
    for one in differences:
        by_module.setdefault((one.tool_name.partition(".")[0], one.kind == "changed"), []).append(one)
    for (module, is_served), found in sorted(by_module.items()):
        names = ", ".join(sorted(one.tool_name for one in found)[:5])
        if is_served:
            yield warning(
                f"Module {module} serves {len(found)} tools that have changed since they were accepted: {names}.",
                "Models read what its server says of them now.",
                f"toolfleet tools diff {module}, then toolfleet tools approve TOOL; `pin = true` in [hosts.{module}] withholds changes",
            )
            continue
        yield warning(
            f"Module {module} offers {len(found)} tools otherwise than they are in effect: {names}.",
            "They are closed, or called as they were, until an operator approves the change.",
            f"toolfleet tools diff {module}, then toolfleet tools approve TOOL",
        )


def _closed(closed: Mapping[str, str], differences: Iterable[Difference]) -> Iterable[Diagnosis]:
    others = set(closed) - {one.tool_name for one in differences}
    if others:
        names = ", ".join(sorted(others)[:5])
        yield remark(
            f"{len(others)} tools are closed to all callers: {names}.",
            "Calls of them are refused.",
            "toolfleet tools list --closed",
        )
