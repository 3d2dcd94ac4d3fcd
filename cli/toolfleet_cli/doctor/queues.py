"""Checks the queues: who serves them, what waits in them, whether a canary comes through, and of which kind RabbitMQ's are."""

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from toolfleet_cli.console.output import age, shown_url
from toolfleet_cli.doctor.check import CheckResult, Diagnosis, Patient, error, remark, warning
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER
from toolfleet_registry.directory.directory import ModuleDirectory
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import HARD_LIMIT_MARGIN, Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.client.session import worker_job_service
from toolfleet_tasks.operations.fleet_status import FleetStatus, QueueStatus, read_status
from toolfleet_tasks.operations.worker_probes import CanaryFlight, fly
from toolfleet_tasks.presence import workers_by_queue
from toolfleet_tasks.queue_states import LANE_PREFIX, QueueStates, QueueStateStore
from toolfleet_tasks.queues import CONTROL, IDLE, lane_of, queue_of

_OLD_SECONDS = 30.0
_NAMED = 5

_ASKED_NOTHING = frozenset({LOCAL, SCHEDULER})  # they are where the worker is
_MARGIN_SECONDS = 10.0
_WHY_SILENT = "Its calls wait in the same queue, and end as `expired`, or are begun late."

_ASK_SECONDS = 5.0
_TIMEOUT = "rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'"
_MEND = "consumer_timeout = {} in rabbitmq.conf, then restart RabbitMQ"


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """Goes by what workers note of themselves each second."""

    name: str = "queues"
    asks_redis: bool = True
    seconds: float = 15.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        settings, known = patient.settings, KnownModules(patient.settings)
        async with patient.redis() as redis:
            known.take((await ModuleDirectory(redis, settings).read()).entries)
            states = await QueueStateStore(redis, settings).read()
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
        facts = {
            "lanes": [asdict(lane) for lane in status.lanes],
            "queues": [asdict(queue) for queue in status.queues],
            "workers_by_queue": dict(served),
            "held": status.held,
            "jobs": status.jobs,
            "jobs_with_unnamed_hooks": len(unnamed),
            "overdue_jobs": status.overdue_jobs,
            "wakes": status.wakes,
            "dead_letters": status.dead_letters,
            "dead_wakes": status.dead_wakes,
            "dead_webhooks": status.dead_webhooks,
            "quarantined": status.quarantined,
        }
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
        text, mend = f"No worker takes calls of {names} (lane {lane}).", f"toolfleet worker --lane {lane}"
        if lane in settings.scale_from_zero_lanes:
            yield remark(text, "The lane starts workers when calls come.", mend)
        else:
            yield error(text, f"Such calls are refused after {settings.unserved_seconds:g} s.", mend)


def _idle(served: Counter[str]) -> Iterable[Diagnosis]:
    if served[IDLE]:
        yield warning(
            f"{served[IDLE]} workers have no queue: their lane has no module.",
            "They use memory and do nothing.",
            "End them, or name modules: TOOLFLEET_MODULE_SERVICES, TOOLFLEET_SLOW_MODULES, `toolfleet modules add`.",
        )


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
            "Whoever waits for them may have given up by the time they begin.",
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
            "Nobody polls them, and whoever waits for them hears of their end late.",
            "See that one beat runs: `toolfleet beat`.",
        )
    if status.quarantined:
        yield warning(
            f"{status.quarantined} messages lie in quarantine.",
            "Nobody could read them; their calls have ended as not executed.",
            "toolfleet redis-cli lrange toolfleet:quarantine 0 9, then del it",
        )
    if status.dead_letters:
        text = f"{status.dead_letters} calls are dead letters."
        yield remark(text, "What became of them is not known: a person has to look.", "toolfleet dead-letters list")
    if dead := status.dead_wakes + status.dead_webhooks:
        yield remark(
            f"{dead} wake-ups or webhooks were given up.", "Nobody has accepted them.", "toolfleet dead-letters list"
        )


@dataclass(frozen=True, slots=True)
class CanaryCheck:
    """Canaries run no tools. `seconds` leaves room for several hundred modules."""

    name: str = "canary"
    asks_redis: bool = True
    seconds: float = 60.0

    async def examine(self, patient: Patient) -> CheckResult:
        """Queues that no worker consumes, or that are paused, get no canary: another check tells of them."""
        settings = patient.settings
        known = KnownModules(settings)
        async with patient.redis() as redis:
            known.take((await ModuleDirectory(redis, settings).read()).entries)
            states = await QueueStateStore(redis, settings).read()
        served = await workers_by_queue(settings)
        queues = {CONTROL: ""} if served[CONTROL] else {}
        for module in sorted(known.names - known.ending):
            if served[queue_of(module)] and not states.is_paused(module, lane_of(module, known.settings)):
                queues[queue_of(module)] = "" if module in _ASKED_NOTHING else module
        most = min(patient.canary_seconds, self.seconds - _MARGIN_SECONDS)
        flights = await fly(settings, queues, seconds=most) if queues else []
        return CheckResult(tuple(_canary_findings(flights, most)), {"canaries": [_fact(one) for one in flights]})


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
                f"Nobody has taken a canary out of {one.queue} within {seconds:g} s, though workers say that they consume it.",
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


@dataclass(frozen=True, slots=True)
class RabbitCheck:
    """Checks RabbitMQ; with Redis as the broker there is nothing to ask."""

    name: str = "rabbitmq"
    asks_redis: bool = False
    seconds: float = 20.0

    async def examine(self, patient: Patient) -> CheckResult:
        """See the module."""
        from toolfleet_tasks.aio import in_abandoned_thread

        settings = patient.settings
        if settings.broker is None or is_redis_url(settings.broker):
            return CheckResult()
        shown = shown_url(settings.broker)
        try:
            kinds = await in_abandoned_thread(lambda: _foreign_queues(settings), seconds=2 * _ASK_SECONDS)
        except Exception as exc:  # noqa: BLE001 - kombu and its transports raise anything
            text = f"The broker at {shown} does not answer: {exc or 'no answer in time'}."
            mend = "Start RabbitMQ, or correct TOOLFLEET_BROKER_URL."
            return CheckResult((error(text, "No call can be published or begun.", mend),))
        milliseconds = await _consumer_timeout()
        needed = int((settings.max_timeout + HARD_LIMIT_MARGIN) * 1000)
        facts = {"foreign_queues": kinds, "consumer_timeout_ms": milliseconds}
        return CheckResult((*_of_queues(kinds), *_of_timeout(milliseconds, needed)), facts)


def _of_queues(kinds: dict[str, str]) -> Iterable[Diagnosis]:
    for queue, reason in kinds.items():
        yield error(
            f"The queue {queue} is of another kind than the fleet's: {reason}.",
            "Workers cannot consume it: they end when they start.",
            f"Empty it, end all workers, then: rabbitmqctl delete_queue {queue}",
        )


def _of_timeout(milliseconds: int | None, needed: int) -> Iterable[Diagnosis]:
    if milliseconds is None:
        yield remark(
            "RabbitMQ's `consumer_timeout` cannot be asked from here.",
            f"It must exceed the longest call ({needed} ms): else RabbitMQ closes the worker's channel, and delivers its calls again.",
            f"Where RabbitMQ runs: {_TIMEOUT}",
        )
    elif milliseconds < needed:
        text = f"RabbitMQ lets a worker hold a message for {milliseconds} ms, and a call may take {needed} ms."
        why = "It closes the worker's channel then, and delivers all of its calls again."
        yield warning(text, why, f"{_MEND.format(needed)}; or lower TOOLFLEET_MAX_TIMEOUT")


def _foreign_queues(settings: Settings) -> dict[str, str]:
    """The fleet's queues that exist with other arguments than the fleet declares them with, and what RabbitMQ says of each."""
    from amqp.exceptions import NotFound, PreconditionFailed

    from toolfleet_tasks.app import make_app
    from toolfleet_tasks.broker import make_queue
    from toolfleet_tasks.queues import queues_of

    found, app = dict[str, str](), make_app(settings, stores_results=False)
    try:
        with app.connection_for_read(connect_timeout=_ASK_SECONDS) as connection:
            for name in queues_of("all", settings):
                try:
                    channel: Any = connection.channel()
                    make_queue(name)(channel).queue_declare(passive=True)
                    make_queue(name)(channel).queue_declare()
                    channel.close()
                except NotFound:
                    continue  # the first worker makes it
                except PreconditionFailed as exc:
                    found[name] = str(exc.reply_text)
    finally:
        app.close()
    return found


async def _consumer_timeout() -> int | None:
    """Return the time-out in milliseconds, if RabbitMQ's own tool is on this machine and answers."""
    tool = shutil.which("rabbitmqctl")
    if tool is None:
        return None
    command = [tool, "eval", "application:get_env(rabbit, consumer_timeout)."]
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                said, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
    except OSError:
        return None
    found = re.search(rb"\{ok,\s*(\d+)\}", said)
    return None if found is None else int(found[1])
